"""Jobs beside others on the same devices: only what changes is granted, hosts before their guests."""

from __future__ import annotations

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.policies.base import NOTHING, Grant
from virtualflow.cluster.policies.guests import grants_with_guests

TWO = {"V100": 2}


def state(name: str, host: str | None = None, **counts: int) -> ScheduledJob:
    made = ScheduledJob(Job(name, 0.0, 4, 1.0))
    if counts:
        made.change(0.0, tuple(f"d{number}" for number in range(sum(counts.values()))), counts, host)
    return made


def states(*made: ScheduledJob) -> dict[str, ScheduledJob]:
    return {each.id: each for each in made}


def test_a_pair_that_stays_as_it_is_needs_nothing() -> None:
    known = states(state("host", V100=2), state("guest", "host", V100=2))
    assert grants_with_guests({"host": TWO}, {"guest": ("host", TWO)}, known) == {}


def test_a_host_that_changes_takes_its_guest_with_it_and_comes_first() -> None:
    known = states(state("guest", "host", V100=2), state("host", V100=1))
    grants = grants_with_guests({"host": TWO}, {"guest": ("host", TWO)}, known)
    assert list(grants.items()) == [("host", Grant(TWO)), ("guest", Grant(TWO, beside="host"))]


def test_a_guest_may_get_another_host_or_devices_of_its_own() -> None:
    known = states(state("a", V100=2), state("b", V100=2), state("guest", "a", V100=2))
    moved = grants_with_guests({"a": TWO, "b": TWO}, {"guest": ("b", TWO)}, known)
    assert moved == {"guest": Grant(TWO, beside="b")}
    alone = grants_with_guests({"a": TWO, "b": TWO, "guest": TWO}, {}, known)
    assert alone == {"guest": Grant(TWO)}


def test_who_has_devices_and_is_left_out_loses_them() -> None:
    known = states(state("goes", V100=2), state("waits"))
    assert grants_with_guests({}, {}, known) == {"goes": NOTHING}
