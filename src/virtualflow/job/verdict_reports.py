"""What sentinels have reported of a job's devices, each thing once, and which devices get no worker any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from virtualflow.job.wire_messages import VerdictReached


class VerdictReports:
    """Since this coordinator began."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.drained: dict[str, None] = {}  # devices, in the order in which they were found
        self._known: set[tuple[int, str]] = set()

    def note(self, found: VerdictReached) -> bool:
        """Keep what a worker has *found*; return whether no other one has said so before."""
        key = (found.step, found.text)
        if key in self._known:
            return False
        self._known.add(key)
        self.texts.append(f"step {found.step}: {found.text}")
        if found.drained:
            self.drained[found.device] = None
        return True

    @property
    def note_at_the_end(self) -> str:
        """For whoever started the job; empty if nothing was found."""
        return "the sentinel has found corrupted data:\n" + "\n".join(f"  {text}" for text in self.texts)
