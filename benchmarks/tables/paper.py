"""Figures of the paper's experiments with one job, and of mixed devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.tables.raw import joined, results


def _percent(parts: Sequence[float], digits: int = 2) -> str:
    """ "1.0, 2.0 and 3.0%"."""
    return joined([f"{100 * part:.{digits}f}" for part in parts]) + "%"


def _same_batch() -> list[dict[str, Any]]:
    """Table 1: the runs with 8 virtual nodes."""
    return [each for each in results("paper")["results"]["reproducibility"] if "naive" in each]


def accuracy() -> str:
    found = {each["virtual"]["accuracy"] for each in _same_batch()}
    return " and ".join(f"{each:.2%}" for each in sorted(found))  # one, if it does not depend on the devices


def naive_accuracies() -> str:
    return _percent([each["naive"]["accuracy"] for each in _same_batch()])


def other_nodes() -> str:
    found = results("paper")["results"]["reproducibility"]
    return next(f"{each['virtual']['accuracy']:.2%}" for each in found if each.get("virtual_nodes") == 4)


def fine_tuned() -> str:
    found = {each["accuracy"] for each in results("paper")["results"]["fine-tuning"]}
    return " and ".join(f"{each:.1%}" for each in sorted(found))


def fine_tuned_naively() -> str:
    return _percent([each["naive"] for each in results("paper")["results"]["fine-tuning"]], 1)


def batch_sizes() -> str:
    found = results("paper")["results"]["batch sizes"]
    sizes = joined([str(each["batch_size"]) for each in found])
    return f"{_percent([each['virtual']['accuracy'] for each in found])} at batch {sizes}"


def _summary() -> dict[str, Any]:
    found: dict[str, Any] = results("mixed")["results"]["summary"]
    return found


def mixed_errors() -> str:
    found = _summary()
    return f"mean {found['mean_error']:.1%}, worst {found['worst_error']:.1%} over {found['configurations']}"


def mixed_gains() -> str:
    found = _summary()
    return f"{found['ahead']}, by {100 * found['least_gain']:.0f} to {found['largest_gain']:.0%}"


def straggler() -> str:
    found = results("mixed")["results"]["straggler"]
    moves = joined([str(step) for step in found["moves"]])
    return f"virtual nodes move at step {moves}, throughput is {found['part']:.0%} of the new optimum"


FIGURES: dict[str, Callable[[], str]] = {
    "paper.accuracy": accuracy,
    "paper.naive": naive_accuracies,
    "paper.other-nodes": other_nodes,
    "paper.fine-tuned": fine_tuned,
    "paper.fine-tuned-naively": fine_tuned_naively,
    "paper.batch-sizes": batch_sizes,
    "mixed.errors": mixed_errors,
    "mixed.gains": mixed_gains,
    "mixed.straggler": straggler,
}
