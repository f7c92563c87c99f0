"""All rules, and the advice that they give on a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from virtualflow.porting import (
    accelerate_calls,
    after_step,
    data_loaders,
    evaluation_loops,
    frameworks,
    launchers,
    lead_only,
    machine_settings,
    optimizers,
    ranks,
    saved_files,
    script_variables,
    update_loops,
)
from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.script import Script

Rule = Callable[[Script], Iterator[Advice]]
ALL: tuple[Rule, ...] = (
    *frameworks.RULES,
    *accelerate_calls.RULES,
    *launchers.RULES,
    *ranks.RULES,
    *machine_settings.RULES,
)
OWN_LOOP: tuple[Rule, ...] = (  # for scripts that write their loop themselves
    *data_loaders.RULES,
    *optimizers.RULES,
    *update_loops.RULES,
    *after_step.RULES,
    *evaluation_loops.RULES,
    *lead_only.RULES,
    *saved_files.RULES,
    *script_variables.RULES,
)
_ORDER = list(Severity)


def advise(code: bytes, file: str) -> list[Advice]:
    """What to change in a script, in the order of its lines. Raises ConfigError for what is no Python."""
    script = Script(code, file)
    rules = ALL if frameworks.owns_loop(script) else (*ALL, *OWN_LOOP)
    all_advice = {advice for rule in rules for advice in rule(script)}
    return sorted(all_advice, key=lambda advice: (advice.line, _ORDER.index(advice.severity), advice.instead))
