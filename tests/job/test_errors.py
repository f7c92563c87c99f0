"""What goes wrong in a job: each says what, why and what to do; none hangs; no worker is left waiting."""

from __future__ import annotations

import socket
import textwrap
from pathlib import Path

import pytest

from tests.conftest import Finished, Launcher
from virtualflow.errors import LaunchError
from virtualflow.job.listener import listen

NO_END = {"patience_seconds": 600.0}  # longer than a test may take: whoever waits for that has failed
PROLOGUE = """
import os, sys, time, torch, virtualflow as vf
from tests.train.small import *
from virtualflow.train import solo
vf.seed(0)
model = mlp()
"""


@pytest.fixture
def job(run_job: Launcher, tmp_path: Path):  # type: ignore[no-untyped-def]
    def run(body: str, devices: int = 2, prologue: str = PROLOGUE, **options: object) -> Finished:
        script = tmp_path / "script.py"
        script.write_text(prologue + textwrap.dedent(body))
        return run_job(script, devices, **options)  # type: ignore[arg-type]

    return run


TRAIN = """
trainer = make(model)
me = solo.current().device
"""


def test_more_devices_than_virtual_nodes(job) -> None:  # type: ignore[no-untyped-def]
    finished = job("make(model, virtual_nodes=2)", devices=3)
    assert finished.outcome.code == 1
    assert "cannot map 2 virtual nodes onto 3 devices" in finished.failure
    assert "Use at most 2 devices" in finished.failure
    assert "job/worker.py" not in finished.failure


def test_batch_size_below_virtual_nodes(job) -> None:  # type: ignore[no-untyped-def]
    finished = job("make(model, batch_size=3, virtual_nodes=4)")
    assert "batch_size=3 is below virtual_nodes=4" in finished.failure


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("m(b[0]).squeeze(1)", "a tensor of shape (2,), expected one number"),
        ("3.0", "returned a float, which has no gradient"),
        ("mse(m, b).detach()", "does not depend on any parameter"),
        ("(mse(m, b), 1, 2)", "a tuple of 3 values"),
        ("(mse(m, b), 0)", "add up to 0"),
    ],
)
def test_a_loss_fn_that_returns_something_else(job, returned: str, message: str) -> None:  # type: ignore[no-untyped-def]
    finished = job(f"train(make(model, lambda m, b: {returned}), regression())")
    assert message in finished.failure


NAN = """
def loss_fn(model, batch):
    here = trainer.global_step == 2 and bool((batch[0] == data.tensors[0][marked].to(batch[0].device)).all(1).any())
    return mse(model, batch) * (float("nan") if here else 1.0)
data = regression()
trainer = make(model, loss_fn, on_nan=%r)
from virtualflow.core.sharding import Epoch, shuffled
marked = int(Epoch(0, shuffled(0, 0, 40), [2] * 4).batch(2).shards[3][1])
"""


@pytest.mark.on_cuda_too
def test_a_nan_loss_names_the_step_and_the_virtual_node(job) -> None:  # type: ignore[no-untyped-def]
    finished = job(NAN % "raise" + "train(trainer, data)", devices=3, **NO_END)
    assert "in step 2, virtual node 3, the loss is nan" in finished.failure
    assert finished.outcome.code == 1


@pytest.mark.on_cuda_too
def test_a_nan_loss_can_be_trained_through(job) -> None:  # type: ignore[no-untyped-def]
    finished = job(NAN % "continue" + "print(len(train(trainer, data)))", devices=3)
    assert finished.digest == "5"


@pytest.mark.on_cuda_too
def test_a_gradient_that_is_not_finite_names_the_parameter(job) -> None:  # type: ignore[no-untyped-def]
    finished = job("train(make(model, lambda m, b: (m(b[0]) * 0).abs().sqrt().mean()), regression())")
    assert "the gradient of" in finished.failure
    assert "virtual node 0" in finished.failure


@pytest.mark.parametrize("where", ["0", "2"])
def test_a_script_that_raises_on_one_worker_stops_all(job, where: str) -> None:  # type: ignore[no-untyped-def]
    finished = job(
        TRAIN
        + f"""
for _ in trainer.epochs(50):
    for batch in trainer.batches(regression()):
        trainer.step(batch)
        if trainer.global_step == 3 and me == "{where}":
            raise ValueError("only here")
""",
        devices=4,
        **NO_END,
    )
    assert finished.outcome.code == 1
    assert finished.outcome.failure is not None
    assert finished.outcome.failure.device == where
    assert finished.failure.count("Traceback") == 1
    assert finished.failure.rstrip().endswith("ValueError: only here")
    assert all(not finished.err(device) for device in "0123")


def test_the_exit_code_is_the_scripts(job) -> None:  # type: ignore[no-untyped-def]
    assert job("sys.exit(7)").outcome.code == 7
    assert job("sys.exit()", devices=1).outcome.code == 0
    finished = job("sys.exit('bad data')")
    assert finished.outcome.code == 1
    assert "bad data" in finished.err()


def test_a_message_of_sys_exit_is_heard_from_any_worker(job) -> None:  # type: ignore[no-untyped-def]
    finished = job(
        """
from virtualflow.train import solo
if solo.installed().device == "0":
    time.sleep(1)
sys.exit("no such data file")
"""
    )
    assert finished.outcome.code == 1
    assert "no such data file" in finished.failure


def test_a_worker_that_makes_another_call_gets_an_error_that_names_both(job) -> None:  # type: ignore[no-untyped-def]
    finished = job(
        TRAIN
        + """
for _ in trainer.epochs(1):
    for batch in trainer.batches(regression()):
        if trainer.global_step == 2 and trainer.is_lead:
            trainer.evaluate(regression(), lambda m, b: (0, 1))
        trainer.step(batch)
"""
    )
    assert "device 0 called evaluate" in finished.failure
    assert "device 1 called step" in finished.failure
    assert "is_lead" in finished.failure


def test_a_worker_that_ends_early_is_named(job) -> None:  # type: ignore[no-untyped-def]
    finished = job(
        TRAIN
        + """
for _ in trainer.epochs(1):
    for batch in trainer.batches(regression()):
        if trainer.global_step == 2 and me == "1":
            sys.exit(0)
        trainer.step(batch)
"""
    )
    assert finished.outcome.code == 1
    assert "device 1 called end of the script" in finished.failure


def test_workers_that_start_from_different_models_are_told(job) -> None:  # type: ignore[no-untyped-def]
    finished = job("model[0].weight.data += float(os.getpid())\nmake(model)")
    assert "On device 1, 0.weight is" in finished.failure


def test_without_a_seed_the_leads_model_goes_to_all(job) -> None:  # type: ignore[no-untyped-def]
    finished = job(
        """
torch.manual_seed(os.getpid())
model = mlp()
trainer = vf.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, batch_size=8, virtual_nodes=4)
train(trainer, regression())
print(trainer.digest())
""",
        devices=3,
        prologue=PROLOGUE.replace("vf.seed(0)\n", ""),
    )
    assert {finished.out(device) for device in "012"} == {finished.out()}
    assert not finished.certificate.facts["seeded"]


def test_out_of_memory_on_one_worker_says_what_to_do(job) -> None:  # type: ignore[no-untyped-def]
    finished = job(
        """
import resource
def loss_fn(model, batch):
    if trainer.global_step == 1 and solo.current().device == "1":
        resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
        torch.empty(2**34)
    return mse(model, batch)
trainer = make(model, loss_fn)
train(trainer, regression())
""",
        **NO_END,
    )
    assert finished.outcome.code == 1
    assert "out of memory in step 1, virtual node 2 with 2 examples" in finished.failure
    assert "more virtual nodes" in finished.failure


def test_a_script_that_kills_every_worker_does_not_loop_for_ever(job) -> None:  # type: ignore[no-untyped-def]
    finished = job(
        TRAIN
        + """
for _ in trainer.epochs(50):
    for batch in trainer.batches(regression()):
        trainer.step(batch)
        if trainer.global_step >= 3:
            os.kill(os.getpid(), 9)
""",
        devices=2,
        **NO_END,
    )
    assert finished.outcome.code == 137
    assert "was killed by SIGKILL" in finished.failure
    assert "lost" in finished.failure


@pytest.mark.on_cuda_too
def test_a_late_worker_is_replaced_and_the_job_goes_on(job, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    finished = job(
        TRAIN
        + """
for _ in trainer.epochs(1):
    for batch in trainer.batches(regression()):
        if trainer.global_step == 2 and me == "1" and not os.path.exists("late"):
            open("late", "w").close()
            time.sleep(60)
        trainer.step(batch)
print(trainer.global_step)
""".replace('"late"', repr(str(tmp_path / "late"))),
        patience_seconds=2.0,
    )
    assert finished.digest == "5"
    assert [(change.cause, change.left) for change in finished.changes][:1] == [("loss", ["1"])]


def test_a_port_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(LaunchError, match=r"port \d+ cannot be used: Address already in use.*--listen"):
            listen("127.0.0.1", taken.getsockname()[1])


def test_a_forward_that_writes_parameters_is_refused_by_name(job) -> None:  # type: ignore[no-untyped-def]
    finished = job(
        """
def loss_fn(model, batch):
    with torch.no_grad():
        model[0].weight.mul_(1.01)
    return mse(model, batch)
train(make(model, loss_fn), regression())
"""
    )
    assert "wrote to the parameter 0.weight" in finished.failure


def test_integer_buffers_must_agree(job) -> None:  # type: ignore[no-untyped-def]
    finished = job(
        """
model.register_buffer("count", torch.zeros((), dtype=torch.int64))
def loss_fn(model, batch):
    model.count += int(batch[0].sum() * 1000)
    return mse(model, batch)
train(make(model, loss_fn), regression())
"""
    )
    assert "integer buffer (count)" in finished.failure


HIDDEN = """
class Hidden(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = torch.nn.Linear(6, 1), 0
    def forward(self, x):
        self.calls += 1
        return self.linear(x) * (1 + 0.01 * self.calls)
train(make(Hidden()), regression())
"""


def test_a_counter_in_a_module_is_refused_in_the_first_step(job) -> None:  # type: ignore[no-untyped-def]
    finished = job(HIDDEN)
    assert "keeps something in 'calls'" in finished.failure
    assert not finished.steps


LATER = HIDDEN.replace("0.01 * self.calls", "(self.calls > 9)")


def test_the_audit_finds_a_counter_in_a_module_that_counts_later(job) -> None:  # type: ignore[no-untyped-def]
    assert job(LATER).outcome.code == 0
    finished = job(LATER, audit=True)
    assert "hidden state: in step" in finished.failure
    assert finished.outcome.failure is not None
    assert finished.outcome.failure.cause == "HiddenStateError"


def test_the_audit_passes_a_clean_script(job) -> None:  # type: ignore[no-untyped-def]
    finished = job("train(make(torch.nn.Sequential(mlp(), torch.nn.Dropout(0.1))), regression())", audit=True)
    assert finished.outcome.code == 0
    assert all(step.accumulator for step in finished.steps)


FORGOTTEN = """
factor = 1.0
trainer = make(mlp(), lambda m, b: mse(m, b) * factor)
for _ in trainer.epochs(3):
    for batch in trainer.batches(regression()):
        trainer.step(batch)
        factor *= 0.9
"""


@pytest.mark.parametrize("devices", [1, 2])
def test_the_audit_finds_a_variable_that_a_worker_that_joins_does_not_have(job, devices: int) -> None:  # type: ignore[no-untyped-def]
    finished = job(FORGOTTEN, devices, audit=True)
    assert "HiddenStateError" in finished.failure
    assert "a variable of the script" in finished.failure


def test_what_a_script_draws_without_a_seed_is_the_same_on_every_worker(run_job: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import random, numpy, torch\nfrom tests.train.small import *\n"
        "print(random.random(), numpy.random.rand(), float(torch.rand(())))\nmake(mlp())\n"
    )
    finished = run_job(script, 2)
    assert finished.outcome.code == 0, finished.failure
    assert finished.out("0") == finished.out("1") != ""
