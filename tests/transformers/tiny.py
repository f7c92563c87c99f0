"""Tiny models and data, made here: nothing is downloaded."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM, TrainingArguments
from transformers.utils import logging

import virtualflow as vf
from virtualflow.transformers import Trainer

logging.set_verbosity_error()
logging.disable_progress_bar()
SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class Sentences(torch.utils.data.Dataset):
    """Sequences of several lengths whose label tells if a token is in them; *causal* ones are their own labels."""

    def __init__(self, count: int, *, causal: bool = False, seed: int = 0) -> None:
        numbers = np.random.default_rng(seed)
        self.rows = [numbers.integers(3, 32, numbers.integers(4, 12)).tolist() for _ in range(count)]
        self.causal = causal

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        return {"input_ids": row, "labels": row if self.causal else int(7 in row)}


def padded(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch, padded to its longest sequence."""
    longest = max(len(example["input_ids"]) for example in examples)

    def rows(name: str, padding: int) -> torch.Tensor:
        return torch.tensor([example[name] + [padding] * (longest - len(example[name])) for example in examples])

    ids = rows("input_ids", 0)
    causal = isinstance(examples[0]["labels"], list)
    labels = rows("labels", -100) if causal else torch.tensor([example["labels"] for example in examples])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def bert() -> BertForSequenceClassification:
    return BertForSequenceClassification(BertConfig(**SIZES, max_position_embeddings=16))


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1, max_position_embeddings=16))


def arguments(folder: Path, **changed: Any) -> TrainingArguments:
    settings = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 3,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(output_dir=str(folder / "out"), **(settings | changed))


def trainer(folder: Path, model: Any = None, *, kind: Any = Trainer, count: int = 42, **options: Any) -> Any:
    """A Trainer of *kind*; what it does not take itself is for its TrainingArguments."""
    vf.seed(0)
    model = model() if model is not None else bert()
    own = ("callbacks", "virtual_nodes", "eval_dataset", "compute_metrics", "compute_loss_func", "optimizers")
    given = {name: options.pop(name) for name in own if name in options}
    causal = not isinstance(model, BertForSequenceClassification)
    return kind(
        model=model,
        args=arguments(folder, **options),
        train_dataset=Sentences(count, causal=causal),
        data_collator=padded,
        **given,
    )


def history(trainer: Any) -> list[dict[str, float]]:
    """What was logged, without what depends on a clock."""
    timed = ("_runtime", "_per_second")
    return [{k: v for k, v in entry.items() if not k.endswith(timed)} for entry in trainer.state.log_history]


def accuracy(predicted: Any) -> dict[str, float]:
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}
