"""Who has the token runs code as the owner, so it may end the job; but no message of theirs is too much for it."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import tempfile
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.job.test_coordinator import Job
from virtualflow.core.job_view import DeviceUse
from virtualflow.job.json_lines import encoded
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import (
    FROM_WORKER,
    TO_WORKER,
    FormedGroup,
    FromWorker,
    GetStatus,
    MoveJob,
    ReadyToJoin,
    ResizeJob,
    ResourceUse,
    TrainerMade,
)
from virtualflow.testing import FakeBackend

GROUPS = st.sampled_from(["generation/0", "generation/1", "", "\x00"])
NUMBERS = st.sampled_from([2**63 - 1, -1, 0, 1, 2, 3])
FILES = st.sampled_from(["../../up", "", "/", "/etc/passwd", "a\x00b", "/there/a.py", 300 * "x", "\ud800", "script.py"])
BY_NAME = {"group": GROUPS, "generation": NUMBERS, "step": NUMBERS, "call": NUMBERS, "file": FILES, "name": FILES}


def values_of(kind: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Any value of a field, often one that means something to a coordinator."""
    if dataclasses.is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        fields = typing.get_type_hints(kind)
        return st.builds(kind, **{field: values_of(fields[field], field) for field in fields})  # type: ignore[arg-type]
    return BY_NAME[name] if name in BY_NAME else st.from_type(kind)


KINDS: tuple[type, ...] = typing.get_args(FromWorker)
ANY_OF_THEM = st.one_of([values_of(kind) for kind in KINDS])


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=max(4, int(os.environ.get("VF_FUZZ", "0")) // 1000),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data(), as_guest=st.booleans())
def test_random_messages_of_a_worker_do_not_fail_in_the_coordinator(
    kind: type, data: st.DataObject, as_guest: bool
) -> None:
    sent = [data.draw(values_of(kind)), *data.draw(st.lists(values_of(kind) | ANY_OF_THEM, max_size=3))]
    with tempfile.TemporaryDirectory() as folder, FakeBackend() as backend:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)

        def plan(job: Job) -> Iterator[None]:
            job.all_send(TrainerMade((1,) * 4, 10))
            yield
            if as_guest:
                # Its listener's own call: a handshake for each of so many examples would take minutes.
                job.coordinator._admit(Wire(ours, FROM_WORKER), "far", 7)
                yield
            for message in sent:
                if as_guest:
                    Wire(theirs, TO_WORKER).send(message)
                elif not job.worker("1").is_closed:
                    job.worker("1").send(message)
                yield
            job.worker("0").send(FormedGroup(0))
            yield
            job.coordinator.stop(checkpoint=False)

        with ours, theirs:
            Job(Path(folder), backend).run(plan)


NAMES = st.sampled_from(["0", "1", "2", "V100:0", "", ".", "../up", "a/b", "/", "\x00", "\ud800", "a\nb", 5000 * "x"])
REQUESTS = st.builds(MoveJob, st.lists(NAMES | st.text(), max_size=4).map(tuple)) | st.builds(
    ResizeJob, NUMBERS | st.integers(-(2**63), 2**63 - 1)
)


@settings(
    max_examples=max(50, int(os.environ.get("VF_FUZZ", "0")) // 100),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=3))
@example(requests=[MoveJob(("\ud800",))])
@example(requests=[MoveJob(("0", "\x00"))])
@example(requests=[MoveJob(("../up", "0"))])
@example(requests=[MoveJob(("0", "0"))])
def test_no_request_is_too_much_for_the_coordinator_or_names_a_file_outside_of_the_job(
    requests: list[MoveJob | ResizeJob],
) -> None:
    answers = []

    with tempfile.TemporaryDirectory() as folder, FakeBackend() as backend:

        def plan(job: Job) -> Iterator[None]:
            job.all_send(TrainerMade((1,) * 4, 10))
            yield
            for request in (*requests, GetStatus()):
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(60)
                    connection.connect(str(job.folder.control))
                    connection.sendall(encoded(request) + b"\n")
                    yield
                    yield
                    answers.append(json.loads(connection.makefile("rb").readline())["type"])
                for worker in list(backend.workers.values()):
                    if not worker.is_closed:  # what a worker does on the devices that were asked for
                        worker.write("stdout", b"here\n")
                        worker.send(ResourceUse(DeviceUse(1.0, 1)))
                        worker.send(ReadyToJoin())
                yield
            job.coordinator.stop(checkpoint=False)

        job = Job(Path(folder), backend, with_logs=True)
        job.run(plan)
        assert answers[-1] == "StatusReport"
        logs = job.folder.path / "logs"
        assert {path.parent for path in Path(folder).rglob("*.log")} <= {logs}  # whatever a device is called
