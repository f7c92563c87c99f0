"""What a Trainer refuses when it is made, with the reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from virtualflow.errors import ConfigError
from virtualflow.train.checkpoint import check_savable
from virtualflow.train.reduction import sparse_reason
from virtualflow.train.state import plain_name


def check_model(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(
                f"the parameter {name!r} has no shape yet (a lazy module). Run one forward before the optimizer and "
                "the Trainer are made, so that every worker starts from the same model."
            )
        if parameter.is_complex():
            raise ConfigError(f"the parameter {name!r} is complex, which is not supported. Hold it as two real ones.")
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ConfigError(sparse_reason(f"{plain_name(name)}.weight"))


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError(
            "LBFGS is not supported: it evaluates the loss several times within one step, at points that it chooses, "
            "while a step here is one gradient of the global batch. Use a first-order optimizer."
        )
    known = {id(parameter) for parameter in model.parameters()}
    for number, group in enumerate(optimizer.param_groups):
        if any(id(parameter) not in known for parameter in group["params"]):
            raise ConfigError(
                f"parameter group {number} of the optimizer holds a parameter that is not in the model, so it would "
                "not be saved, hashed or kept equal between workers. Make it part of the model (a module in "
                "another's attribute is enough). If the model was replaced after the optimizer was made, make the "
                "optimizer again."
            )


def check_compiled(model: nn.Module, sizes: Iterable[int]) -> None:
    """Make a compiled model's bits independent of what it ran before."""
    compiled = [module for module in model.modules() if isinstance(module, torch._dynamo.OptimizedModule)]
    if not compiled:
        return
    for module in compiled:
        if getattr(module.dynamo_ctx, "_dynamic", None) is not False:
            raise ConfigError(
                "reduction='exact' needs torch.compile(model, dynamic=False): with dynamic shapes, which kernel runs "
                "depends on the shapes seen before, and so would the bits. Or use reduction='fast'."
            )
    # A short last batch adds one more size; evaluation runs the same sizes in another mode.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * (len(set(sizes)) + 1))
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def check_state(state: Iterable[Any], optimizer: torch.optim.Optimizer) -> None:
    for item in state:
        kind = type(item).__name__
        if not hasattr(item, "state_dict") or not hasattr(item, "load_state_dict"):
            raise ConfigError(
                f"state= holds a {kind}, which has no state_dict and load_state_dict: the job can't save it or send it "
                "to another device. Give it both methods, or leave it out."
            )
        check_savable(item.state_dict(), f"the {kind} in state=")
    check_savable(optimizer.state_dict(), "the optimizer")


def check_choices(reduction: str, on_nan: str, loader_workers: int | None, clip_grad_norm: float | None) -> None:
    if reduction not in ("exact", "fast"):
        raise ConfigError(f"reduction={reduction!r}, expected 'exact' (the same bits anywhere) or 'fast'")
    if on_nan not in ("raise", "continue"):
        raise ConfigError(f"on_nan={on_nan!r}, expected 'raise' or 'continue'")
    if loader_workers is not None and loader_workers < 0:
        raise ConfigError(f"loader_workers={loader_workers}, expected None (decide), 0 (load between waves) or more")
    if clip_grad_norm is not None and not clip_grad_norm > 0:
        raise ConfigError(f"clip_grad_norm={clip_grad_norm}, expected a number above 0, or None")
