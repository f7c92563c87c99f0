"""What workers agree on, as threads: the same on all, through the loss of one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.train.several import OneOfSeveral, peers_of
from virtualflow.errors import CollectiveError, PeerLostError
from virtualflow.testing import ThreadGroup, run_together
from virtualflow.train.peers import Peers


def test_gathered_values_come_in_the_order_of_ranks() -> None:
    made = [partial(peers.gathered, "step", 3, 10 + rank) for rank, peers in enumerate(peers_of(3))]
    assert run_together(*made) == [[10, 11, 12]] * 3


def test_from_lead_only_the_lead_makes_the_value() -> None:
    made = [partial(peers.from_lead, "save", 1, lambda rank=rank: 7 + rank) for rank, peers in enumerate(peers_of(3))]
    assert run_together(*made) == [7, 7, 7]


def test_exchanged_values_may_have_any_size() -> None:
    values = [{"name": "a" * 5000}, {"tensor": torch.arange(3)}]
    made = [partial(p.exchanged, "load", 0, v) for p, v in zip(peers_of(2), values, strict=True)]
    for everyone in run_together(*made):
        assert everyone[0] == values[0]
        assert torch.equal(everyone[1]["tensor"], torch.arange(3))


def test_shared_tensors_are_the_leads() -> None:
    tensors = [torch.full((2,), float(rank)) for rank in range(2)]
    run_together(*(partial(p.share, "Trainer", [t]) for p, t in zip(peers_of(2), tensors, strict=True)))
    assert torch.equal(tensors[1], torch.zeros(2))


class Aborted(ThreadGroup):
    """One whose last worker's collectives end without a word, and with garbage, as those of an accelerator do."""

    def broadcast(self, tensor: Any, source: int) -> ThreadGroup:
        before = tensor.clone()
        super().broadcast(tensor, source)
        if self.rank == self.size - 1:
            tensor.copy_(before)
        return self

    def settle(self) -> None:
        if self.rank == self.size - 1:
            self.lose()
            raise PeerLostError("aborted")


def test_nobody_counts_what_is_shared_before_all_have_it() -> None:
    groups, after = Aborted.of(2), ThreadGroup.of(2)
    tensors = [torch.full((2,), float(rank)) for rank in range(2)]

    def work(rank: int) -> list[int]:
        peers = Peers(OneOfSeveral(groups[rank], after.__getitem__))
        peers.share("Trainer", [tensors[rank]])
        return peers.gathered("step", 1, rank)

    assert run_together(partial(work, 0), partial(work, 1)) == [[0, 1]] * 2
    assert torch.equal(tensors[1], torch.zeros(2))


def test_two_different_calls_get_an_error_that_names_both() -> None:
    one, other = peers_of(2)
    with pytest.raises(CollectiveError, match=r"device 0 called save \(global step 4\) while device 1 called step"):
        run_together(partial(one.from_lead, "save", 4, lambda: 0), partial(other.gathered, "step", 4, 0))


def test_whoever_missed_an_agreement_gets_it_from_whoever_has_it() -> None:
    groups, after = ThreadGroup.of(2), ThreadGroup.of(2)
    one, other = (Peers(OneOfSeveral(group, after.__getitem__)) for group in groups)
    one.agreements, one.last = 1, torch.tensor([42])  # it had the first agreement when a third worker died
    groups[0].lose()

    def never() -> Tensor:
        raise AssertionError("the first agreement must not be made again")

    def missed() -> Tensor:
        if other.group is groups[1]:
            groups[1].broadcast(torch.zeros(1), 0)  # raises: the group is broken
        return never()

    second = partial(one.gathered, "step", 1, 5)

    def first_and_second() -> tuple[int, list[int]]:
        return int(other.agree(missed)), other.gathered("step", 1, 6)

    assert run_together(second, first_and_second) == [[5, 6], (42, [5, 6])]
    assert (one.agreements, other.agreements) == (2, 2)


def test_what_nobody_has_is_made_again() -> None:
    groups, after = ThreadGroup.of(2), ThreadGroup.of(2)
    made = [Peers(OneOfSeveral(group, after.__getitem__)) for group in groups]
    groups[0].lose()
    assert run_together(*(partial(peers.gathered, "step", 0, 1) for peers in made)) == [[1, 1], [1, 1]]
