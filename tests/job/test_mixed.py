"""Jobs on devices that are not all alike: emulated types, real processes, real waiting."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import Finished, run_to_its_end
from virtualflow.backends.local import LocalBackend
from virtualflow.core import profile
from virtualflow.core.emulation import Emulated
from virtualflow.core.profile import Communication, Point, Profile, Workload
from virtualflow.events import ReplicasAligned, RunStarted
from virtualflow.job.folder import JobSpec

TRAIN = """
import sys, torch, virtualflow as vf
from tests.train.small import make, mlp, regression

vf.seed(0)
trainer = make(mlp(), batch_size=32, virtual_nodes={nodes}, {options})
for _ in trainer.epochs({epochs}):
    for batch in trainer.batches(regression(320)):
        trainer.step(batch)
print(trainer.digest())
"""
FAST, SLOW = 0.008, 0.024  # seconds of a virtual node


def workload(**seconds: float) -> Workload:
    profiles = {name: Profile(name, (Point(1, each), Point(16, each))) for name, each in seconds.items()}
    return Workload("train", profiles, Communication())


def run(backend: LocalBackend, folder: Path, devices: dict[str, Emulated | None], **options: object) -> Finished:
    script = folder / "train.py"
    folder.mkdir(parents=True, exist_ok=True)
    text = {"nodes": options.pop("nodes", 8), "epochs": options.pop("epochs", 1), "options": options.pop("given", "")}
    script.write_text(TRAIN.format(**text))
    emulated = {name: each.to_json() for name, each in devices.items() if each is not None}
    job = JobSpec.of("job", str(script), (), tuple(devices), emulated=emulated, **options)  # type: ignore[arg-type]
    return run_to_its_end(job, backend, folder / "job")


@pytest.fixture(scope="module")
def calm(backend: LocalBackend, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest on one plain device."""
    return run(backend, tmp_path_factory.mktemp("calm"), {"0": None}).out()


def started(finished: Finished) -> RunStarted:
    return next(event for event in finished.events if isinstance(event, RunStarted))


def by_points(seconds: float) -> Emulated:
    return Emulated(points=((1, seconds), (16, seconds)))


def test_virtual_nodes_are_mapped_by_speed_before_the_first_step_and_no_bit_changes(
    backend: LocalBackend, tmp_path: Path, calm: str
) -> None:
    devices = {"fast:0": by_points(FAST), "slow:0": by_points(SLOW)}
    known = profile.to_json(workload(fast=FAST, slow=SLOW))
    finished = run(backend, tmp_path, dict(devices), workload=known)
    assert Counter(started(finished).mapping) == {"fast:0": 6, "slow:0": 2}
    assert finished.out("fast:0") == calm
    assert "1 x fast with 6 virtual nodes each, 1 x slow with 2" in finished.err("fast:0")


def test_state_is_sharded_over_emulated_types(backend: LocalBackend, tmp_path: Path, calm: str) -> None:
    devices = {"fast:0": by_points(FAST), "slow:0": by_points(SLOW), "slow:1": by_points(SLOW)}
    known = profile.to_json(workload(fast=FAST, slow=SLOW))
    finished = run(backend, tmp_path, dict(devices), workload=known, given='sharding="state", copies=1')
    assert len(set(started(finished).mapping)) == 3
    assert finished.out("fast:0") == calm


def test_a_device_that_would_not_help_leaves(backend: LocalBackend, tmp_path: Path, calm: str) -> None:
    devices = {"fast:0": by_points(FAST), "slow:0": by_points(20 * FAST)}
    known = profile.to_json(workload(fast=FAST, slow=20 * FAST))
    finished = run(backend, tmp_path, dict(devices), workload=known)
    assert [change.left for change in finished.changes if change.left] == [["slow:0"]]
    assert finished.out("fast:0") == calm


def test_a_straggler_is_relieved_while_the_job_runs_and_no_bit_changes(backend: LocalBackend, tmp_path: Path) -> None:
    calm = run(backend, tmp_path / "calm", {"0": None}, epochs=5).out()
    slowed = Emulated(points=((1, FAST), (16, FAST)), slower_from=12, slower=3.0)
    devices = {"0": by_points(FAST), "1": slowed}
    finished = run(backend, tmp_path, dict(devices), rebalance=True, epochs=5)
    # On a busy machine both are slower than what they emulate, and when who is relieved how much varies.
    after = [Counter(change.mapping) for change in finished.changes if change.cause == "remap" and change.step > 12]
    assert any(nodes["1"] < nodes["0"] for nodes in after), "nobody was relieved"
    assert {change.cause for change in finished.changes} == {"remap"}  # nobody joined or left, no group was formed
    assert finished.out() == calm


def test_a_plan_fixes_node_sizes_and_mapping(backend: LocalBackend, tmp_path: Path) -> None:
    sizes = (8, 8, 8, 4, 4)
    one = run(backend, tmp_path / "one", {"0": None}, node_sizes=sizes)
    two = run(
        backend,
        tmp_path / "two",
        {"a:0": by_points(FAST), "b:0": by_points(FAST)},
        node_sizes=sizes,
        owners=(0, 0, 0, 1, 1),
    )
    assert one.out() == two.out("a:0")
    assert started(two).facts["node_sizes"] == list(sizes)
    assert started(two).mapping == ["a:0"] * 3 + ["b:0"] * 2


def test_a_plan_for_another_batch_is_refused(backend: LocalBackend, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"plan is for a batch of 12, but the script has batch_size=32"):
        run(backend, tmp_path, {"0": None}, node_sizes=(8, 4))


def test_a_stale_profile_is_noticed(backend: LocalBackend, tmp_path: Path) -> None:
    old = {
        name: Profile(name, (Point(1, 0.001), Point(16, 0.001)), facts={"parameters": 7, "torch": "1.0"})
        for name in ("a", "b")
    }
    devices = {"a:0": by_points(0.001), "b:0": by_points(0.001)}
    finished = run(backend, tmp_path, dict(devices), workload=profile.to_json(Workload("train", old)))
    errors = finished.err("a:0")
    assert "the profile of a is stale: its model had 7 parameters" in errors
    assert "made with torch 1.0" in errors


def test_replicas_that_round_differently_are_set_right(
    backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two types by their names only, which run on cores: one worker is made to round differently by hand.
    spoil = "loss_fn=lambda m, b: (spoil(m), mse(m, b))[1], clip_grad_norm=1.0"
    script = TRAIN.replace(
        "vf.seed(0)\n",
        """from tests.train.small import mse
from virtualflow.train import solo
from virtualflow.train import comparisons
comparisons.COMPARE_EVERY = 4
done = []
def spoil(model):
    if solo.installed().device == "b:0" and trainer.global_step == 5 and not done:
        done.append(1)
        model[0].weight.data[0, 0] += 1e-7

vf.seed(0)
""",
    )
    monkeypatch.setitem(globals(), "TRAIN", script)
    finished = run(backend, tmp_path, {"a:0": None, "b:0": None}, given=spoil, device_type="cpu")
    (aligned,) = [event for event in finished.events if isinstance(event, ReplicasAligned)]
    assert (aligned.step, aligned.ranks) == (8, ["1"])


def test_nodes_that_no_device_has_the_memory_for_end_the_job(backend: LocalBackend, tmp_path: Path) -> None:
    small = {name: Profile(name, (Point(1, 0.001),)) for name in ("a", "b")}
    devices = {"a:0": by_points(0.001), "b:0": by_points(0.001)}
    with pytest.raises(RuntimeError, match="memory for a virtual node of 4 examples"):
        run(backend, tmp_path, dict(devices), workload=profile.to_json(Workload("train", small)))
