"""Which checkpoint a job goes on from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from virtualflow.errors import LaunchError
from virtualflow.job import checkpoints
from virtualflow.job.folder import JobFolder, JobSpec, write_json
from virtualflow.system.sealed_files import parts_folder


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    """With checkpoints of steps 5, 10 and 15, and a file that it began from."""
    folder = JobFolder(tmp_path / "job")
    folder.checkpoints.mkdir(parents=True)
    began = tmp_path / "began.pt"
    for path in (began, *(folder.checkpoints / f"step-{step:08}.pt" for step in (5, 10, 15))):
        torch.save({"x": torch.ones(3)}, path)
    write_json(folder.path / "job.json", asdict(JobSpec.of("job", "s.py", (), ("0",), from_checkpoint=str(began))))
    return folder


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def test_the_newest_whole_one_counts_and_damaged_ones_are_kept_aside(folder: JobFolder) -> None:
    newest, warnings = folder.automatic_checkpoints()[-1], list[str]()
    damage(newest)
    result = checkpoints.whole(folder, newest, warnings.append)
    assert checkpoints.name_of(result) == "step 10"
    assert newest.with_name(newest.name + ".damaged").exists()
    assert len(warnings) == 1
    assert warnings[0].endswith("The job continues from step 10.")


def test_a_checkpoint_is_damaged_if_one_of_its_parts_is_and_they_are_kept_together(folder: JobFolder) -> None:
    newest = folder.automatic_checkpoints()[-1]
    parts = parts_folder(newest)
    parts.mkdir()
    torch.save({"x": torch.ones(3)}, parts / "0.pt")
    assert checkpoints.whole(folder, newest, lambda _: None) == newest
    damage(parts / "0.pt")
    (newest.with_name(newest.name + ".damaged.parts") / "of an earlier one").mkdir(parents=True)
    found = checkpoints.whole(folder, newest, lambda _: None)
    assert checkpoints.name_of(found) == "step 10"
    kept = newest.with_name(newest.name + ".damaged")
    assert kept.exists()
    assert (parts_folder(kept) / "0.pt").exists()
    assert not parts.exists()


def test_without_a_whole_one_the_job_goes_on_from_what_it_began_from(folder: JobFolder) -> None:
    newest = folder.automatic_checkpoints()[-1]
    for path in folder.automatic_checkpoints():
        damage(path)
    assert checkpoints.whole(folder, newest, lambda _: None) == folder.began_from()
    assert folder.automatic_checkpoints() == []


def test_a_checkpoint_is_chosen_by_its_step_or_as_a_file(folder: JobFolder) -> None:
    first = folder.automatic_checkpoints()[0]
    assert checkpoints.chosen(folder, "5") == first
    assert checkpoints.chosen(folder, str(first)) == first
    assert checkpoints.chosen(folder, str(folder.began_from())) == folder.began_from()
    with pytest.raises(LaunchError, match=r"has no checkpoint of step 7. It has: 5, 10, 15"):
        checkpoints.chosen(folder, "7")
    with pytest.raises(LaunchError, match="there is no such file"):
        checkpoints.chosen(folder, "none.pt")


def test_no_later_checkpoint_is_taken_for_the_newest(folder: JobFolder) -> None:
    first = folder.automatic_checkpoints()[0]
    assert [path.suffix for path in checkpoints.set_newer_aside(folder, first)] == [".aside", ".aside"]
    assert folder.automatic_checkpoints() == [first]


@pytest.mark.parametrize(
    ("name", "step", "words"),
    [(None, None, "the beginning"), ("step-00000012.pt", 12, "step 12"), ("mine.pt", None, "mine.pt")],
)
def test_a_checkpoint_has_a_name_for_people(name: str | None, step: int | None, words: str) -> None:
    path = Path(name) if name is not None else None
    assert (checkpoints.step_of(path), checkpoints.name_of(path)) == (step, words)
