"""Results of calls that the job has passed, for workers that join later and run the script from the top."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from virtualflow.core.membership import Membership
from virtualflow.errors import CollectiveError, PeerLostError
from virtualflow.train.shared_errors import described, remade

_ERROR = "error"


class Recorded:
    """Makes a call, or returns what it gave when the job made it.

    A *section* is the part of the script before the first epoch, or that of an epoch before its batches: a worker that
    joins during the batches of an epoch has to pass through both, and through what lies *between* loops over epochs.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._begun = self._in_epochs = False
        self._past: deque[Any] = deque()
        self._expected: list[Any] = []  # the past, as long as the script is still before its loop
        self.between: list[Any] = []
        self.section: list[Any] = []
        self.in_pass = False

    def __call__(self, make: Callable[[], Any]) -> Any:
        if self._membership.joining:
            return _given(_from_json(self._membership.recorded()))
        error = None
        if passed := bool(self._past):
            result = self._past.popleft()
        else:
            try:
                result = make()
            except (PeerLostError, CollectiveError):
                raise
            except Exception as raised:  # the script may catch it, and does so again
                error, result = raised, {_ERROR: described(raised)}
        if self._begun and not self._in_epochs:
            self.between.append(result)
        elif not self.in_pass and not passed:
            self.section.append(result)
            if not self._begun:
                self._membership.record(_to_json(result))
        if error is not None:
            raise error
        return _given(result)

    def new_section(self) -> None:
        """An epoch begins."""
        self._reach_loop()
        self._in_epochs, self.in_pass = True, False
        self.section = list(self._past)

    def enter_loop(self) -> None:
        """Somebody else's loop begins, which knows by itself where the job is: nothing before it is made again."""
        self.new_section()
        self._past.clear()
        self.section, self.in_pass = [], True

    def leave_epochs(self) -> None:
        """A loop over epochs has ended, or there was nothing left of it to do."""
        self._reach_loop()
        self._in_epochs = self.in_pass = False

    def replay(self, results: list[Any]) -> None:
        """The calls that the job has made between loops, and in the current epoch, gave *results*."""
        self._expected = results

    def _reach_loop(self) -> None:
        self._begun = True
        if self._expected:
            self._past, self._expected = deque(self._expected), []


def _given(result: Any) -> Any:
    """*result* of a call, as the call gives it: an error is raised."""
    if isinstance(result, dict):
        raise remade(result[_ERROR])
    return result


def _to_json(result: Any) -> Any:
    """*result* as it can travel to a worker that joins: a number, None, an error, or the bytes of a tensor."""
    return {"bytes": base64.b64encode(result.numpy().tobytes()).decode()} if isinstance(result, Tensor) else result


def _from_json(result: Any) -> Any:
    if isinstance(result, dict) and "bytes" in result:
        return torch.frombuffer(bytearray(base64.b64decode(result["bytes"])), dtype=torch.uint8)
    return result
