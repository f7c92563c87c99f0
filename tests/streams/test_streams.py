"""A stream is a pure function (virtual node, n) -> example, whoever asks, whenever, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.streams.shards import CALM, Numbers, shuffled
from virtualflow.errors import ConfigError
from virtualflow.streams.hints import Hints, Spot
from virtualflow.streams.reader import StreamReader, own_copy
from virtualflow.streams.stream import Stream
from virtualflow.streams.stream_plans import StreamEpoch, StreamSteps

LENGTHS = (13, 0, 29, 8, 21, 34, 1, 40)
SIZES = (3, 2)


def reader(numbers: Numbers, block: int = 0, counted: bool = True, folder: Path | None = None) -> StreamReader:
    stream = Stream(numbers, shards=8, examples=numbers.lengths if counted else None, block=block)
    return StreamReader(stream, 2, max(SIZES), CALM, folder)


def epoch(number: int, stream: Stream) -> StreamEpoch:
    assert stream.counts is not None
    return StreamEpoch(number, stream, stream.counts, SIZES)


def indices(plan: StreamEpoch | StreamSteps) -> list[int]:
    return [int(index) for step in range(plan.steps) for shard in plan.batch(step).shards for index in shard]


@pytest.mark.parametrize("block", [0, 1, 7, 100])
def test_each_epoch_has_each_example_exactly_once(block: int) -> None:
    numbers = Numbers(*LENGTHS)
    read = reader(numbers, block)
    seen = [[read[index] for index in indices(epoch(number, read.stream))] for number in range(3)]
    assert [Counter(each) for each in seen] == [numbers.all()] * 3
    assert numbers.reads == Counter(dict.fromkeys(numbers.all(), 3))
    assert (seen[0] == seen[1]) == (block == 0)


def test_virtual_nodes_that_run_out_have_empty_shards() -> None:
    plan = epoch(0, Stream(Numbers(*LENGTHS), shards=8, examples=LENGTHS))
    sizes = [[len(shard) for shard in plan.batch(step).shards] for step in range(plan.steps)]
    assert sizes[0] == [3, 2]
    assert sizes[-1] == [0, 2]
    assert [sum(each) for each in zip(*sizes, strict=True)] == [13 + 29 + 21 + 1, 0 + 8 + 34 + 40]


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("block", [0, 7])
def test_an_example_does_not_depend_on_what_was_read_before(block: int, counted: bool, stateful: bool) -> None:
    plan = indices(StreamSteps(70, Stream(Numbers(*LENGTHS), shards=8), SIZES))  # two passes and more
    in_order = reader(Numbers(*LENGTHS), block)
    expected = {index: in_order[index] for index in plan}
    anyhow = reader(Numbers(*LENGTHS, stateful=stateful), block, counted)
    assert {index: anyhow[index] for index in shuffled(plan, 3)} == expected


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("block", [0, 10])
@pytest.mark.parametrize("at", [1, 9, 250, 700, 1399])
def test_who_goes_on_reads_at_most_one_block_again(at: int, block: int, counted: bool, tmp_path: Path) -> None:
    lengths = (300,) * 8
    before, after = Numbers(*lengths, stateful=True), Numbers(*lengths, stateful=True)
    first = reader(before, block, counted, tmp_path)
    plan = [index for index in range(3000) if index % 2 == 0]  # of node 0
    seen = [first[index] for index in plan[:at]]
    second = reader(after, block, counted, tmp_path)
    seen += [second[index] for index in plan[at:]]
    whole = reader(Numbers(*lengths), block)
    assert seen == [whole[index] for index in plan]
    assert before.reads.total() + after.reads.total() - len(plan) <= (block or 256)


def test_without_a_state_what_comes_before_is_read_and_dropped(tmp_path: Path) -> None:
    lengths = (300,) * 8
    first = reader(Numbers(*lengths), 10, True, tmp_path)
    for n in range(450):
        first[2 * n]
    numbers = Numbers(*lengths)
    second = reader(numbers, 10, True, tmp_path)
    assert second[2 * 450] == first[2 * 450]
    assert numbers.reads.total() == 160  # of the second shard, not of the first


def test_replays_and_steps_that_are_asked_for_again_read_nothing() -> None:
    numbers = Numbers(*LENGTHS)
    read = reader(numbers, 7)
    plan = indices(epoch(0, read.stream))
    for place in range(len(plan)):
        assert read[plan[place]] is not None
        assert read[plan[max(0, place - 10)]] is not None
    assert numbers.reads == numbers.all()


class Forgetful:
    """Has a state that leaves out what is in its buffer, as a shuffle buffer's does."""

    def __init__(self, shard: int) -> None:
        self._at = 0

    def __iter__(self) -> Iterator[int]:
        while self._at < 50:
            self._at += 1
            yield self._at

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at + 3}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]


def test_a_state_that_leads_elsewhere_costs_time_and_no_example(tmp_path: Path) -> None:
    stream = Stream(Forgetful, shards=1, examples=50, block=5)
    first, second = (StreamReader(stream, 1, 4, CALM, tmp_path) for _ in range(2))
    seen = [first[n] for n in range(30)]
    seen += [second[n] for n in range(30, 50)]
    assert Counter(seen) == Counter(range(1, 51))


@pytest.mark.parametrize("damage", ["", "[", "[1]", '[{"spot": 3}]', "null"])
def test_damaged_hints_cost_time_and_no_example(damage: str, tmp_path: Path) -> None:
    whole = reader(Numbers(*LENGTHS, stateful=True), 7, True, tmp_path)
    expected = [whole[2 * n] for n in range(60)]
    (tmp_path / "node-0.json").write_text(damage)
    again = reader(Numbers(*LENGTHS, stateful=True), 7, True, tmp_path)
    assert [again[2 * n] for n in range(30, 60)] == expected[30:]


def test_hints_get_fewer_the_further_back(tmp_path: Path) -> None:
    hints = Hints(tmp_path / "node.json")
    for block in range(600):
        hints.add(Spot(10 * block, 0, 0, 10 * block), 0, {"at": block}, "")
    known = sorted(hint.spot.n for hint in Hints(tmp_path / "node.json").known())
    assert len(known) < 50
    assert known[-4:] == [5960, 5970, 5980, 5990]
    for n in range(0, 6000, 37):
        nearest = max((each for each in known if each <= n), default=0)
        assert n - nearest <= 10 + (5990 - n)


def test_a_state_that_no_file_can_hold_is_kept_in_memory(tmp_path: Path) -> None:
    hints = Hints(tmp_path / "node.json")
    hints.add(Spot(0, 0, 0, 0), 0, {1: "a key that is no string"}, "")
    hints.add(Spot(5, 0, 0, 5), 0, {"array": np.zeros(2)}, "")
    hints.add(Spot(9, 0, 0, 9), 0, {"at": 9}, "")
    assert len(hints.known()) == 3
    assert [hint.spot.n for hint in Hints(tmp_path / "node.json").known()] == [9]


def test_what_is_changed_in_an_example_does_not_reach_who_asks_again() -> None:
    example = {"tokens": [1, 2], "image": np.zeros(3), "pair": (1, [2])}
    stream = Stream(lambda shard: [example], shards=1, examples=1)
    read = StreamReader(stream, 1, 1, CALM)
    first = read[0]
    first["tokens"].pop()
    first["image"] += 1
    first["pair"][1].clear()
    assert read[0]["tokens"] == [1, 2]
    assert read[0]["image"].tolist() == [0, 0, 0]
    assert read[0]["pair"] == (1, [2])
    with pytest.raises(ConfigError, match=r"stream\.map"):
        own_copy(each for each in ())


def test_an_error_of_the_data_is_not_taken_for_their_end() -> None:
    def failing(shard: int) -> Iterator[int]:
        yield 1
        raise OSError("no disk")

    read = StreamReader(Stream(failing, shards=1), 1, 1, CALM)
    assert read[0] == 1
    for _ in range(2):
        with pytest.raises(OSError, match="no disk"):
            read[1]


def test_map_is_applied_when_an_example_is_used() -> None:
    calls: list[int] = []

    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    stream = Stream(Numbers(9, 9), shards=2, examples=9, block=9).map(double).map(str)
    read = StreamReader(stream, 2, 1, CALM)
    assert read[0] == str(2 * calls[0])
    assert len(calls) == 1
    assert sorted(map(int, stream)) == sorted(2 * number for number in Numbers(9, 9).all())


def test_a_stream_can_count_itself() -> None:
    assert Stream(Numbers(*LENGTHS), shards=8).counted().counts == LENGTHS
    assert Stream(Numbers(*LENGTHS), shards=8, examples=[1] * 8).counts == (1,) * 8


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no function": ({"open_shard": [1, 2]}, "expected a function"),
    "no shards": ({"shards": 0}, "at least one shard"),
    "block": ({"block": -1}, "0 for none"),
    "counts": ({"examples": [1, 2]}, "one for each"),
    "negative": ({"examples": -1}, "one for each"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_stream_that_can_not_be_is_refused(name: str) -> None:
    changed, reason = WRONG[name]
    with pytest.raises(ConfigError, match=reason):
        Stream(**{"open_shard": Numbers(1), "shards": 1} | changed)


def test_shards_belong_to_virtual_nodes() -> None:
    with pytest.raises(ConfigError, match=r"shards=6, and the job 4 virtual nodes.*Use shards=8"):
        StreamReader(Stream(Numbers(*[1] * 6), shards=6), 4, 1, CALM)


def test_shards_without_examples_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no example"):
        StreamReader(Stream(Numbers(0, 0), shards=2), 1, 1, CALM)[0]
    with pytest.raises(ConfigError, match="has no example"):
        StreamReader(Stream(Numbers(0, 0), shards=2, examples=0), 1, 1, CALM)[0]
    with pytest.raises(ConfigError, match="ends after 3 examples, but examples= says 5"):
        StreamReader(Stream(Numbers(3), shards=1, examples=5), 1, 1, CALM)[4]
