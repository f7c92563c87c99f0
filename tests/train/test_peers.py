"""What workers agree on, as threads: the same on all, through the loss of one."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.train.several import OneOfSeveral, peers_of
from virtualflow.core.membership import Change
from virtualflow.errors import ConfigError, CoordinatorLostError, PeerLostError
from virtualflow.testing import ThreadGroup, run_together
from virtualflow.train.packed_values import unpacked
from virtualflow.train.peers import Peers


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What each worker's call has returned, or the error that it has raised, in words."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    return run_together(*(partial(outcome, call) for call in calls))


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


CALLS: dict[str, Callable[[Peers], Any]] = {
    "save": lambda peers: peers.from_lead("save", 4, lambda: 0),
    "load": lambda peers: peers.exchanged("load", 4, 7),
    "gather": lambda peers: peers.gather(4, 7),
    "broadcast": lambda peers: peers.broadcast(4, 7),
    "once": lambda peers: peers.once("once", 4, lambda: None),
    "Trainer": lambda peers: peers.share("Trainer", [torch.zeros(1)]),
}


@pytest.mark.parametrize("call", CALLS)
def test_two_different_calls_get_an_error_that_names_both(call: str) -> None:
    one, other = peers_of(2)
    outcomes = together(partial(CALLS[call], one), partial(other.gathered, "step", 4, 0))
    assert outcomes[0] == outcomes[1]
    assert re.match(rf"CollectiveError: device 0 called {call}\b.* while device 1 called step", outcomes[0])


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


@pytest.mark.parametrize("size", [1, 3])
def test_a_broadcast_is_the_leads_value_whatever_its_size(size: int) -> None:
    values: list[Any] = [{"rank": rank, "tensor": torch.full((rank + 1,), rank)} for rank in range(size)]
    made = [partial(peers.broadcast, 4, value) for peers, value in zip(peers_of(size), values, strict=True)]
    for packed in run_together(*made):
        ((received),) = unpacked(packed)
        assert received["met"] is None
        assert (received["value"]["rank"], received["value"]["tensor"].tolist()) == (0, [0])


@pytest.mark.parametrize(("value", "text"), [(print, "print"), (lambda: None, "lambda")])
def test_a_value_that_can_not_travel_is_refused_on_all_workers(value: Any, text: str) -> None:
    lead, other = peers_of(2)
    outcomes = together(partial(lead.broadcast, 1, value), partial(other.broadcast, 1, 7))
    assert outcomes[0] == outcomes[1]
    assert text in outcomes[0]
    one, second = peers_of(2)
    outcomes = together(partial(one.gather, 1, 7), partial(second.gather, 1, value))
    assert outcomes[0] == outcomes[1]
    assert text in outcomes[0]


def test_only_the_lead_does_what_is_done_once() -> None:
    done: list[int] = []
    run_together(*(partial(p.once, "once", 1, partial(done.append, rank)) for rank, p in enumerate(peers_of(3))))
    assert done == [0]


def test_what_fails_at_the_lead_fails_everywhere() -> None:
    def fails() -> None:
        raise OSError("the disk is full")

    assert together(*(partial(p.once, "once", 1, fails) for p in peers_of(2))) == ["OSError: the disk is full"] * 2


def test_an_error_that_one_worker_has_met_is_raised_on_all_and_none_on_nobody() -> None:
    one, other = peers_of(2)
    run_together(*(partial(peers.raise_met, "step", 1, None) for peers in (one, other)))
    assert (one.agreements, other.agreements) == (1, 1)


def test_a_joiner_that_one_worker_knows_of_is_one_for_all() -> None:
    one, other = peers_of(2)
    assert run_together(*(partial(p.has_joiners, "step", 1) for p in (one, other))) == [False, False]
    other.membership.changes = [Change(1, "resize", ("0", "1"), ("1",), (), {})]  # type: ignore[misc]
    assert run_together(*(partial(p.has_joiners, "step", 1) for p in (one, other))) == [True, True]


class Moving(OneOfSeveral):
    """One whose changes and joins do what *meets* does."""

    def __init__(self, meets: Callable[[], None]) -> None:
        super().__init__(ThreadGroup.of(1)[0])
        self.meets = meets
        self.recovered = 0
        self.moves: list[str] = []

    def change(self, send_state: Any) -> None:
        self.moves.append("change")
        self.meets()

    def join(self, receive_state: Any) -> None:
        self.moves.append("join")
        self.meets()

    def recover(self) -> None:
        self.recovered += 1
        if self.recovered == 1:
            raise PeerLostError("another one")


@pytest.mark.parametrize("move", ["change", "join"])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_change_in_which_a_peer_is_lost_regroups_until_nobody_is(move: str, is_lost: bool) -> None:
    def meets() -> None:
        if is_lost:
            raise PeerLostError("one")

    membership = Moving(meets)
    peers = Peers(membership)
    getattr(peers, move)(lambda *_: None)
    assert (membership.moves, membership.recovered) == ([move], 2 if is_lost else 0)


def test_a_joiner_whose_coordinator_is_gone_does_not_wait_for_peers() -> None:
    def meets() -> None:
        raise CoordinatorLostError("gone")

    membership = Moving(meets)
    with pytest.raises(CoordinatorLostError):
        Peers(membership).join(lambda *_: None)
    assert membership.recovered == 0


def test_the_end_of_a_script_is_news_to_those_who_make_another_call() -> None:
    one, other = peers_of(2)
    outcomes = together(one.announce_end, partial(other.gathered, "step", 4, 1))
    assert outcomes[0] is None
    assert outcomes[1].startswith("CollectiveError: ")
    assert "end of the script" in outcomes[1]
    (alone,) = groups = ThreadGroup.of(1)
    groups[0].lose()
    Peers(OneOfSeveral(alone)).announce_end()  # nobody is left to be told


def test_no_call_that_all_make_is_made_inside_of_what_runs_for_one_virtual_node() -> None:
    (peers,) = peers_of(1)
    with peers.inside("loss_fn"):
        with peers.inside("metric_fn"), pytest.raises(ConfigError, match=r"metric_fn has called trainer\.save"):
            peers.announce("save")
        with pytest.raises(ConfigError, match=r"loss_fn has called trainer\.save"):
            peers.announce("save")
    peers.announce("save").check()


def test_what_a_step_has_raised_is_noted_until_one_raises_nothing() -> None:
    (peers,) = peers_of(1)
    with pytest.raises(ValueError, match="odd"), peers.noting_errors(3):
        raise ValueError("odd")
    assert peers.raised == "trainer.step (global step 3) has raised ValueError: odd"
    with peers.noting_errors(4):
        pass
    assert peers.raised == ""


def test_all_trainers_of_a_process_count_the_same_agreements() -> None:
    membership = OneOfSeveral(ThreadGroup.of(1)[0])
    assert Peers.of(membership).membership is membership
    assert Peers.of(membership) is Peers.of(membership)
