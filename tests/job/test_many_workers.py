"""What a coordinator sends and reads for each change of a job with many workers: claims without a clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Printed
from virtualflow.core.generation import Cause
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.json_lines import encoded
from virtualflow.job.wire_messages import AllFinished, Message, Released
from virtualflow.testing import FakeBackend, FakeMember, FakeWorker

MANY = 100
Plan = Callable[["ManyWorkers"], Iterator[None]]


class ManyWorkers:
    """A job whose workers take part in its membership, and count what they get and send, by type."""

    def __init__(self, folder: Path, backend: FakeBackend, workers: int) -> None:
        script = folder / "script.py"
        script.write_text("")
        self._backend = backend
        self.sent: Counter[str] = Counter()
        self.bytes_received = 0
        self.received: Counter[str] = Counter()
        self._members: dict[int, FakeMember] = {}
        devices = tuple(f"{number:04d}" for number in range(workers))
        job = JobFolder(folder / "job")
        spec = JobSpec.of("job", str(script), (), devices, replace_lost=False)
        job.create(spec)
        self.coordinator = Coordinator(spec, job, backend, Printed(), self._tick)
        self.virtual_nodes = 2 * workers

    def run(self, plan: Plan) -> None:
        self._plan = plan(self)
        assert self.coordinator.run().code == 0

    def settle(self) -> Iterator[None]:
        """Until the job is on the devices that are wanted."""
        yield
        while self.coordinator.roster.mapping is None or not self.coordinator.roster.is_settled:
            yield

    def finish(self) -> Iterator[None]:
        for member in self._members.values():
            member.finish()
        yield

    def forget(self) -> None:
        self.sent.clear()
        self.received.clear()

    def kill(self, device: str) -> None:
        worker = self._backend.workers[device]
        del self._members[worker.process]
        self._backend.end(worker, -9)

    def _tick(self) -> None:
        for worker in self._backend.workers.values():
            if not worker.is_closed:
                self._go_on(worker)
        next(self._plan, None)

    def _go_on(self, worker: FakeWorker) -> None:
        if worker.process not in self._members:
            self._members[worker.process] = FakeMember(worker.spec, self._sending(worker), self.virtual_nodes)
            self._members[worker.process].begin()
        for message in worker.received():
            self.received[type(message).__name__] += 1
            self.bytes_received += len(encoded(message))
            if isinstance(message, (Released, AllFinished)):
                del self._members[worker.process]
                self._backend.end(worker, 0)
                return
            self._members[worker.process].take(message)

    def _sending(self, worker: FakeWorker) -> Callable[[Message], None]:
        def send(message: Message) -> None:
            self.sent[type(message).__name__] += 1
            worker.send(message)

        return send


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    with FakeBackend() as fake:
        yield fake


def test_a_death_among_many_costs_each_worker_a_few_messages(tmp_path: Path, backend: FakeBackend) -> None:
    def plan(job: ManyWorkers) -> Iterator[None]:
        yield from job.settle()
        job.forget()
        job.kill("0042")
        yield from job.settle()
        left = MANY - 1
        assert len(job.coordinator.roster.generation.devices) == left
        assert job.coordinator.roster.generation.cause == Cause.LOSS
        assert job.sent == {"PeerLost": left, "GroupPost": 2 * left, "GroupLetters": left, "FormedGroup": left}
        # All others' posts come in one message, and their letters in another.
        assert job.received == {"NewGeneration": left, "GroupPosts": 2 * left}
        yield from job.finish()

    ManyWorkers(tmp_path, backend, MANY).run(plan)


def test_many_deaths_at_once_are_one_generation(tmp_path: Path, backend: FakeBackend) -> None:
    def plan(job: ManyWorkers) -> Iterator[None]:
        yield from job.settle()
        job.forget()
        for number in range(10):
            job.kill(f"{9 * number:04d}")
        yield from job.settle()
        left = MANY - 10
        assert len(job.coordinator.roster.generation.devices) == left
        assert job.coordinator.roster.failures == 10
        assert job.received["NewGeneration"] == left
        yield from job.finish()

    ManyWorkers(tmp_path, backend, MANY).run(plan)


def test_half_of_many_workers_leave_and_come_back(tmp_path: Path, backend: FakeBackend) -> None:
    def plan(job: ManyWorkers) -> Iterator[None]:
        yield from job.settle()
        job.forget()
        job.coordinator.resize(MANY // 2)
        yield from job.settle()
        assert job.received["NewGeneration"] == MANY
        assert job.received["GroupPosts"] == 2 * MANY // 2
        assert job.received["Released"] == MANY // 2
        job.forget()
        job.coordinator.resize(MANY)
        yield from job.settle()
        assert len(job.coordinator.roster.generation.devices) == MANY
        # One generation for all joiners together: they form a group to get the state, and then one with all others.
        assert job.received["NewGeneration"] == MANY
        assert job.received["GroupPosts"] <= 2 * MANY + 2 * (MANY // 2 + 1) + MANY
        yield from job.finish()

    ManyWorkers(tmp_path, backend, MANY).run(plan)


def test_what_a_worker_is_sent_grows_with_the_workers_and_no_faster(tmp_path: Path, backend: FakeBackend) -> None:
    def bytes_for_each(workers: int) -> float:
        (folder := tmp_path / str(workers)).mkdir()

        def plan(job: ManyWorkers) -> Iterator[None]:
            yield from job.settle()
            job.kill("0001")
            yield from job.settle()
            yield from job.finish()

        with FakeBackend() as own:
            job = ManyWorkers(folder, own, workers)
            job.run(plan)
            return job.bytes_received / workers

    assert bytes_for_each(80) < 2.5 * bytes_for_each(40)
