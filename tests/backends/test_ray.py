"""Workers on a Ray cluster: several machines in Ray's own sense, and two hosts that are network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Finished, Launcher
from tests.hosts import hosts
from tests.job.driven import TRAIN, Driven, after_a_loss, to
from tests.job.test_joiners import assert_same
from tests.manager.managed import Service
from virtualflow.backends.local import LocalBackend
from virtualflow.backends.machines import DeviceNames
from virtualflow.cli.jobs import describe
from virtualflow.cluster.messages import DevicesJoined, DevicesLost
from virtualflow.errors import LaunchError
from virtualflow.events import STREAM, read_events
from virtualflow.events.certificate import Certificate, compare
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder
from virtualflow.program.capture import take

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray warns
    pytest.mark.timeout(300),
]
VF = [sys.executable, "-m", "virtualflow.cli.main"]
QUEUED = Path(__file__).parent.parent / "cli" / "job.py"
JOB = Path(__file__).parent.parent / "chaos" / "job.py"
SCRIPT = TRAIN + "print(trainer.digest())\n"
SMALL: dict[str, Any] = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
SOON = {  # a lost machine is noticed in seconds
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two machines: one with a core, one with two cores and two devices of a type of its own."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_ENABLE_METRICS_COLLECTION"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": SOON, **SMALL})
    try:
        made.add_node(num_cpus=2, resources={"big": 2}, **SMALL)
        yield made
    finally:
        made.shutdown()


@pytest.fixture(scope="module")
def on_ray(cluster: Any) -> Iterator[Any]:
    from virtualflow.backends.ray import RayBackend

    with RayBackend(address=cluster.address) as backend:
        yield backend


@pytest.fixture(scope="module")
def calm(backend: LocalBackend, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """An undisturbed run on one device, without Ray."""
    return Driven(backend, tmp_path_factory.mktemp("calm"), SCRIPT).run(1)


def test_a_manager_shares_out_a_ray_cluster(
    cluster: Any, run_job: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    (tmp_path / "slow").touch()
    service = Service(tmp_path / "home", "--backend", "ray", "--device-type", "cpu")
    monkeypatch.setenv("VF_HOME", str(service.home))
    try:
        service.up()
        types = [device["type"] for device in service.client.get("/api/devices")]
        assert sorted(types) == ["big", "big", "cpu", "cpu", "cpu"]
        body = {"script": str(QUEUED), "modules": take(QUEUED).modules, "arguments": [str(tmp_path)], "demand": 3}
        job = service.client.post("/api/jobs", **body, virtual_nodes=4)["id"]
        until(lambda: len(service.client.get(f"/api/jobs/{job}")["devices"]) == 3, 120)
        machine = cluster.add_node(num_cpus=1, **SMALL)
        until(lambda: len(service.client.get("/api/devices")) == 6, 30)
        cluster.remove_node(machine, allow_graceful=False)
        until(lambda: sum(device["lost"] for device in service.client.get("/api/devices")) == 1, 60)
        (tmp_path / "slow").unlink()
        until(lambda: service.client.get(f"/api/jobs/{job}")["state"] == "DONE", 120)
        printed = service.client.get(f"/api/jobs/{job}/logs")["text"].split()
    finally:
        service.close()
    assert printed[-1] == run_job(QUEUED, 1, [str(tmp_path)]).digest


def workers(coordinator: Coordinator) -> list[dict[str, Any]]:
    return list(coordinator.status().workers)


def free() -> dict[str, float]:
    import ray

    return {name: ray.available_resources().get(name, 0.0) for name in ("CPU", "big")}


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.1)


def test_bits_are_those_of_local_devices_whatever_the_clusters_resources(
    on_ray: Any, calm: Finished, tmp_path: Path
) -> None:
    left = []
    both_machines = Driven(on_ray, tmp_path / "cores", SCRIPT).run(3)
    assert_same(calm, both_machines)
    plan = [(2, lambda _: left.append(free()["big"]))]
    finished = Driven(on_ray, tmp_path / "big", SCRIPT).run(("big:0", "big:1"), plan, device_type="cpu")
    assert compare(calm.certificate, finished.certificate).equal
    assert left == [0.0]
    until(lambda: free() == {"CPU": 3.0, "big": 2.0}, 10.0)


def test_resizes_and_a_killed_worker_change_nothing(on_ray: Any, calm: Finished, tmp_path: Path) -> None:
    def kill_the_lead(coordinator: Coordinator) -> bool:
        if len(workers(coordinator)) < 3:
            return False  # not yet: on a busy machine, Ray takes its time
        os.kill(workers(coordinator)[0].pid, signal.SIGKILL)
        return True

    disturbed = Driven(on_ray, tmp_path / "ray", SCRIPT)
    finished = disturbed.run(2, [(3, to(3)), (5, kill_the_lead), (6, after_a_loss(to(1))), (7, to(2))])
    assert_same(calm, finished)
    causes = [(change.cause, len(change.devices)) for change in finished.changes]
    # The lead writes down each change: it may have been killed before it wrote down its first.
    assert causes[-4:] == [("loss", 2), ("resize", 3), ("resize", 1), ("resize", 2)]


def test_a_lost_machine_is_lost_workers_and_devices_that_come_back_are_used(
    cluster: Any, on_ray: Any, calm: Finished, tmp_path: Path
) -> None:
    from virtualflow.backends.ray_connection import machines

    machine = cluster.add_node(num_cpus=1, resources={"spare": 1}, **SMALL)
    names, seen = DeviceNames(), list[str]()
    names.update(machines(), 0.0)
    assert [str(pool) for pool in names.pools] == ["big:2", "cpu:2+1+1", "spare:1"]
    there = {name for name, where in names.devices.items() if "spare" in where.resources}
    assert len(there) == 2
    assert "spare:0" in there

    def lose_the_machine(_: Coordinator) -> None:
        seen.append("removed")
        cluster.remove_node(machine, allow_graceful=False)

    def watch(coordinator: Coordinator) -> None:
        if seen == ["removed"] and coordinator.roster.failures:
            seen.append("noticed")
            cluster.add_node(num_cpus=1, wait=False, **SMALL)

    disturbed = Driven(on_ray, tmp_path / "ray", SCRIPT)
    disturbed.tick = watch
    finished = disturbed.run(4, [(3, lose_the_machine), (5, after_a_loss(lambda _: None))])
    assert_same(calm, finished)
    assert [(change.cause, len(change.devices)) for change in finished.changes] == [("loss", 3), ("resize", 4)]
    assert seen == ["removed", "noticed"]
    lost, joined = names.update(machines(), 1.0)
    assert lost == DevicesLost(1.0, tuple(sorted(there)))
    assert isinstance(joined, DevicesJoined)
    assert len(joined.devices) == 1
    assert not set(joined.devices) & there  # a new machine, new names


def test_devices_that_are_not_there_are_named(on_ray: Any, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"wants 9 devices of type cpu, and the Ray cluster has [34]"):
        Driven(on_ray, tmp_path, SCRIPT).run(9)
    with pytest.raises(LaunchError, match="no device of type V100: it has 2 big"):
        Driven(on_ray, tmp_path, SCRIPT).run(("V100:0",))


def test_vf_run_on_a_cluster_with_its_verbs_and_ctrl_c(cluster: Any, on_ray: Any, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    options = json.dumps({"epochs": 40, "evaluate": False, "hold": str(hold)})
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    command = [*VF, "run", "--backend", "ray", "--devices", "2", str(JOB), options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as run:
        try:
            assert run.stdout is not None
            job = run.stdout.readline().decode().split()[1]
            until(lambda: shown(job)["state"] == "RUNNING")
            workers = json.loads(vf("status", job, "--json").stdout)["workers"]
            assert [worker["machine"] for worker in workers] == [on_ray.address] * 2
            refused = vf("resize", job, "9")
            assert "the Ray cluster has" in refused.stderr
            assert vf("resize", job, "1", "--wait").returncode == 0
            pids = [worker["pid"] for worker in shown(job)["workers"]]
            run.send_signal(signal.SIGINT)
            assert run.wait(20) == 128 + signal.SIGINT
            until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10.0)
        finally:
            run.kill()
    assert shown(job)["state"] in ("CANCELLED", "FAILED")


def test_without_a_cluster_the_message_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    refused = vf("run", "--backend", "ray", str(JOB), "{}")
    assert refused.returncode == 2
    assert "Connection refused. Start one with `ray start --head`" in refused.stderr


def test_without_ray_the_message_says_what_to_install(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    program = (
        "import sys; sys.modules['ray'] = None; from virtualflow.cli.main import main; "
        f"sys.argv = ['vf', 'run', '--backend', 'ray', {str(script)!r}]; main()"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 2
    assert "pip install 'virtualflow[ray]'" in finished.stderr


def vf(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*VF, *arguments], capture_output=True, text=True, timeout=60, check=False)


def shown(job: str) -> dict[str, Any]:
    return describe(JobFolder.of(job))


class Host:
    """A Ray machine in a network namespace. It does not see *hidden*: a folder of its own lies over it."""

    def __init__(self, inside: list[str], number: int, hidden: Path | None, environment: dict[str, str]) -> None:
        self.inside, self._namespace = inside, inside[-1]
        head = ["--head", "--port", "6379", "--include-dashboard", "false", "--system-config", json.dumps(SOON)]
        others = ["--address", "10.77.0.1:6379", "--resources", json.dumps({"far": 2})]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *(head if number == 1 else others)]
        command += ["--node-ip-address", f"10.77.0.{number}", "--num-cpus", "1", "--block", "--disable-usage-stats"]
        command += ["--object-store-memory", str(SMALL["object_store_memory"]), "--temp-dir", environment["RAY_TMPDIR"]]
        if hidden is not None:
            command = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none {hidden} && exec "$@"', "sh", *command]
        self.log = Path(environment["RAY_TMPDIR"]) / f"host-{number}.log"
        with self.log.open("wb") as file:
            self._process = subprocess.Popen([*self.inside, *command], env=environment, stdout=file, stderr=file)

    def wait(self) -> None:
        until(lambda: "Ray runtime started" in self.log.read_text() or self._process.poll() is not None)
        assert self._process.poll() is None, self.log.read_text()

    def cut_the_cable(self) -> None:
        subprocess.run(["ip", "-n", self._namespace, "link", "set", "cable", "down"], check=True, timeout=10)

    def end(self) -> None:
        listed = subprocess.run(["ip", "netns", "pids", self._namespace], capture_output=True, text=True, check=False)
        for pid in map(int, listed.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(10)


@pytest.fixture
def ray_hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Host]]:
    """A cluster of two hosts that have only the network in common, and a token."""
    pytest.importorskip("ray")
    home = Path(os.environ["VF_HOME"])
    home.mkdir()
    with contextlib.ExitStack() as owned:
        folder = owned.enter_context(tempfile.TemporaryDirectory(prefix="ray-"))  # a short name: sockets lie there
        monkeypatch.setenv("RAY_TMPDIR", folder)
        monkeypatch.setenv("RAY_ADDRESS", "10.77.0.1:6379")
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN", "for-this-test-alone-0123456789abcdef")
        made = []
        for number, inside in enumerate(owned.enter_context(hosts(2)), 1):
            made.append(Host(inside, number, home if number == 2 else None, os.environ | {"TMPDIR": folder}))
            owned.callback(made[-1].end)
            made[-1].wait()
        yield made


@contextlib.contextmanager
def running(host: Host, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    command = [*host.inside, *VF, "run", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        try:
            assert run.stdout is not None
            yield run.stdout.readline().decode().split()[1], run
        finally:
            run.kill()


def test_two_hosts_without_a_common_folder_and_a_cut_cable(
    ray_hosts: list[Host], run_job: Launcher, tmp_path: Path
) -> None:
    here, there = ray_hosts
    hold = tmp_path / "hold"
    options = json.dumps({"epochs": 5, "evaluate": False, "hold": str(hold)})
    expected = run_job(JOB, 1, [options]).certificate

    hold.touch()  # all workers on the other host: their folder is not the job's
    far = ["--backend", "ray", "--devices", "far:2", "--device-type", "cpu", str(JOB), options]
    with running(here, *far) as (job, run):
        until(lambda: shown(job)["step"] >= 2)
        assert {worker["machine"] for worker in shown(job)["workers"]} == {"10.77.0.2"}
        assert vf("stop", job, "--checkpoint").returncode == 0
        assert run.wait(20) == 0
    with running(here, "--resume", job, "--devices", "2") as (_, run):  # a worker on each, until one is cut off
        until(lambda: shown(job)["state"] == "RUNNING")
        assert {worker["machine"] for worker in shown(job)["workers"]} == {"10.77.0.1", "10.77.0.2"}
        there.cut_the_cable()
        until(lambda: len(shown(job)["workers"]) == 1, 30.0)
        hold.unlink()
        assert run.wait(60) == 0, run.communicate()
    verdict = compare(expected, certificate(job))
    assert verdict.equal, verdict


def certificate(job: str) -> Certificate:
    return Certificate.of(read_events(Path(os.environ["VF_HOME"]) / "jobs" / job / STREAM), job)
