"""Files and datasets as streams: all that is in them, once, in any number of shards, from any place on."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import virtualflow as vf
from tests.streams.shards import CALM, Numbers
from tests.train.small import make
from virtualflow.errors import ConfigError
from virtualflow.streams.cursor import ReadContext
from virtualflow.streams.reader import StreamReader

LINES = [f"line {number} " + "x" * (number % 17) + "é" * (number % 3) for number in range(100)]


def text(folder: Path, name: str = "a.txt", lines: list[str] = LINES, end: str = "\n") -> Path:
    path = folder / name
    path.write_bytes(end.join(lines).encode())
    return path


def opened_in_the_middle(stream: vf.Stream, tmp_path: Path, shard: int = 0) -> tuple[list[Any], list[Any]]:
    """What comes after the first half, read at a stretch; and by who goes on there."""
    (tmp_path / "hints").mkdir(exist_ok=True)
    first, second = (StreamReader(stream, stream.shards, 4, CALM, tmp_path / "hints") for _ in range(2))
    assert stream.counts is not None
    indices = [n * stream.shards + shard for n in range(stream.counts[shard])]
    whole = [first[index] for index in indices]
    return whole[len(whole) // 2 :], [second[index] for index in indices[len(whole) // 2 :]]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("shards", [1, 2, 7, 64, 150])
def test_a_file_is_cut_at_the_ends_of_its_lines(shards: int, end: str, tmp_path: Path) -> None:
    stream = vf.text_lines(text(tmp_path, end=end), shards=shards)
    assert list(stream) == LINES
    assert sum(stream.counts or ()) == 100


def test_several_files_are_laid_end_to_end(tmp_path: Path) -> None:
    text(tmp_path, "1.txt", LINES[:3])
    text(tmp_path, "2.txt", [])
    text(tmp_path, "3.txt", ["", *LINES[3:], "", ""])
    stream = vf.text_lines(tmp_path / "*.txt", shards=6)
    assert list(stream) == LINES
    assert max(stream.counts or ()) <= 25


def test_compressed_files_are_shards_as_they_are(tmp_path: Path) -> None:
    for number in range(4):
        with gzip.open(tmp_path / f"{number}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps({"number": each}) + "\n" for each in range(10 * number, 10 * number + 10))
    stream = vf.jsonl(tmp_path / "*.gz", shards=2)
    assert sorted(row["number"] for row in stream) == list(range(40))
    with pytest.raises(ConfigError, match="decompress"):
        vf.jsonl(tmp_path / "*.gz", shards=5)


@pytest.mark.parametrize("block", [0, 8])
def test_text_is_opened_in_the_middle(block: int, tmp_path: Path) -> None:
    expected, result = opened_in_the_middle(vf.text_lines(text(tmp_path), shards=2, block=block), tmp_path)
    assert result == expected


def test_lines_of_json_are_values(tmp_path: Path) -> None:
    path = text(tmp_path, "a.jsonl", [json.dumps({"number": number}) for number in range(20)])
    assert [row["number"] for row in vf.jsonl(str(path), shards=4)] == list(range(20))


@pytest.mark.parametrize("block", [0, 8])
def test_what_can_draw_nothing_is_not_seeded_for(block: int, tmp_path: Path) -> None:
    """Seeding three generators takes longer than reading a line."""
    seeds: list[int] = []
    around = ReadContext(7, seeds.append, repr)
    path = text(tmp_path, "a.jsonl", [json.dumps({"number": number}) for number in range(20)])
    stream = vf.jsonl(path, shards=2, block=block)
    result = [row["number"] for row in map(StreamReader(stream, 2, 4, around).__getitem__, range(16))]
    assert len(set(result)) == 16
    assert seeds == []
    list(map(StreamReader(stream.map(str), 2, 4, around).__getitem__, range(16)))
    assert len(set(seeds)) == 16  # that function may draw
    list(map(StreamReader(vf.Stream(Numbers(10, 10), shards=2), 2, 4, around).__getitem__, range(16)))
    assert len(set(seeds)) == 32  # and so may that iterable


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.txt is not there"):
        vf.text_lines(tmp_path / "nowhere.txt", shards=2)
    with pytest.raises(ConfigError, match="no file is called"):
        vf.text_lines(tmp_path / "*.nothing", shards=2)


def tars(folder: Path, count: int = 4, compressed: bool = False) -> None:
    for number in range(count):
        name = folder / f"{number:02}.tar{'.gz' if compressed else ''}"
        with tarfile.open(name, "w:gz" if compressed else "w") as archive:
            for example in range(10):
                for ending, content in (("txt", f"{number}/{example}"), ("seg.cls", str(example))):
                    member = tarfile.TarInfo(f"images/{'long' * 30 if example == 7 else ''}{number}-{example}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content.encode()))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("block", [0, 3])
def test_tar_files_are_streams_of_examples(block: int, compressed: bool, tmp_path: Path) -> None:
    tars(tmp_path, compressed=compressed)
    stream = vf.tar_shards(tmp_path / "*.tar*", shards=2, block=block)
    assert stream.counts == (20, 20)
    examples = list(stream)
    assert sorted(example["txt"].decode() for example in examples) == [f"{n}/{m}" for n in range(4) for m in range(10)]
    assert examples[3] == {"__key__": "images/0-3", "txt": b"0/3", "seg.cls": b"3"}
    expected, result = opened_in_the_middle(stream, tmp_path)
    assert result == expected


def test_tar_files_are_not_cut(tmp_path: Path) -> None:
    tars(tmp_path)
    stream = vf.tar_shards(tmp_path / "*.tar", count=False)
    assert (stream.shards, stream.counts) == (4, None)
    with pytest.raises(ConfigError, match="one shard per file at most"):
        vf.tar_shards(tmp_path / "*.tar", shards=5)


def documents(folder: Path, shards: int = 2, **options: Any) -> vf.Stream:
    rows = [json.dumps({"input_ids": [number] * (1 + number % 5)}) for number in range(100)]
    return vf.jsonl(text(folder, "documents.jsonl", rows), shards=shards, **options)


@pytest.mark.parametrize("separator", [None, 999])
def test_documents_are_packed_into_rows(separator: int | None, tmp_path: Path) -> None:
    source = documents(tmp_path)
    packed = vf.pack(source, 16, separator=separator)
    for shard in range(2):
        together: list[int] = []
        for document in source.shard(shard):
            together += document["input_ids"] + ([] if separator is None else [separator])
        rows = list(packed.shard(shard))
        assert {len(row) for row in rows} == {16}
        assert np.concatenate(rows).tolist() == together[: 16 * (len(together) // 16)]


@pytest.mark.parametrize("block", [0, 4])
def test_packed_rows_are_opened_in_the_middle(block: int, tmp_path: Path) -> None:
    packed = vf.pack(documents(tmp_path, block=block), 7, separator=0).counted()
    assert packed.block == block
    expected, result = opened_in_the_middle(packed, tmp_path)
    assert [row.tolist() for row in result] == [row.tolist() for row in expected]
    assert len(result) > 10


def test_what_can_not_be_packed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"stream.map\(tokenize\)"):
        list(vf.pack(vf.text_lines(text(tmp_path), shards=2), 4))
    with pytest.raises(ConfigError, match="length=0"):
        vf.pack(documents(tmp_path), 0)


def squares(model: Any, batch: Any) -> torch.Tensor:
    return (model(batch["x"]) ** 2).mean()


def columns(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {"x": torch.tensor([row["x"] for row in rows])}


def trained(data: Any, **options: Any) -> str:
    trainer = make(loss_fn=squares, collate_fn=columns, **options)
    for _ in trainer.epochs(2):
        for batch in trainer.batches(data):
            trainer.step(batch)
    return trainer.digest()


@pytest.fixture
def hub() -> Any:
    return pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")


def table(hub: Any) -> Any:
    return hub.Dataset.from_dict({"x": [[float(number)] * 6 for number in range(64)], "number": list(range(64))})


def test_a_map_style_dataset_of_hugging_face_works_as_it_is(hub: Any) -> None:
    plain = [{"x": [float(number)] * 6} for number in range(64)]
    assert trained(table(hub), loader_workers=0) == trained(plain) == trained(table(hub), loader_workers=2)


DATASETS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda dataset: dataset,
    "mapped": lambda dataset: dataset.map(lambda row: {"y": row["number"] + 1}),
    "filtered": lambda dataset: dataset.filter(lambda row: row["number"] % 3 > 0),
}


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("block", [0, 3])
def test_an_iterable_dataset_of_hugging_face_is_a_stream(hub: Any, name: str, block: int, tmp_path: Path) -> None:
    dataset = DATASETS[name](table(hub).to_iterable_dataset(num_shards=8))
    stream = vf.hf_stream(dataset, block=block).counted()
    assert sorted(row["number"] for row in stream) == sorted(row["number"] for row in dataset)
    expected, result = opened_in_the_middle(stream, tmp_path, shard=3)
    assert result == expected
    assert trained(stream, loader_workers=0) == trained(stream, loader_workers=2)


def test_what_is_no_stream_of_hugging_face_is_refused(hub: Any) -> None:
    dataset = table(hub).to_iterable_dataset(num_shards=8)
    with pytest.raises(ConfigError, match=r"vf\.hf_stream"):
        trained(dataset)
    with pytest.raises(ConfigError, match="needs no stream"):
        vf.hf_stream(table(hub))
    with pytest.raises(ConfigError, match="8 shards of its own"):
        vf.hf_stream(dataset, shards=16)
    with pytest.raises(ConfigError, match="block=n"):
        vf.hf_stream(dataset.shuffle(buffer_size=10).map(dict))
