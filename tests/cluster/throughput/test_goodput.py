"""Goodput: the model of steps and batch sizes, against hand-made numbers and against what Pollux' authors measured."""

from __future__ import annotations

import math

import pytest

from virtualflow.cluster.job import Job
from virtualflow.cluster.throughput.goodput import Application, StepSeconds
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.sim.pollux_applications import applications, beside

TIMES = StepSeconds(0.1, 0.01, 0.4, 0.02, 0.2, 0.01, 1.0, 8, 64)
FIXED = beside(Profiled())
ADAPTING = FIXED.adapting()


def test_a_step_computes_and_communicates() -> None:
    assert TIMES.seconds(1, 1, 32, 128) == pytest.approx(0.1 + 0.32)
    assert TIMES.seconds(1, 4, 128, 128) == pytest.approx(0.42 + 0.2 + 2 * 0.01)
    assert TIMES.seconds(2, 4, 128, 128) == pytest.approx(0.42 + 0.4 + 2 * 0.02)


def test_what_does_not_fit_is_computed_in_parts_before_one_communication() -> None:
    assert TIMES.seconds(1, 2, 256, 128) == pytest.approx(2 * (0.1 + 0.64) + 0.2)


def test_a_large_batch_on_one_device_has_two_parts_at_least() -> None:
    assert TIMES.seconds(1, 1, 32, 16) == pytest.approx(2 * (0.1 + 0.16))


def test_devices_with_too_few_examples_can_not_take_part() -> None:
    assert TIMES.seconds(1, 4, 16, 16) == math.inf


def test_between_measured_batch_sizes_steps_are_on_a_line_of_logarithms() -> None:
    application = Application(64, ((16, 1000.0), (64, 250.0)), {"T4": TIMES})
    assert application.steps_at(16) == 1000.0
    assert application.steps_at(64) == 250.0
    assert application.steps_at(32) == pytest.approx(500.0)


# Seconds of a step that Pollux' authors measured on 1, 4 and 16 T4, four on a machine (simulator/traces/cifar10, 128
# examples on each, between 91 and 129), and those of a whole training of their Tiresias jobs alone on their devices.
def test_cifar10_takes_as_long_as_measured() -> None:
    times = applications()["pollux/cifar10"].types["T4"]
    assert times.seconds(1, 1, 129, 10**6) == pytest.approx(0.1039, rel=0.1)
    job = Job("x", 0.0, 6, applications()["pollux/cifar10"].steps_at(2048), "pollux/cifar10", virtual_nodes=2048)
    alone = job.steps / FIXED.speed(job, parse_pools("T4:4+2")).steps_per_second
    assert alone == pytest.approx(950, rel=0.05)


def test_a_job_that_adapts_is_never_slower_and_uses_more_devices() -> None:
    for name, application in applications().items():
        job = Job("x", 0.0, 4, 1000.0, name, virtual_nodes=application.smallest * 4)
        for devices in ("T4:1", "T4:4", "T4:4+4", "T4:4+4+4+4"):
            own, best = (each.speed(job, parse_pools(devices)).steps_per_second for each in (FIXED, ADAPTING))
            assert best >= own * 0.98 or application.most_devices == 1
        assert ADAPTING.most_devices(job) >= FIXED.most_devices(job)


def test_where_a_larger_batch_is_worth_little_few_devices_are_used() -> None:
    """cifar10 at 128 examples: 32 to a device at least."""
    job = Job("x", 0.0, 16, 1000.0, "pollux/cifar10", virtual_nodes=128)
    assert FIXED.most_devices(job) == 4
    assert FIXED.speed(job, parse_pools("T4:4+4+4+4")).devices <= 4
    assert ADAPTING.speed(job, parse_pools("T4:4+4+4+4")).devices == 16


def test_types_that_were_not_measured_are_not_usable_and_other_workloads_are_as_before() -> None:
    job = Job("x", 0.0, 1, 1000.0, "pollux/bert", virtual_nodes=48)
    assert FIXED.usable(job, "T4")
    assert not FIXED.usable(job, "K80")
    other = Job("y", 0.0, 2, 100.0)
    assert FIXED.speed(other, parse_pools("K80:2")) == Profiled().speed(other, parse_pools("K80:2"))
