"""How many steps a job makes in all, as far as its stream has shown it."""

from __future__ import annotations

from virtualflow.events import EpochStarted, RunStarted, StepDone
from virtualflow.events.step_total import StepTotal


def step(number: int, epoch: int = 0, batch: int | None = None, phase: str = "") -> StepDone:
    of_epoch = number if batch is None else batch
    return StepDone(number, epoch, 0.5, "0x1p-1", None, "00000000", "0" * 16, 8, 0.1, 1, phase=phase, batch=of_epoch)


def total_of(*events: RunStarted | EpochStarted | StepDone) -> int | None:
    total = StepTotal()
    for event in events:
        total.add(event)
    return total.steps


def test_nothing_is_known_before_an_epoch_has_begun() -> None:
    assert total_of(RunStarted({}, ["0"], ["0"], 1), step(0)) is None


def test_every_batch_of_every_epoch_is_a_step() -> None:
    assert total_of(EpochStarted(0, 3, 5, 0), step(0), step(1)) == 15


def test_a_batch_that_is_several_phases_is_as_many_steps() -> None:
    began = EpochStarted(0, 2, 5, 0)
    phases = [step(number, batch=number // 2, phase="dg"[number % 2]) for number in range(6)]
    assert total_of(began, *phases) == 20
    assert total_of(began, phases[0]) == 10  # the first of a batch: there may be no other
    assert total_of(began, *phases[:2]) == 20


def test_an_epoch_of_another_length_keeps_the_steps_of_a_batch() -> None:
    first, second = EpochStarted(0, 2, 5, 0), EpochStarted(1, 2, 10, 10)
    phases = [step(number, batch=number // 2, phase="dg"[number % 2]) for number in range(4)]
    assert total_of(first, *phases, second) == 40
    assert total_of(first, second) == 20
