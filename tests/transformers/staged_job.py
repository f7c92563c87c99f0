"""A Llama and a GPT2, cut into stages."""

from __future__ import annotations

import json
import sys

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import virtualflow as vf


def llama() -> LlamaForCausalLM:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=64, num_key_value_heads=2, attention_dropout=0.1, tie_word_embeddings=False, **sizes)
    )


def gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=4, n_head=4, n_positions=32))


MAKE = {"llama": llama, "gpt2": gpt2}


def loss_fn(logits: Tensor, batch: list[Tensor]) -> tuple[Tensor, float]:
    targets = batch[1]
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum"), float(targets.numel())


def main() -> None:
    words = torch.randint(0, 64, (12, 11), generator=torch.Generator().manual_seed(1))
    data = TensorDataset(words[:, :-1].contiguous(), words[:, 1:].contiguous())
    trainer = vf.Trainer(
        stages=vf.hf_stages(MAKE[json.loads(sys.argv[1])["kind"]], cuts=(0, 1, 3)),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        loss_fn=loss_fn,
        batch_size=6,
        virtual_nodes=3,
        clip_grad_norm=1.0,
        seed=1,
    )
    for _ in trainer.epochs(2):
        for batch in trainer.batches(data):
            trainer.step(batch)
    digest = trainer.digest()
    if trainer.is_lead:
        print(digest)


if __name__ == "__main__":
    main()
