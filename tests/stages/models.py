"""Small models that are cut into four stages.

A GPT with tied embeddings, dropout and clipping; a ResNet with batch norm; a Llama of Hugging Face.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, mse_loss, relu, scaled_dot_product_attention
from torch.utils.data import TensorDataset

from virtualflow.train.stages.job_optimizer import NamedParameters

WORDS, WIDTH, HEADS, LENGTH = 64, 32, 4, 12


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.drop.p if self.training else 0.0)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(gelu(self.up(self.second(x)))))


class Embed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width), nn.Dropout(0.1)
        nn.init.normal_(self.wte.weight, std=0.02)
        self.block = Block(width)

    def forward(self, _: None, batch: list[Tensor]) -> Tensor:
        words = batch[0][:, :-1]
        return self.block(self.drop(self.wte(words) + self.wpe.weight[: words.shape[1]]))


class Head(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.block, self.norm, self.out = Block(width), nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.block(x)))


def gpt_loss(output: Tensor, batch: list[Tensor]) -> tuple[Tensor, float]:
    targets = batch[0][:, 1:]
    return cross_entropy(output.flatten(0, 1), targets.flatten(), reduction="sum"), float(targets.numel())


def gpt_metric(output: Tensor, batch: list[Tensor]) -> tuple[Tensor, int]:
    targets = batch[0][:, 1:]
    return (output.argmax(-1) == targets).sum(), targets.numel()


class Basic(nn.Module):
    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.one, self.norm_one = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.two, self.norm_two = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_two(self.two(relu(self.norm_one(self.one(x)))))
        return relu(y + self.short(x))


def mean_loss(output: Tensor, batch: list[Tensor]) -> Tensor:
    return cross_entropy(output, batch[1])


def accuracy(output: Tensor, batch: list[Tensor]) -> tuple[Tensor, int]:
    return (output.argmax(-1) == batch[1]).sum(), len(output)


def grouped(params: NamedParameters) -> torch.optim.Optimizer:
    """Embeddings, by their names, and vectors do not decay."""
    decays = {name: p.ndim > 1 and not name.endswith(("wte.weight", "wpe.weight")) for name, p in params.named()}
    groups = [
        {"params": [p for name, p in params.named() if decays[name] is decay], "weight_decay": rate}
        for decay, rate in ((True, 0.1), (False, 0.0))
    ]
    return torch.optim.AdamW(groups, lr=1e-2)


def gpt_arguments(width: int = WIDTH, in_third: int = 2) -> dict[str, Any]:
    return {
        "stages": [
            lambda: Embed(width),
            lambda: Block(width),
            lambda: nn.Sequential(*(Block(width) for _ in range(in_third))),
            lambda: Head(width),
        ],
        "tied": {"3.out.weight": "0.wte.weight"},
        "optimizer": grouped,
        "loss_fn": gpt_loss,
        "clip_grad_norm": 0.5,
    }


def resnet_arguments() -> dict[str, Any]:
    return {
        "stages": [
            lambda: nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
            lambda: nn.Sequential(Basic(8, 8), nn.Dropout(0.1)),
            lambda: Basic(8, 16, 2),
            lambda: nn.Sequential(Basic(16, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
        ],
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True),
        "loss_fn": mean_loss,
    }


def large_resnet_arguments(width: int = 256) -> dict[str, Any]:
    return {
        "stages": [
            lambda: nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), Basic(width, width)),
            lambda: nn.Sequential(Basic(width, width), nn.Dropout(0.1)),
            lambda: Basic(width, width, 2),
            lambda: nn.Sequential(Basic(width, width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5)),
        ],
        "optimizer": lambda params: torch.optim.AdamW(params, lr=1e-3),
        "loss_fn": mean_loss,
    }


def llama_arguments(width: int = WIDTH) -> dict[str, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    from virtualflow.transformers.hf_stages import hf_stages

    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 4, "num_attention_heads": HEADS}
    config = LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, attention_dropout=0.1, **sizes)
    return {
        "stages": hf_stages(lambda: LlamaForCausalLM(config), cuts=(0, 1, 2, 3)),
        "optimizer": lambda params: torch.optim.AdamW(params, lr=1e-3),
        "loss_fn": llama_loss,
        "clip_grad_norm": 1.0,
    }


def llama_loss(logits: Tensor, batch: list[Tensor]) -> tuple[Tensor, float]:
    return gpt_loss(logits[:, :-1], batch)


def llama_metric(logits: Tensor, batch: list[Tensor]) -> tuple[Tensor, int]:
    return gpt_metric(logits[:, :-1], batch)


def wide_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))


def wide_arguments() -> dict[str, Any]:
    """Its memory is that of weights, sums and the optimizer's state, and little else."""
    return {
        "stages": [wide_layers] * 4,
        "optimizer": lambda params: torch.optim.AdamW(params, lr=1e-3),
        "loss_fn": lambda output, batch: mse_loss(output, batch[1]),
    }


MODELS: dict[str, Callable[[], dict[str, Any]]] = {
    "gpt": gpt_arguments,
    "resnet": resnet_arguments,
    "llama": llama_arguments,
    # The memory of these is that of weights, sums and the optimizer's state, about as much in each stage.
    "wide": wide_arguments,
    "large gpt": lambda: gpt_arguments(256, in_third=1),
    "large resnet": large_resnet_arguments,
    "large llama": lambda: llama_arguments(256),
}
METRICS = {"gpt": gpt_metric, "resnet": accuracy, "llama": llama_metric}


def examples(model: str, count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    if model == "wide":
        return TensorDataset(torch.randn(count, 512, generator=generator), torch.randn(count, 512, generator=generator))
    if "resnet" not in model:
        return TensorDataset(torch.randint(0, WORDS, (count, LENGTH + 1), generator=generator))
    images = torch.randn(count, 3, 8, 8, generator=generator)
    return TensorDataset(images, torch.randint(0, 5, (count,), generator=generator))
