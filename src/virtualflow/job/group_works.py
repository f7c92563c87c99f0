"""Collectives and messages under way, with what torch and gloo get wrong about their ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import Tensor

from virtualflow.errors import PeerLostError
from virtualflow.job.message_waits import MessageWaits

LOOK = timedelta(seconds=0.25)  # between two looks at whether a collective can still end
STILL_SECONDS = 0.05
GLOO_THREAD = "pt_gloo_runloop"  # what torch calls those that carry out collectives


class TorchWork:
    """A collective under way, which fails with an error of ours. Once it has ended it holds no tensors."""

    def __init__(self, work: Any, is_closed: Callable[[], bool] | None = None) -> None:
        """*is_closed* says whether gloo has closed all connections of its group; of other libraries nobody knows."""
        self._work = work
        self._is_closed = is_closed
        self.is_given_up = False

    def is_done(self) -> bool:
        return self._work is None or bool(self._work.is_completed())

    def wait(self) -> None:
        """Wait for it. Raises PeerLostError if it fails, or can't end any more.

        Gloo wakes nobody who waits for what was on its way when its connection broke. Such a wait would last for the
        whole patience: it is given up once nothing can touch a buffer any more. A collective that waits for one of
        gloo's threads, since others of that kind have them, fails as soon as it begins.
        """
        if self._work is None:
            return
        try:
            self._wait()
        except RuntimeError as error:
            raise PeerLostError(
                f"a worker of this job went away or is late: {str(error).splitlines()[0]}. If it was only slow, raise "
                "`vf run --patience`."
            ) from None
        if self._work.is_completed():  # those on a device go on after the wait
            self._work = None

    def leave(self) -> None:
        """Wait until it can't touch a buffer any more, in a group whose connections were cut."""
        if not self.is_given_up:
            with contextlib.suppress(PeerLostError):
                self.wait()

    def outlast(self) -> None:
        """Wait until a work that was given up has come to its time limit."""
        with contextlib.suppress(RuntimeError):
            self._work.wait()

    def _wait(self) -> None:
        if self._is_closed is None:
            self._work.wait()
            return
        while not self._has_ended(self._is_closed):
            pass

    def _has_ended(self, is_closed: Callable[[], bool]) -> bool:
        if self.is_given_up:
            raise RuntimeError("a connection was closed in the middle of a collective")
        try:
            self._work.wait(LOOK)
        except RuntimeError:
            if self._work.is_completed():  # it has failed, or has ended just now
                self._work.wait()
                return True
            self.is_given_up = is_closed() and _gloo_stands_still()
            return False
        return True


class StagedWork(TorchWork):
    """One on copies that lie on the host, of tensors that the group can't reach; ``wait`` copies the result back."""

    def __init__(
        self, work: Any, is_closed: Callable[[], bool] | None, tensors: list[Tensor], copies: list[Tensor]
    ) -> None:
        super().__init__(work, is_closed)
        self._pairs = list(zip(tensors, copies, strict=True))

    def wait(self) -> None:
        super().wait()
        for tensor, copy in self._pairs:
            tensor.copy_(copy)
        self._pairs.clear()  # a second wait must not overwrite what was computed since


class MessageWork(TorchWork):
    """A message between two workers, from or into a copy on the host where they have accelerators.

    A second wait for one of gloo's would block, and close the connection; and none is ever done before the first.
    """

    def __init__(self, work: Any, waits: MessageWaits, tensor: Tensor, copy: Tensor, *, arrives: bool) -> None:
        super().__init__(work)
        self._waits = waits
        self._held = [tensor, copy]
        self._is_sent = not arrives
        self._is_over = False

    def is_done(self) -> bool:
        return self._is_over

    def wait(self) -> None:
        if self._is_over:
            return
        super().wait()
        self._is_over = True
        tensor, copy = self._held
        if copy is not tensor and not self._is_sent:
            tensor.copy_(copy)
        self._held.clear()

    def leave(self) -> None:
        if not self._is_sent:  # what is sent is only read
            self._waits.wait_until_closed()
        self._is_over = True

    def _wait(self) -> None:
        self._waits.wait(self._work)


def _gloo_stands_still() -> bool:
    """Whether all threads that carry out gloo's collectives in this process sleep, and have not woken up meanwhile."""
    before = _switches()
    time.sleep(STILL_SECONDS)
    return bool(before) and before == _switches()


def _switches() -> list[str] | None:
    """How often each of gloo's threads has gone to sleep; None if one of them is awake."""
    counts = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended
            if (task / "comm").read_text().strip() == GLOO_THREAD:
                status = (task / "status").read_text()
                if "State:\tS" not in status:
                    return None
                counts += [f"{task.name} {line}" for line in status.splitlines() if "ctxt_switches" in line]
    return sorted(counts)
