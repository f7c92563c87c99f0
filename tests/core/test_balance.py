"""Who gets how many virtual nodes, and when some move: values in, values out."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.core.balance import Balancer, Speeds, balanced
from virtualflow.core.mapping import Mapping, rebalance, spread
from virtualflow.core.profile import Point, Profile, Workload
from virtualflow.errors import MappingError


def speeds(**seconds: float) -> Speeds:
    """Device types by the time of a virtual node of one example; each holds up to 8."""
    profiles = {name: Profile(name, (Point(1, each), Point(8, 8 * each))) for name, each in seconds.items()}
    return Speeds(Workload("w", profiles))


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 5))
def test_nodes_of_one_size_end_as_early_as_any_mapping_allows(times: list[int], more: int) -> None:
    devices = tuple(f"t{place}:0" for place in range(len(times)))
    known = speeds(**{f"t{place}": float(seconds) for place, seconds in enumerate(times)})
    sizes = [1] * (len(devices) + more)
    result = balanced(spread(len(sizes), devices), devices, sizes, known)
    every = (Mapping(owners) for owners in itertools.product(devices, repeat=len(sizes)))
    best = min(known.slowest(mapping, sizes) for mapping in every if set(mapping.devices) == set(devices))
    assert known.slowest(result, sizes) == pytest.approx(best)


@settings(deadline=None)
@given(st.integers(1, 12), st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_alike_devices_get_what_an_even_split_gives_them(virtual_nodes: int, counts: list[int]) -> None:
    mapping = spread(virtual_nodes, ("0",))
    for count in counts:
        devices = tuple(str(number) for number in range(min(count, virtual_nodes)))
        even = rebalance(mapping, devices)
        result = balanced(mapping, devices, [1] * virtual_nodes, Speeds())
        assert sorted(Counter(result.devices).values()) == sorted(Counter(even.devices).values())
        moved = sum(a != b for a, b in zip(result.devices, mapping.devices, strict=True))
        assert moved == sum(a != b for a, b in zip(even.devices, mapping.devices, strict=True))
        mapping = result


def test_a_node_goes_nowhere_where_it_does_not_fit() -> None:
    profiles = {"big": Profile("big", (Point(8, 1.0),)), "small": Profile("small", (Point(2, 0.01),))}
    known = Speeds(Workload("w", profiles))
    result = balanced(spread(5, ("big:0",)), ("big:0", "small:0"), [8, 8, 2, 2, 2], known)
    assert result.devices[:2] == ("big:0", "big:0")
    assert "small:0" in result.devices
    with pytest.raises(MappingError, match="memory"):
        balanced(spread(2, ("small:0",)), ("small:0",), [8, 8], known)


def watched(balancer: Balancer, mapping: Mapping, sizes: list[int], seconds: dict[str, float], steps: range) -> Mapping:
    """Let a job run; *seconds* is what a virtual node takes on each device."""
    for step in steps:
        for device in seconds:
            nodes = mapping.nodes_of(device)
            balancer.note(device, [sizes[node] for node in nodes], len(nodes) * seconds[device])
        better = balancer.better(step, mapping, sizes)
        if better is not None:
            mapping = better
            balancer.forget()
    return mapping


def test_a_straggler_hands_over_virtual_nodes_within_a_few_steps() -> None:
    devices, sizes = ("0", "1", "2", "3"), [1] * 16
    balancer = Balancer(Speeds())
    mapping = watched(balancer, spread(16, devices), sizes, dict.fromkeys(devices, 0.1), range(20))
    assert Counter(mapping.devices) == dict.fromkeys(devices, 4)
    mapping = watched(balancer, mapping, sizes, {**dict.fromkeys(devices, 0.1), "2": 0.3}, range(20, 32))
    assert Counter(mapping.devices)["2"] == 1  # 0.3 s, while the others take 0.5
    mapping = watched(balancer, mapping, sizes, dict.fromkeys(devices, 0.1), range(32, 60))
    assert Counter(mapping.devices) == dict.fromkeys(devices, 4)


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_noise_moves_nothing(random: object) -> None:
    devices, sizes = ("0", "1", "2"), [1] * 12
    balancer, start = Balancer(Speeds()), spread(12, devices)
    for step in range(60):
        for device in devices:
            balancer.note(device, [1] * 4, 0.4 * random.uniform(0.96, 1.04))  # type: ignore[attr-defined]
        assert balancer.better(step, start, sizes) is None


def test_a_short_hiccup_moves_nothing() -> None:
    devices, sizes = ("0", "1"), [1] * 8
    balancer, start = Balancer(Speeds()), spread(8, devices)
    for step in range(40):
        late = {"0": 0.4, "1": 4.0 if step in (10, 25) else 0.4}
        for device in devices:
            balancer.note(device, [1] * 4, late[device])
        assert balancer.better(step, start, sizes) is None


def test_moves_that_bring_nothing_become_rare() -> None:
    # A device whose measured time has nothing to do with its load would make a naive balancer thrash.
    devices, sizes = ("0", "1"), [1] * 8
    balancer, mapping, moves = Balancer(Speeds()), spread(8, devices), []
    for step in range(400):
        slow = "0" if (step // 15) % 2 else "1"
        for device in devices:
            nodes = len(mapping.nodes_of(device))
            balancer.note(device, [1] * nodes, nodes * (0.3 if device == slow else 0.1))
        better = balancer.better(step, mapping, sizes)
        if better is not None:
            mapping = better
            balancer.forget()
            moves.append(step)
    assert len(moves) <= 400 // 15 + 1
    assert all(later - sooner >= 8 for sooner, later in itertools.pairwise(moves))
