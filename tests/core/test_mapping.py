import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.core.mapping import Mapping, assign, spread
from virtualflow.errors import MappingError


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 200))
def test_spread_is_even_contiguous_and_complete(virtual_nodes: int, devices: int) -> None:
    names = [str(device) for device in range(devices)]
    if devices > virtual_nodes:
        with pytest.raises(MappingError, match=f"at most {virtual_nodes} devices"):
            spread(virtual_nodes, names)
        return
    mapping = spread(virtual_nodes, names)
    counts = [len(mapping.nodes_of(name)) for name in names]
    assert max(counts) - min(counts) <= 1
    assert max(counts) == mapping.waves
    assert [node for name in names for node in mapping.nodes_of(name)] == list(range(virtual_nodes))


def test_a_mapping_by_hand_may_be_scattered() -> None:
    mapping = assign([1, 0, 1, 0], 4, ["a", "b"])
    assert mapping.nodes_of("a") == (1, 3)
    assert mapping.nodes_of("b") == (0, 2)


@pytest.mark.parametrize(
    ("owners", "message"),
    [([0, 1], "names 2 virtual nodes"), ([0, 0, 0], "device 1 nothing"), ([0, 1, 2], "names device 2")],
)
def test_a_mapping_by_hand_must_fit(owners: list[int], message: str) -> None:
    with pytest.raises(MappingError, match=message):
        assign(owners, 3, ["a", "b"])


def test_a_mapping_needs_nodes_and_devices() -> None:
    with pytest.raises(MappingError):
        Mapping(())
    with pytest.raises(MappingError):
        spread(4, [])
