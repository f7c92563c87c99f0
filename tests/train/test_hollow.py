"""Values whose tensors travel apart from them: what is filled has the same shape, order in memory and type."""

from __future__ import annotations

import torch

from virtualflow.train.hollow import filled, hollow, memory_of

STATE = {
    "weights": [torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3).t()],
    "count": (torch.tensor(3, dtype=torch.int64), 7, "seven", None),
}


def test_tensors_come_back_with_their_strides_and_types() -> None:
    tensors: list[torch.Tensor] = []
    made: list[torch.Tensor] = []
    again = filled(hollow(STATE, tensors), made, torch.device("cpu"))
    assert [(t.shape, t.stride(), t.dtype) for t in made] == [(t.shape, t.stride(), t.dtype) for t in tensors]
    assert again["count"][1:] == (7, "seven", None)
    assert isinstance(again["count"], tuple)
    assert again["weights"][1] is made[1]


def test_what_a_hollow_value_holds_can_be_written_as_text() -> None:
    described = hollow(STATE, [])
    assert "tensor(" not in repr(described)


def test_a_view_with_gaps_is_sent_without_them() -> None:
    tensors: list[torch.Tensor] = []
    hollow(torch.arange(10.0)[::2], tensors)
    assert memory_of(tensors[0]).numel() == 5 * 4


def test_the_bytes_of_a_transposed_tensor_are_those_of_its_memory() -> None:
    plain = torch.arange(6, dtype=torch.uint8).reshape(2, 3)
    assert memory_of(plain.t()).tolist() == [0, 1, 2, 3, 4, 5]
