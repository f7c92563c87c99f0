"""A GPT that reads the King James Bible byte by byte, verse by verse.

    vf run --devices 2 examples/language_model.py
    python examples/language_model.py --verses 400 --held-out 100 --layers 1 --width 32 --context 64

Verses differ in length, so a mean over examples would count the bytes of short ones for more. `loss_fn` returns
(total, weight) instead: every byte of the global batch weighs the same, however padding fell into virtual nodes.

Needs the command `bible`: apt-get install bible-kjv
"""

import argparse
import math
import random

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, pad, scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

import virtualflow as vf
from data import bible_verses

START, END, BYTES = 0, ord("\n"), 128  # the text is ASCII
RECENT = 5  # bytes
PADDING = -100  # what cross_entropy ignores


class Layer(nn.Module):
    """Causal attention, then a perceptron on each byte, both beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.attend(self.queries_keys_values(self.before_attention(x))))
        return x + self.narrow(gelu(self.widen(self.before_perceptron(x))))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        queries, keys, values = x.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        # Causal, so padding, which comes last, is seen by nothing that counts.
        seen = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return seen.transpose(1, 2).reshape(batch, length, -1)


class GPT(nn.Module):
    """Bytes in, for each of them the scores of the next one out."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(BYTES, width), nn.Embedding(context, width)
        # Sees the last few bytes: attention takes a thousand steps to find out that they matter most.
        self.recent = nn.Conv1d(width, width, RECENT)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)
        nn.init.normal_(self.place.weight, std=0.02)  # the default, 1, would drown the bytes

    def forward(self, text: Tensor) -> Tensor:
        bytes_then_time = pad(self.byte(text).transpose(1, 2), (RECENT - 1, 0))  # only from the past
        x = self.recent(bytes_then_time).transpose(1, 2) + self.place.weight[: text.shape[1]]
        return self.head(self.norm(self.layers(x)))


class Verses:
    """Each verse as (bytes, the bytes that follow them), at most *context* long."""

    def __init__(self, verses: list[str], context: int) -> None:
        self.texts = [torch.tensor([START, *verse.encode("ascii"), END][: context + 1]) for verse in verses]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        text = self.texts[index]
        return text[:-1], text[1:]


def padded(verses: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A shard, padded to its own longest verse."""
    texts, targets = zip(*verses, strict=True)
    return (
        pad_sequence(list(texts), batch_first=True),
        pad_sequence(list(targets), batch_first=True, padding_value=PADDING),
    )


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The summed loss, and over how many bytes."""
    text, targets = batch
    total = cross_entropy(model(text).flatten(0, 1), targets.flatten(), ignore_index=PADDING, reduction="sum")
    return total, (targets != PADDING).sum()


def bits(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    total, weight = loss_fn(model, batch)
    return total / math.log(2), weight


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a byte-level GPT on the King James Bible.")
    parser.add_argument("--verses", type=int, default=8000, help="to train on, of 31,102 (default: %(default)s)")
    parser.add_argument("--held-out", type=int, default=500, help="verses to test on (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32, help="verses in the global batch (default: %(default)s)")
    parser.add_argument("--virtual-nodes", type=int, default=8, help="how many share it (default: %(default)s)")
    parser.add_argument("--context", type=int, default=192, help="bytes of a verse to read (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--heads", type=int, default=4, help="must divide the width (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-3, help="the highest of the cycle (default: %(default)s)")
    parser.add_argument("--reduction", choices=["exact", "fast"], default="exact")
    given = parser.parse_args()
    if min(given.epochs, given.verses, given.held_out) < 1:
        parser.error("--epochs, --verses and --held-out must be at least 1")
    if given.width % given.heads:
        parser.error(f"--heads {given.heads} does not divide --width {given.width}")
    return given


def split(given: argparse.Namespace) -> tuple[Verses, Verses]:
    """Verses to train on and others to test on, from all over the text."""
    verses = bible_verses()
    random.Random(0).shuffle(verses)
    held_out, rest = verses[: given.held_out], verses[given.held_out :]
    return Verses(rest[: given.verses], given.context), Verses(held_out, given.context)


def main() -> None:
    given = options()
    vf.seed(0)
    train_set, test_set = split(given)
    model = GPT(given.layers, given.width, given.heads, given.context)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    steps = given.epochs * math.ceil(len(train_set) / given.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, given.lr, total_steps=steps, pct_start=0.1)
    trainer = vf.Trainer(
        model,
        optimizer,
        loss_fn,
        batch_size=given.batch_size,
        virtual_nodes=given.virtual_nodes,
        state=[schedule],
        reduction=given.reduction,
        clip_grad_norm=1.0,
        collate_fn=padded,
    )
    for epoch in trainer.epochs(given.epochs):
        for batch in trainer.batches(train_set):
            loss = trainer.step(batch)
            schedule.step()
            if trainer.is_lead and trainer.global_step % 25 == 0:
                print(f"step {trainer.global_step}/{steps}  {loss / math.log(2):.3f} bits per byte", flush=True)
        held_out = trainer.evaluate(test_set, bits)
        if trainer.is_lead:
            print(f"epoch {epoch + 1}  held out: {held_out:.3f} bits per byte", flush=True)
    if trainer.is_lead:
        print(f"digest {trainer.digest()}")


if __name__ == "__main__":
    main()
