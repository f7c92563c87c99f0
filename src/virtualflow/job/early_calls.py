"""The results of calls that a job made before its first epoch, which workers that join later need."""

from __future__ import annotations

from virtualflow.job.wire_messages import EarlyResult


class EarlyCalls:
    """Every worker reports each result, so that none is missed when one is lost; the first report counts."""

    def __init__(self) -> None:
        self._results: list[EarlyResult] = []

    def add(self, result: EarlyResult) -> bool:
        """Keep *result*; return whether it is news."""
        is_new = result.call == len(self._results)
        if is_new:
            self._results.append(result)
        return is_new

    @property
    def results(self) -> tuple[EarlyResult, ...]:
        """In the order of the calls."""
        return tuple(self._results)
