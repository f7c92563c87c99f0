"""A GPT in four stages: each device builds, holds and updates only a part of it.

    python examples/staged_gpt.py                          # one device, all stages
    vf run --devices 4 examples/staged_gpt.py              # a pipeline of four: the same digest
    vf run --devices 2 --mapping 0,0,0,0,1,1,1,1 examples/staged_gpt.py    # data parallel: the same digest

It learns to continue the source code of Python's own argparse, byte by byte.
"""

import argparse
import inspect

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.data import TensorDataset

import virtualflow as vf

BYTES, HEADS, CONTEXT = 128, 4, 64


class Layer(nn.Module):
    """Causal attention, then a perceptron on each byte, both beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        packed = self.queries_keys_values(self.before_attention(x)).view(batch, length, 3, HEADS, width // HEADS)
        seen = scaled_dot_product_attention(*packed.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.drop(self.mix(seen.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.narrow(gelu(self.widen(self.before_perceptron(x)))))


class Embed(nn.Module):
    """The first stage: it has no stage before it, and reads the batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(BYTES, width), nn.Embedding(CONTEXT, width)

    def forward(self, _: None, batch: list[Tensor]) -> Tensor:
        return self.byte(batch[0]) + self.place.weight


class Head(nn.Module):
    """The last stage, whose output is for ``loss_fn``. Its weight is that of the embeddings."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, BYTES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))


def loss_fn(output: Tensor, batch: list[Tensor]) -> tuple[Tensor, int]:
    return cross_entropy(output.flatten(0, 1), batch[1].flatten(), reduction="sum"), batch[1].numel()


def examples(count: int) -> TensorDataset:
    text = torch.tensor([byte % BYTES for byte in inspect.getsource(argparse).encode()])
    rows = text[: count * (CONTEXT + 1)].view(count, CONTEXT + 1)
    return TensorDataset(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2, help="in each of the two stages in the middle")
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    def layers() -> nn.Module:
        return nn.Sequential(*(Layer(options.width) for _ in range(options.layers)))

    trainer = vf.Trainer(
        stages=[lambda: Embed(options.width), layers, layers, lambda: Head(options.width)],
        tied={"3.out.weight": "0.byte.weight"},
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        loss_fn=loss_fn,
        batch_size=32,
        virtual_nodes=8,
        clip_grad_norm=1.0,
        seed=1,
    )
    data = examples(options.examples)
    for epoch in trainer.epochs(options.epochs):
        for batch in trainer.batches(data):
            loss = trainer.step(batch)
        if trainer.is_lead:
            print(f"epoch {epoch}: loss {loss:.3f}")
    digest = trainer.digest()  # all workers call it: no one of them holds everything
    if trainer.is_lead:
        print(f"digest {digest}")


if __name__ == "__main__":
    main()
