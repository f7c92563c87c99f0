"""Hugging Face's causal language models as stages, with their own forward: what a stage does not own is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.errors import ConfigError

BODIES = {  # for each type of model: its body, its layers, its embeddings, its last norm
    "llama": ("model", "layers", "embed_tokens", "norm"),
    "gpt2": ("transformer", "h", "wte", "ln_f"),
}


class HfStages(list[Callable[[], nn.Module]]):
    """The stages of a model, for ``vf.Trainer(stages=...)``; *tied* are the weights that two of them share."""

    def __init__(self, stages: Sequence[Callable[[], nn.Module]], tied: Mapping[str, str]) -> None:
        super().__init__(stages)
        self.tied = dict(tied)


def hf_stages(make: Callable[[], Any], *, cuts: Sequence[int]) -> HfStages:
    """The model that *make* builds, cut before the layers *cuts*: ``(0, 8, 16)`` gives three stages.

    Embeddings belong to the first, the head to the last, whose output is the logits. A batch is a dict with
    ``input_ids`` and perhaps an ``attention_mask``, or begins with the ids.
    """
    with torch.device("meta"):
        model = make()
    body, layers, embeddings, _ = _places(model)
    count = len(getattr(getattr(model, body), layers))
    if not cuts or cuts[0] != 0 or list(cuts) != sorted(set(cuts)) or cuts[-1] >= count:
        raise ConfigError(f"cuts={tuple(cuts)}, expected 0 and then layers in ascending order, below {count}")
    is_tied = bool(model.config.tie_word_embeddings) and len(cuts) > 1
    tied = {f"{len(cuts) - 1}.head.weight": f"0.body.{embeddings}.weight"} if is_tied else {}
    return HfStages([partial(HfStage, make, number, tuple(cuts)) for number in range(len(cuts))], tied)


class HfStage(nn.Module):
    """Some layers of a model."""

    def __init__(self, make: Callable[[], Any], number: int, cuts: tuple[int, ...]) -> None:
        super().__init__()
        is_planned = torch.empty(0).device.type == "meta"
        with torch.device("meta"):
            model = make()
        body_name, layers_name, embeddings, norm = _places(model)
        body, is_last = getattr(model, body_name), number == len(cuts) - 1
        layers = getattr(body, layers_name)
        until = len(layers) if is_last else cuts[number + 1]
        for layer in range(len(layers)):
            if not cuts[number] <= layer < until:
                layers[layer] = _Pass()
        if number:
            setattr(body, embeddings, None)
            if body_name == "transformer":
                body.wpe, body.drop = _NoPositions(model.config.n_embd), nn.Identity()
        if not is_last:
            setattr(body, norm, nn.Identity())
        self.is_first = number == 0
        self.body = body
        self.head = model.lm_head if is_last else None
        if self.head is not None and number:
            self.head.weight = nn.Parameter(torch.empty_like(self.head.weight))  # the stages' own: told by name
        if not is_planned:
            self.to_empty(device="cpu")
            for module in self.modules():
                model._init_weights(module)

    def forward(self, x: Tensor | None, batch: Any) -> Tensor:
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        given = {"input_ids": _ids(batch)} if self.is_first else {"inputs_embeds": x}
        hidden: Tensor = self.body(**given, attention_mask=mask, use_cache=False).last_hidden_state
        return hidden if self.head is None else self.head(hidden)


class _Pass(nn.Module):
    """In the place of a layer that another stage has."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden


class _NoPositions(nn.Module):
    """In the place of position embeddings, which the first stage has added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, positions: Tensor) -> Tensor:
        return torch.zeros((*positions.shape, self.width), device=positions.device)


def _ids(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return batch["input_ids"]
    return batch[0] if isinstance(batch, tuple | list) else batch


def _places(model: Any) -> tuple[str, str, str, str]:
    model_type = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if model_type not in BODIES or not hasattr(model, "lm_head"):
        raise ConfigError(
            f"vf.hf_stages knows causal language models of type {' and '.join(BODIES)}, not {model_type!r} "
            f"({type(model).__name__}). Write its stages by hand: functions that build modules."
        )
    return BODIES[model_type]
