"""An error that one worker alone meets is raised on all, or ends the job by its name: never as a riddle of another."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.conftest import Finished, Launcher

PROLOGUE = """
import os, sys, torch, virtualflow as vf
from tests.train.small import *
from virtualflow.train import solo
vf.seed(0)
model, data = mlp(), regression()
me = solo.current().device
here = lambda batch, row: bool((batch[0] == data.tensors[0][row].to(batch[0].device)).all(1).any())
"""
SKIPPING = """
def loss_fn(model, batch):
    if here(batch, 7):
        raise FloatingPointError("row 7 is too large")
    return mse(model, batch)

trainer = make(model, loss_fn, **OPTIONS)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        try:
            trainer.step(batch)
        except FloatingPointError as error:
            print(epoch, batch.step, repr(error))
print(trainer.global_step, trainer.digest())
"""


@pytest.fixture
def job(run_job: Launcher, tmp_path: Path):  # type: ignore[no-untyped-def]
    def run(body: str, devices: int = 2, **options: object) -> Finished:
        script = tmp_path / "script.py"
        script.write_text(PROLOGUE + textwrap.dedent(body))
        return run_job(script, devices, patience_seconds=600.0, **options)  # type: ignore[arg-type]

    return run


@pytest.mark.on_cuda_too
@pytest.mark.parametrize(
    ("options", "audit"),
    [("", False), ("reduction='fast'", False), ("loader_workers=1", False), ("", True)],
    ids=["exact", "fast", "loader process", "audit"],
)
def test_a_batch_that_fails_on_one_worker_is_skipped_by_all(job, options: str, audit: bool) -> None:  # type: ignore[no-untyped-def]
    body = SKIPPING.replace("**OPTIONS", options)
    alone, several = job(body, 1), job(body, 3, audit=audit)
    assert several.outcome.code == 0, several.failure
    assert alone.out().splitlines()[:-1] == several.out().splitlines()[:-1]
    assert alone.out().splitlines()[-1].startswith("8 ")  # of ten steps
    assert len({several.out(device) for device in "012"}) == 1 or audit  # which replaces a worker
    if not options.startswith("reduction"):
        assert alone.digest == several.digest


IN_BACKWARD = """
def loss_fn(model, batch):
    if not here(batch, 7):
        return mse(model, batch)
    def fail(_):
        raise FloatingPointError("row 7 is too large")
    hidden = model[0](batch[0])
    hidden.register_hook(fail)  # the layers after it have their gradients by then
    return ((model[1:](hidden) - batch[1]) ** 2).mean()
"""


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("fails_in", ["loss_fn", "backward"])
def test_a_batch_that_fails_on_one_worker_is_skipped_by_all_holders_of_sharded_state(
    job,  # type: ignore[no-untyped-def]
    devices: int,
    fails_in: str,
) -> None:
    body = SKIPPING.replace("**OPTIONS", "**options")
    if fails_in == "backward":
        body = IN_BACKWARD + body[body.index("trainer = make") :]
    alone = job("options = {}\n" + body, 1)
    sharded = job("options = {'sharding': 'state'}\n" + body, devices)
    assert sharded.outcome.code == 0, sharded.failure
    assert alone.out() == sharded.out()
    assert alone.out().splitlines()[-1].startswith("8 ")


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_an_error_that_nobody_catches_ends_the_job_with_virtual_node_device_and_cause(job, devices: int) -> None:  # type: ignore[no-untyped-def]
    finished = job(
        SKIPPING.replace("**OPTIONS", "").replace("except FloatingPointError", "except ZeroDivisionError"), devices
    )
    assert finished.outcome.code == 1
    assert finished.outcome.failure is not None
    assert finished.outcome.failure.cause == "FloatingPointError"
    node = int(finished.failure.split("virtual node ")[1].split(",")[0])
    device = str(node * devices // 4)
    assert f"virtual node {node}, on device {device}." in finished.failure.splitlines()[0]
    assert finished.outcome.failure.device == device
    assert "in loss_fn" in finished.failure
    assert finished.failure.rstrip().endswith("FloatingPointError: row 7 is too large")
    assert finished.failure.count("Traceback") == 1


def test_of_several_errors_the_one_of_the_first_virtual_node_counts_on_any_devices(job) -> None:  # type: ignore[no-untyped-def]
    body = """
    def loss_fn(model, batch):
        raise ValueError(f"{float(batch[0].sum()):.6f}")

    trainer = make(model, loss_fn)
    for _ in trainer.epochs(1):
        for batch in trainer.batches(data):
            try:
                trainer.step(batch)
            except ValueError as error:
                print(error)
    """
    assert len({job(body, devices).out() for devices in (1, 2, 3)}) == 1


def test_a_weight_that_only_one_worker_has_is_refused_on_all(job) -> None:  # type: ignore[no-untyped-def]
    body = """
    from virtualflow.errors import LossError

    def loss_fn(model, batch):
        return mse(model, batch), torch.tensor(-1.0 if here(batch, 7) else 2.0)

    trainer = make(model, loss_fn)
    for _ in trainer.epochs(1):
        for batch in trainer.batches(data):
            try:
                trainer.step(batch)
            except LossError as error:
                print(batch.step, error)
    print(trainer.digest())
    """
    alone, several = job(body, 1), job(body, 3)
    assert several.outcome.code == 0, several.failure
    assert alone.out() == several.out()
    assert len(alone.out().splitlines()) == 2


def test_the_worker_that_has_met_an_error_may_die_of_it(job, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    body = f"""
    from virtualflow.core import faults

    def loss_fn(model, batch):
        if me == "1" and trainer.global_step == 2 and not os.path.exists({str(tmp_path / "died")!r}):
            open({str(tmp_path / "died")!r}, "w").close()
            faults.arm(lambda point: os.kill(os.getpid(), 9) if point == "after the scalars" else None)
            raise OSError("a failing device")
        return mse(model, batch)

    trainer = make(model, loss_fn)
    train(trainer, data)
    print(trainer.digest())
    """
    finished = job(body, 3)
    assert finished.outcome.code == 0, finished.failure
    assert (tmp_path / "died").exists()
    assert finished.digest == job(body, 1).digest


CALLS = {
    "evaluate": "trainer.evaluate(data, lambda model, batch: (fail(batch).sum(), 1))",
    "predict": "trainer.predict(data, lambda model, batch: fail(batch))",
    "map": "trainer.map(data, lambda model, batch: fail(batch))",
    "once": "trainer.once(lambda: fail(data[7:8]))",
    "a result that can't travel": "trainer.map(data, lambda model, batch: open if here(batch, 7) else 0)",
    "broadcast": "trainer.broadcast(open)",
    "gather": "trainer.gather(open if me == '1' else 1)",
    "save": "trainer.save('/proc/nowhere/model.pt')",
    "export": "trainer.export('/proc/nowhere/model.pt')",
}


@pytest.mark.parametrize("call", CALLS)
def test_what_fails_on_one_worker_of_a_call_is_caught_on_all(job, call: str) -> None:  # type: ignore[no-untyped-def]
    body = f"""
    def fail(batch):
        if here(batch, 7):
            raise FileNotFoundError(2, "No such file or directory", "row-7")
        return batch[0]

    trainer = make(model)

    def attempt():
        try:
            {CALLS[call]}
        except Exception as error:
            print(type(error).__name__, str(error).splitlines()[0])

    attempt()
    for _ in trainer.epochs(2):
        attempt()
        for batch in trainer.batches(data):
            trainer.step(batch)
        attempt()
    print(trainer.digest())
    """
    finished = job(body, 2)
    assert finished.outcome.code == 0, finished.failure
    lines = finished.out().splitlines()
    assert len(lines) == 6
    assert len(set(lines[:5])) == 1
    assert "CollectiveError" not in lines[0]
    assert finished.out("0") == finished.out("1")
    if call in ("evaluate", "predict", "map", "once"):
        assert lines[0] == "FileNotFoundError [Errno 2] No such file or directory: 'row-7'"


def test_an_update_that_fails_on_one_worker_alone_is_named_by_the_next_call(job) -> None:  # type: ignore[no-untyped-def]
    finished = job(
        """
        def on_gradients(model):
            if trainer.global_step == 2 and me == "1":
                raise OSError("No space left on device")

        trainer = make(model, on_gradients=on_gradients)
        for _ in trainer.epochs(2):
            for batch in trainer.batches(data):
                try:
                    trainer.step(batch)
                except OSError:
                    continue
        """,
        3,
    )
    assert finished.outcome.code == 1
    assert finished.outcome.failure is not None
    assert finished.outcome.failure.cause == "CollectiveError"
    assert "on device 1, trainer.step (global step 2) has raised OSError: No space left on device" in finished.failure


@pytest.mark.parametrize("call", ["gather(len(batch[0]))", "broadcast(1)", "evaluate(data, accuracy)", "once(print)"])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_call_that_all_make_together_is_refused_in_a_loss(job, call: str, devices: int) -> None:  # type: ignore[no-untyped-def]
    finished = job(
        f"""
        def loss_fn(model, batch):
            trainer.{call}
            return mse(model, batch)

        trainer = make(model, loss_fn)
        train(trainer, data)
        """,
        devices,
    )
    assert finished.outcome.failure is not None
    assert finished.outcome.failure.cause == "ConfigError"
    assert f"loss_fn has called trainer.{call.partition('(')[0]}" in finished.failure
    assert "This was in step 0, virtual node 0, on device 0." in finished.failure
