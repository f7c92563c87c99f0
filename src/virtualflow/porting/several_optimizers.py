"""Loops with more than one optimizer: models that train against each other, or one model in parts."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from virtualflow.porting.optimizers import model_in
from virtualflow.porting.script import Script, last_part

PHASES = (
    "one Trainer with a phase for each optimizer: `vf.Trainer([{models}], {{{phases}}}, batch_size=..., "
    "virtual_nodes=...)`, then {steps} for each batch. Each loss function is `(models, batch) -> loss`."
)


def phases(script: Script, optimizers: Sequence[str]) -> str:
    """What takes the place of a loop that runs a backward pass for each of these."""
    letters = _short_names(optimizers)
    pairs = list(zip(letters, optimizers, strict=True))
    return PHASES.format(
        models=", ".join(dict.fromkeys(model_of(script, name) for name in optimizers)),
        phases=", ".join(f'"{letter}": ({name}, {letter}_loss)' for letter, name in pairs),
        steps=", ".join(f'`trainer.step(batch, "{letter}")`' for letter in letters),
    )


def _short_names(names: Sequence[str]) -> list[str]:
    """The parts of their names that differ: ``d`` and ``g`` of ``opt_d`` and ``opt_g``, or ``optimizerD`` and ``G``."""
    tails = [last_part(name).lower() for name in names]
    for word in ("optimizer", "optim", "opt"):
        tails = [tail.replace(word, "") for tail in tails]
    tails = [tail.strip("_") for tail in tails]
    usable = all(tail.isidentifier() for tail in tails) and len(set(tails)) == len(tails)
    return tails if usable else [f"phase{number}" for number, _ in enumerate(names, 1)]


def model_of(script: Script, optimizer: str) -> str:
    """The model whose parameters an optimizer was made with."""
    for node in script.nodes(ast.Assign):
        if any(script.text(target) == optimizer for target in node.targets) and isinstance(node.value, ast.Call):
            name = model_in(script, node.value)
            return name if name not in ("", "self", "...") else "model"
    return "model"
