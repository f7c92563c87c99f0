"""Checkpoints that a disk, a kill or a stranger has changed: found, refused, and never followed anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tests.train.small import make, mlp, regression, train
from virtualflow.errors import CheckpointError
from virtualflow.system import sealed_files
from virtualflow.train import checkpoint


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    trainer = make()
    train(trainer, regression())
    trainer.save(tmp_path / "c.pt")
    return tmp_path / "c.pt"


def flipped(path: Path, whole: bytes, bit: int) -> Path:
    changed = bytearray(whole)
    changed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(changed)
    return path


def test_a_single_flipped_bit_is_found_wherever_it_is(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    checkpoint.read(saved)
    last = 8 * (len(whole) - 200)  # the zip's own last records and the digest: there, every bit
    places = [*range(3, last, 41), *range(last, 8 * len(whole))]
    unfound = []
    for bit in places:
        try:
            checkpoint.read(flipped(tmp_path / "flipped.pt", whole, bit))
        except CheckpointError:
            continue
        unfound.append(bit)
    assert unfound == []


def test_load_says_what_happened_and_touches_nothing(saved: Path) -> None:
    whole = saved.read_bytes()
    flipped(saved, whole, 4 * len(whole))
    trainer = make()
    before = trainer.digest()
    with pytest.raises(CheckpointError, match=r"c\.pt is damaged: .*Use an earlier one"):
        trainer.load(saved)
    assert trainer.digest() == before


def test_an_export_carries_a_digest_and_is_read_by_plain_torch(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    make().export(path)
    assert sealed_files.check(path)
    mlp().load_state_dict(torch.load(path, weights_only=True))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    flipped(path, path.read_bytes(), 8 * 300)
    with pytest.raises(CheckpointError, match="damaged"):
        sealed_files.check(path)


def test_a_checkpoint_of_a_version_without_digests_can_be_read(saved: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.pt"
    torch.save(checkpoint.read(saved) | {"version": 1}, old)
    trainer = make()
    trainer.load(old)
    assert trainer.global_step > 0
    torch.save(checkpoint.read(saved), old)  # one of this version never comes without
    with pytest.raises(CheckpointError, match="its digest is gone"):
        trainer.load(old)


def test_a_zip_bomb_is_refused_by_its_declared_size(saved: Path, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.pt"
    with zipfile.ZipFile(saved) as real, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in real.infolist():
            data = real.read(entry)
            archive.writestr(entry.filename, data if "/data/" not in entry.filename else bytes(64 << 20))
    assert bomb.stat().st_size < 2 << 20
    with pytest.raises(CheckpointError, match=r"is refused: it has .* bytes and declares"):
        make().load(bomb)


def test_stored_entries_that_lie_over_each_other_are_a_bomb_too(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.pt"
    with zipfile.ZipFile(bomb, "w") as archive:
        archive.writestr("a/data/0", bytes(100_000))
        for number in range(1, 50):
            again = zipfile.ZipInfo(f"a/data/{number}")
            again.file_size = again.compress_size = 100_000
            again.CRC, again.header_offset = archive.filelist[0].CRC, 0
            archive.filelist.append(again)
    with pytest.raises(CheckpointError, match="declares 5,000,000"):
        make().load(bomb)


def test_a_symbolic_link_in_the_way_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda _: "known")  # somebody who can guess the name
    (tmp_path / f".c.pt.{os.getpid()}.known.partial").symlink_to(precious)
    with pytest.raises(CheckpointError, match="File exists"):
        make().save(tmp_path / "c.pt")
    assert precious.read_text() == "mine"
    assert not (tmp_path / "c.pt").exists()


def test_what_killed_writers_left_is_removed_and_what_others_write_is_not(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, alive = (tmp_path / f".c[1].pt.{pid}.ab.partial" for pid in (ended.pid, os.getppid()))
    dead.touch()
    alive.touch()
    make().save(tmp_path / "c[1].pt")
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file()) == [alive.name, "c[1].pt"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(saved: Path) -> None:
    def fail() -> None:
        with sealed_files.written_whole(saved) as file:
            file.write(b"half")
            raise OSError("full")

    before = saved.read_bytes()
    with pytest.raises(OSError, match="full"):
        fail()
    assert saved.read_bytes() == before
    assert [file.name for file in saved.parent.iterdir() if file.is_file()] == [saved.name]


def test_tensors_of_any_size_are_covered(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    tensors = {"small": torch.arange(3), "large": torch.arange(1 << 20), "larger": torch.ones(3 << 20)}
    checkpoint.write(path, dict(tensors))
    whole, read = path.read_bytes(), checkpoint.read(path)
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    for place in (len(whole) // 4, len(whole) // 2, len(whole) - (4 << 20)):
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.read(flipped(path, whole, 8 * place))
