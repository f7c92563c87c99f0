"""Verbs with ``$VF_CLUSTER``: the manager is elsewhere, and nothing of its jobs is on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.test_jobs import run_verb
from tests.manager.managed import SCRIPT, Managed, Service, until

pytestmark = [
    pytest.mark.timeout(400),  # a busy machine decides nothing
]


@dataclass(frozen=True)
class Elsewhere:
    """What verbs have said here of the jobs of a manager that is elsewhere."""

    job: Managed
    shown: dict[str, tuple[int, str]]  # while it ran
    picture: Path
    stop: tuple[int, str]
    steps: list[int]  # of the checkpoints that it had then
    unknown_step: tuple[int, str]
    state_after: str  # the refused resume
    second: Managed  # began at the first of these checkpoints
    resume: tuple[int, str]
    no_file: tuple[int, str]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    folder = tmp_path_factory.mktemp("remote")
    service = Service(folder / "elsewhere", "--devices", "2")
    try:
        service.up()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VF_HOME", str(folder / "here"))
            patch.setenv("VF_CLUSTER", (service.home / "cluster" / "address").read_text().strip())
            patch.setenv("VF_TOKEN_FILE", str(service.home / "cluster" / "token"))
            result = from_here(service, folder)
        yield result
    finally:
        service.close()


def from_here(service: Service, folder: Path) -> Elsewhere:
    """Look at a job, stop it, start another where it was, and let it go on from an earlier checkpoint."""
    job = service.submit(slow=True, name="far", virtual_nodes=4, checkpoint_every=3)
    until(lambda: len(job.steps) > 7)
    picture = folder / "timeline.png"
    verbs = ["status", "status far", "queue", "status far --json", "logs far", "logs far --device 0"]
    verbs += [f"describe {job.id[:-1]}", f"timeline far -o {picture}"]
    shown = {verb.removesuffix(f" {job.id[:-1]}"): run_verb(*verb.split()) for verb in verbs}

    stop = run_verb("stop", "far", "--checkpoint")
    checkpoints = job.folder.automatic_checkpoints()
    steps = [int(path.stem.removeprefix("step-")) for path in checkpoints]
    unknown_step = run_verb("resume", "far", "--from-checkpoint", "1")
    state = job.view()["state"]

    begins, gates = folder / "begins.pt", folder / "gates"
    begins.write_bytes(checkpoints[0].read_bytes())
    gates.mkdir()
    submitted = run_verb("submit", "--name", "second", "--from-checkpoint", str(begins), str(SCRIPT), str(gates))
    assert submitted[0] == 0, submitted
    second = Managed(service, submitted[1].split()[1], gates)

    resume = run_verb("resume", "far", "--from-checkpoint", str(steps[0]))
    job.let_go()
    no_file = run_verb("submit", "--from-checkpoint", str(folder / "nothing.pt"), str(SCRIPT))
    for each in (job, second):
        assert each.until_over()["state"] == "DONE"
    return Elsewhere(job, shown, picture, stop, steps, unknown_step, state, second, resume, no_file)


@pytest.mark.parametrize("verb", ["status", "status far", "queue"])
def test_jobs_elsewhere_are_shown_here(seen: Elsewhere, verb: str) -> None:
    code, text = seen.shown[verb]
    assert (code, "RUNNING" in text, seen.job.id in text) == (0, True, True), text


def test_a_job_elsewhere_is_found_by_its_name_and_by_the_beginning_of_its_id(seen: Elsewhere) -> None:
    assert json.loads(seen.shown["status far --json"][1])["id"] == seen.job.id
    code, text = seen.shown["describe"]
    assert (code, "RUNNING" in text) == (0, True), text


def test_of_the_logs_elsewhere_the_leads_can_be_read_here(seen: Elsewhere) -> None:
    assert "step 1 " in seen.shown["logs far"][1]
    assert "only the lead's output can be read" in seen.shown["logs far --device 0"][1]


def test_the_timeline_of_a_job_elsewhere_is_drawn_here(seen: Elsewhere) -> None:
    assert seen.shown[f"timeline far -o {seen.picture}"] == (0, f"wrote {seen.picture}\n")
    assert seen.picture.stat().st_size > 1000


def test_a_job_elsewhere_that_is_stopped_with_a_checkpoint_is_paused(seen: Elsewhere) -> None:
    assert seen.stop == (0, f"job {seen.job.id} is paused: `vf resume {seen.job.id}`\n")


def test_a_resume_from_a_step_without_a_checkpoint_is_refused_with_those_that_have_one(seen: Elsewhere) -> None:
    code, text = seen.unknown_step
    steps = ", ".join(map(str, seen.steps))
    assert (code, f"has no checkpoint of step 1. It has: {steps}" in text) == (2, True), text
    assert seen.state_after == "PAUSED"


def test_another_job_can_begin_where_one_was(seen: Elsewhere, calm: str) -> None:
    assert seen.second.output.splitlines()[-1] == calm
    assert min(seen.second.steps) == seen.steps[0]


def test_a_job_goes_back_to_an_earlier_checkpoint_and_the_later_ones_are_set_aside(seen: Elsewhere, calm: str) -> None:
    code, text = seen.resume
    assert (code, f"job {seen.job.id} continues from step {seen.steps[0]}" in text) == (0, True), text
    assert seen.job.output.splitlines()[-1] == calm
    assert list(seen.job.folder.checkpoints.glob("*.aside")) != []


def test_a_job_does_not_begin_at_a_checkpoint_that_is_not_there(seen: Elsewhere) -> None:
    code, text = seen.no_file
    assert (code, "there is no such file" in text) == (2, True), text
