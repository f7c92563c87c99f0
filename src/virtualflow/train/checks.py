"""What a Trainer refuses when it is made, with the reason."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from virtualflow.core.membership import JobContext
from virtualflow.errors import ConfigError
from virtualflow.train import optimizer_state, script_state
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


def check_optimizers(optimizers: Iterable[torch.optim.Optimizer], model: nn.Module) -> None:
    for optimizer in optimizers:
        _check_optimizer(optimizer, model)


def _check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
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


def check_sharding(sharding: str, copies: int, reduction: str, on_gradients: Any, job: JobContext) -> None:
    if sharding not in ("none", "state"):
        raise ConfigError(f'sharding={sharding!r}, expected "none" or "state"')
    if not isinstance(copies, int) or copies < 1:
        raise ConfigError(f"copies={copies!r}, expected a number of at least 1: how many devices hold each block")
    if sharding == "none":
        return
    reasons = {
        'reduction="exact"': reduction != "exact",
        "no on_gradients: no worker has all gradients": on_gradients is not None,
        "devices of one type": job.mixed,
        "no --audit": job.description.audit,
    }
    if refused := [needed for needed, is_missing in reasons.items() if is_missing]:
        raise ConfigError(f'sharding="state" needs {"; ".join(refused)}. Use sharding="none".')


def check_not_sharded(shards: object, call: str) -> None:
    """Refuse a *call* that needs all gradients in one place."""
    if shards is not None:
        raise ConfigError(f'{call} needs all gradients on every worker, and sharding="state" has them on none.')


def check_compiled(model: nn.Module, sizes: Iterable[int], loss_fns: Iterable[Any] = ()) -> None:
    """Make the bits of whatever is compiled independent of what it ran before."""
    if any(_is_dynamic(candidate) for loss_fn in loss_fns for candidate in _compilable(model, loss_fn)):
        raise ConfigError(
            "reduction='exact' needs torch.compile(..., dynamic=False), or no word about dynamic: with dynamic shapes, "
            "which kernel runs depends on the shapes seen before, and so would the bits. Or use reduction='fast'."
        )
    config = torch._dynamo.config
    if config.automatic_dynamic_shapes and torch._dynamo.utils.counters["frames"]:
        torch._dynamo.reset()  # what was compiled so far may have become dynamic
    config.automatic_dynamic_shapes, config.assume_static_by_default = False, True
    # A short last batch adds one more size; evaluation runs the same sizes in another mode.
    config.recompile_limit = max(config.recompile_limit, 4 * (len(set(sizes)) + 1))
    config.fail_on_recompile_limit_hit = True


def _compilable(model: nn.Module, loss_fn: Any) -> Iterator[Any]:
    """What may be compiled: modules, their forwards, the loss function and what it refers to."""
    for module in model.modules():
        yield from (module, module._compiled_call_impl, type(module).forward)
    function = inspect.unwrap(getattr(loss_fn, "func", loss_fn))
    yield from (loss_fn, function)
    if inspect.isfunction(function):
        yield from (value for _, value in named_in(function))


def is_compiled(model: nn.Module, loss_fn: Any) -> bool:
    """Whether torch.compile has a part in the step, as far as can be seen."""
    return any(_compile_context(candidate) is not None for candidate in _compilable(model, loss_fn))


def _is_dynamic(candidate: Any) -> bool:
    """Whether *candidate* was compiled for dynamic shapes on purpose."""
    context = _compile_context(candidate)
    return bool(getattr(context, "_dynamic", False) or getattr(context, "_shapes_spec", None))


def _compile_context(candidate: Any) -> Any:
    if isinstance(candidate, torch._dynamo.OptimizedModule):
        return candidate.dynamo_ctx
    cells = [cell for cell in getattr(candidate, "__closure__", None) or () if _is_filled(cell)]
    context_class = torch._dynamo.eval_frame.OptimizeContext
    return next((cell.cell_contents for cell in cells if isinstance(cell.cell_contents, context_class)), None)


def named_in(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What the code of *function* names, closures, globals and defaults, as far as it is there already."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if _is_filled(cell):
            yield name, cell.cell_contents
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for number, value in enumerate(function.__defaults__ or ()):
        yield f"{function.__name__}, default {number}", value


def _global_names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*(_global_names(inner_code) for inner_code in inner))


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (a name that is bound later has none yet)
    except ValueError:
        return False
    return True


def check_state(state: Iterable[Any], optimizers: Iterable[torch.optim.Optimizer]) -> None:
    for place, item in enumerate(state):
        script_state.check(item)
        if not isinstance(item, nn.Module):
            check_savable(script_state.take(item, f"state[{place}]"), f"the {type(item).__name__} in state=")
    for optimizer in optimizers:
        optimizer_state.check(optimizer)
        check_savable(optimizer.state_dict(), "the optimizer")


def check_loader_workers(loader_workers: int | None) -> None:
    if loader_workers is not None and loader_workers < 0:
        raise ConfigError(f"loader_workers={loader_workers}, expected None (decide), 0 (load between waves) or more")
