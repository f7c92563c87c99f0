"""Rules that need no more than the name of what is called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.script import Script


@dataclass(frozen=True, slots=True)
class CallRule:
    """The advice for each call of one of these names. ``{}`` in the text stands for the call's first argument."""

    names: tuple[str, ...]
    instead: str
    severity: Severity = Severity.CHANGE


def advise_calls(script: Script, rules: tuple[CallRule, ...]) -> Iterator[Advice]:
    for rule in rules:
        for call in script.called(*rule.names):
            first = script.text(call.args[0]) if call.args else "..."
            yield script.advice(call, rule.instead.replace("{}", first), rule.severity)
