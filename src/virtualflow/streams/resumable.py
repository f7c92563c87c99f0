"""An iterable under way, and where it stands, if it can say so."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any


class Resumable:
    """Iterates over *source*, from *state* on if that is not None.

    ``state_dict`` and ``load_state_dict`` may be those of the iterable (as Hugging Face has them) or of its iterator.
    """

    def __init__(self, source: Any, state: Any = None) -> None:
        self._source = source
        by_source = hasattr(source, "load_state_dict")
        if state is not None and by_source:
            self._source.load_state_dict(copy.deepcopy(state))
        self._iterator: Any = iter(source)
        if state is not None and not by_source:
            self._iterator.load_state_dict(copy.deepcopy(state))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)

    def state(self) -> Any:
        """From here on it could go on; None if it can't."""
        for holder in (self._source, self._iterator):
            if hasattr(holder, "state_dict") and hasattr(holder, "load_state_dict"):
                return copy.deepcopy(holder.state_dict())
        return None
