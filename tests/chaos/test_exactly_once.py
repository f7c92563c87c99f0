"""Exactly-once data through deaths and resizes, from the indices with which ``dataset[i]`` was really called.

Every call is written down where it happens, with the step, the virtual node and the attempt that it was made for; the
event stream says which attempt at each step was committed. What a dead worker has loaded can't be taken back, and
after a death a step is computed again, so a shard may have been loaded more than once. What can be shown, and is:

- for every attempt up to the committed one, each virtual node's shard was loaded, all of it and nothing else;
- no attempt after the committed one was ever begun;
- so, a shard that was computed again counted once, each example counts exactly once in each epoch;
- a shard is loaded more than once only in a step in which a worker was lost, and then once more for each loss;
- where nobody is lost, no resize makes anybody load anything twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.chaos.harness import Chaos, Strike, schedule
from tests.conftest import Finished
from virtualflow.backends.local import LocalBackend
from virtualflow.core.sharding import Epoch, node_sizes, shuffled

EXAMPLES, BATCH_SIZE, VIRTUAL_NODES, SEED = 90, 16, 8, 1  # of the chaos job
STEPS_PER_EPOCH = -(-EXAMPLES // BATCH_SIZE)
Shard = tuple[int, ...]
pytestmark = pytest.mark.on_cuda_too(some=[])


class Loads:
    """Which shards were loaded: by global step, attempt and virtual node, once for each time by each process."""

    def __init__(self, finished: Finished) -> None:
        self.shards: dict[tuple[int, int, int], list[Shard]] = defaultdict(list)
        for file in (finished.folder / "ids").glob("ids-*"):
            self._read(file)

    def _read(self, file: Path) -> None:
        """A process loads one shard after another; a kill may cut off the last one."""
        rows = [tuple(map(int, line.split())) for line in file.read_text().splitlines()]
        while rows:
            epoch, step, node, attempt, _ = rows[0]
            key = (epoch * STEPS_PER_EPOCH + step, attempt, node)
            size = len(shard_of(key[0], node))
            shard, rows = rows[:size], rows[size:]
            assert {row[:4] for row in shard} == {(epoch, step, node, attempt)}
            if len(shard) == size:
                self.shards[key].append(tuple(row[4] for row in shard))


@cache
def shard_of(global_step: int, node: int) -> Shard:
    """What the virtual node's shard has to be, from the seed alone."""
    number, step = divmod(global_step, STEPS_PER_EPOCH)
    epoch = Epoch(number, shuffled(SEED, number, EXAMPLES), node_sizes(BATCH_SIZE, VIRTUAL_NODES))
    return tuple(epoch.batch(step).shards[node].tolist())


def assert_exactly_once(finished: Finished, epochs: int) -> dict[int, int]:
    """Hold *finished* to all of the above; return how often each step was computed again."""
    assert finished.outcome.code == 0, finished.failure
    loads = Loads(finished)
    committed = {step.step: step.attempts - 1 for step in finished.steps}
    assert sorted(committed) == list(range(epochs * STEPS_PER_EPOCH))
    expected = {
        (step, attempt, node): shard_of(step, node)
        for step, last in committed.items()
        for attempt in range(last + 1)
        for node in range(VIRTUAL_NODES)
        if shard_of(step, node)
    }
    assert loads.shards.keys() == expected.keys()
    for key, shard in expected.items():
        assert set(loads.shards[key]) == {shard}
    counted = {epoch: Counter[int]() for epoch in range(epochs)}
    for (step, attempt, _), shards in loads.shards.items():
        if attempt == committed[step]:
            counted[step // STEPS_PER_EPOCH].update(shards[0])
    assert counted == {epoch: Counter(range(EXAMPLES)) for epoch in range(epochs)}
    again: dict[int, int] = {}
    for (step, _, _), shards in loads.shards.items():
        if len(shards) > 1:
            again[step] = max(again.get(step, 0), len(shards) - 1)
    losses = Counter(change.step - 1 for change in finished.changes if change.cause == "loss")
    # A loss at a boundary is told with the step before it, though some workers may have begun the next one.
    assert all(times <= losses[step] + losses[step - 1] for step, times in again.items()), (again, losses)
    return again


def test_resizes_alone_make_nobody_load_an_example_twice(backend: LocalBackend, tmp_path: Path) -> None:
    strikes = [Strike(5, "resize", devices=8), Strike(25, "resize", devices=1), Strike(40, "resize", devices=6)]
    finished = Chaos(backend, tmp_path / "job").run(strikes, epochs=12, evaluate=False)
    assert assert_exactly_once(finished, epochs=12) == {}
    assert len(finished.changes) >= 2


def test_a_step_in_which_workers_die_is_computed_again_and_counts_once(backend: LocalBackend, tmp_path: Path) -> None:
    faults = [
        ("0", "backward", 9),
        ("1", "before the scalars", 17),
        ("2", "after the scalars", 25),
        ("3", "forward", 40),
    ]
    chaos = Chaos(backend, tmp_path / "job")
    finished = chaos.run([Strike(12, "resize", devices=7)], epochs=12, evaluate=False, faults=faults)
    assert len(list((finished.folder / "ids").glob("struck-*"))) == len(faults)
    assert assert_exactly_once(finished, epochs=12) != {}


def test_exactly_once_through_a_random_schedule(backend: LocalBackend, tmp_path: Path) -> None:
    chaos = Chaos(backend, tmp_path / "job", patience_seconds=3.0)
    finished = chaos.run(schedule(123, 8, 72), epochs=12, evaluate=False)
    assert_exactly_once(finished, epochs=12)
    assert chaos.done["kill"] >= 1
    assert chaos.done["resize"] >= 2
