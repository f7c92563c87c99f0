"""An error that one worker has met, raised on all of them: a script that catches it then goes on alike everywhere.

It travels as plain values, in the agreement of the call that it has ended. Every worker runs the same script, so each
finds the error's class by its name, and makes an equal one.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_LIBRARY = str(Path(__file__).resolve().parent.parent)
_PLAIN = (bool, int, float, str, type(None))
_PLACE, _DEVICE = "_virtualflow_place", "_virtualflow_device"  # attributes of an error that was sent to all
ErrorDescription = dict[str, Any]


class LocalError:
    """An error that this worker has met in a call that all make; of several, that of the lowest *order* counts."""

    def __init__(self, error: Exception, place: str, device: str, order: int = 0) -> None:
        self.error = error
        _mark(error, f"This was in {place}, on device {device}.", device)
        error.add_note(getattr(error, _PLACE))
        self.description = described(error) | {"order": order}


def raise_first(everyone: Iterable[ErrorDescription | None], mine: LocalError | None) -> None:
    """Raise the first of *everyone*'s errors, equal on all workers, if there is one; *mine* is among them."""
    known = [theirs for theirs in everyone if theirs is not None]
    if not known:
        return
    first = min(known, key=lambda theirs: int(theirs["order"]))
    raise mine.error if mine is not None and first == mine.description else remade(first)


def described(error: Exception) -> ErrorDescription:
    """*error* as plain values, for workers that have not met it."""
    made = error.__reduce_ex__(2)
    arguments, state = (made[1], made[2] if len(made) > 2 else None) if isinstance(made, tuple) else (None, None)
    plain = all(isinstance(value, _PLAIN) for value in arguments or ())
    attributes = state.items() if isinstance(state, dict) else ()
    return {
        "classes": [[base.__module__, base.__qualname__] for base in type(error).__mro__],
        "arguments": list(arguments) if isinstance(arguments, tuple) and plain else None,
        "attributes": {name: item for name, item in attributes if isinstance(item, _PLAIN) and name[0] != "_"},
        "text": str(error),
        "place": getattr(error, _PLACE, ""),
        "device": getattr(error, _DEVICE, ""),
        "frames": "".join(traceback.format_list(_own_frames(error))),
    }


def remade(description: ErrorDescription) -> Exception:
    """An error equal to the one that was ``described``: of the same class, as far as this process knows that."""
    error = _made(description)
    if description["place"]:
        _mark(error, description["place"], description["device"])
        error.add_note(f"{description['place']}\n{description['frames']}".rstrip())
    return error


def device_of(error: BaseException) -> str | None:
    """The device whose worker has met *error*, if that was sent to all."""
    device: str | None = getattr(error, _DEVICE, None)
    return device


def place_notes(error: BaseException) -> list[str]:
    """Those notes of *error* that say where it was met."""
    place: str | None = getattr(error, _PLACE, None)
    return [note for note in getattr(error, "__notes__", ()) if place and note.startswith(place)]


def _mark(error: Exception, place: str, device: str) -> None:
    vars(error).update({_PLACE: place, _DEVICE: device})


def _made(description: ErrorDescription) -> Exception:
    """One that says the same, of the class that is nearest to that of the error."""
    text, arguments = description["text"], description["arguments"]
    for module, name in description["classes"]:
        error_class = _known(module, name)
        if error_class is None:
            continue
        for make in (_called, _filled, _with_text):
            try:
                error = make(error_class, (text,) if arguments is None else tuple(arguments), text)
                vars(error).update(description["attributes"])
                if str(error) == text:
                    return error
            except Exception:  # whatever a class of somebody else's may raise
                continue
    raise AssertionError("Exception itself can always be made")


def _called(error_class: type[Exception], arguments: tuple[Any, ...], _: str) -> Exception:
    return error_class(*arguments)


def _filled(error_class: type[Exception], arguments: tuple[Any, ...], _: str) -> Exception:
    """For a class whose arguments are not those of its ``__init__``."""
    error = error_class.__new__(error_class, *arguments)
    error.args = arguments
    return error


def _with_text(error_class: type[Exception], _: tuple[Any, ...], text: str) -> Exception:
    """For a class that says something else without what could not travel."""

    class WithText(error_class):  # type: ignore[misc, valid-type]
        def __str__(self) -> str:
            return text

    WithText.__name__, WithText.__module__ = error_class.__name__, error_class.__module__
    error: Exception = WithText.__new__(WithText)
    return error


def _known(module: str, name: str) -> type[Exception] | None:
    """The class of that name, in a module that this process has loaded."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, type) and issubclass(value, Exception) else None


def _own_frames(error: Exception) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith((_LIBRARY, "<frozen"))]
