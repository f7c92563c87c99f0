"""What sentinels have reported of a job's devices, each thing once, and which devices get no worker any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from virtualflow.job.wire_messages import VerdictReached


class VerdictReports:
    """Since the job was launched."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.drained: dict[str, None] = {}  # devices, in the order in which they were found

    def take_over(self, drained: Sequence[str], texts: Sequence[str]) -> None:
        """Know what the last coordinator knew."""
        self.texts = list(texts)
        self.drained = dict.fromkeys(drained)

    def note(self, found: VerdictReached) -> bool:
        """Keep what a worker has *found*; return whether no other one has said so before."""
        text = f"step {found.step}: {found.text}"
        if text in self.texts:
            return False
        self.texts.append(text)
        if found.drained:
            self.drained[found.device] = None
        return True

    @property
    def note_at_the_end(self) -> str:
        """For whoever started the job; empty if nothing was found."""
        return "the sentinel has found corrupted data:\n" + "\n".join(f"  {text}" for text in self.texts)
