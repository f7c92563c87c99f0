"""Options that belong together, as one parameter of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """*command* as typer is to see it: each field of a parameter that is a dataclass is an option of its own."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    seen: list[Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        seen += _parameters(groups[name]) if name in groups else [parameter.replace(annotation=hints[name])]

    @wraps(command)
    def grouped(**options: Any) -> None:
        values = {
            name: group(**{field.name: options.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**options, **values)

    as_keywords = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in seen]
    vars(grouped)["__signature__"] = inspect.Signature(as_keywords)
    grouped.__annotations__ = {parameter.name: parameter.annotation for parameter in seen}
    return grouped


def _parameters(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
