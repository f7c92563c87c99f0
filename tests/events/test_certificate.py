"""Two runs are compared fact by fact."""

from __future__ import annotations

from typing import Any

from virtualflow.events import StepDone
from virtualflow.events.certificate import Certificate, compare

STEP = StepDone(0, 0, 1.0, (1.0).hex(), None, "ids", "chain", 4, 0.1, 1)


def run(**facts: Any) -> Certificate:
    return Certificate(facts, {0: STEP}, {})


def test_what_differs_of_an_accelerator_is_named() -> None:
    one = run(device_type="H100", accelerator={"driver": "570.1", "cuDNN": "9.1", "precision of convolutions": "tf32"})
    other = run(
        device_type="H100", accelerator={"driver": "580.2", "cuDNN": "9.1", "precision of convolutions": "ieee"}
    )
    verdict = compare(one, other)
    assert verdict.facts == (
        "the accelerator's driver: 570.1 and 580.2",
        "the accelerator's precision of convolutions: tf32 and ieee",
    )


def test_a_run_that_is_older_than_a_fact_differs_in_nothing_by_that() -> None:
    assert compare(run(device_type="cpu"), run(device_type="cpu", accelerator={})).facts == ()
