"""What a step is refused for, and how a virtual node's failure is explained: with the node that is to blame."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from virtualflow.core.sharding import GlobalBatch
from virtualflow.errors import ConfigError, HiddenStateError, LossError, NonFiniteError
from virtualflow.train.attempt import Attempt, NodeReport
from virtualflow.train.node_errors import explained
from virtualflow.train.scalars import NodeScalars, StepScalars
from virtualflow.train.step_checks import StepChecks

FINE = NodeScalars(1.0, 4.0, 7, 9, 0, True)


@dataclass
class Reduced:
    names: tuple[str, ...] = ("weight", "bias")
    odd: str | None = None

    def not_finite(self, peaks: list[int]) -> str | None:
        return self.odd


def checks(*, must_be_finite: bool = True, odd: str | None = None) -> StepChecks:
    buffers: Any = SimpleNamespace(
        all=[SimpleNamespace(name="count", tensor=torch.zeros(1, dtype=torch.int64))], changed=[0]
    )
    reduced: Any = Reduced(odd=odd)
    return StepChecks(reduced, buffers, must_be_finite=must_be_finite)


def scalars(**second: Any) -> StepScalars:
    return StepScalars({0: FINE, 3: replace(FINE, **second)}, [], failed=False)


def test_a_step_in_which_all_is_well_is_not_refused() -> None:
    checks().check(5, scalars())
    checks().check_norm(5, 2.0, 8.0)
    checks().check_norm(5, None, 8.0)


@pytest.mark.parametrize(
    ("second", "error", "text"),
    [
        ({"integers": 8}, HiddenStateError, r"step 5, virtual nodes 0 and 3 .* integer buffer \(count\)"),
        ({"is_mean": False}, LossError, r"step 5, .*a mean for one of virtual nodes 0 and 3"),
        ({"total": math.nan}, NonFiniteError, r"step 5, virtual node 3, the loss is nan"),
        ({"unclean": 2}, NonFiniteError, r"step 5, virtual node 3, the gradient of 'bias'"),
    ],
)
def test_what_a_virtual_node_has_done_is_refused_with_its_number(
    second: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        checks().check(5, scalars(**second))


def test_weights_that_add_up_to_nothing_are_refused() -> None:
    empty = StepScalars({0: replace(FINE, weight=0.0)}, [], failed=False)
    with pytest.raises(LossError, match="the weights of step 5 add up to 0"):
        checks().check(5, empty)


def test_what_is_not_finite_only_in_the_sum_is_refused_by_tensor() -> None:
    with pytest.raises(NonFiniteError, match="the gradient of 'weight' has values"):
        checks(odd="weight").check(5, scalars())
    with pytest.raises(NonFiniteError, match=r"norm is inf.*summed weight of 8"):
        checks().check_norm(5, math.inf, 8.0)


def test_a_script_that_goes_on_with_what_is_not_finite_is_let() -> None:
    lenient = checks(must_be_finite=False, odd="weight")
    lenient.check(5, scalars(total=math.nan, unclean=1))
    lenient.check_norm(5, math.nan, 8.0)
    with pytest.raises(HiddenStateError):
        lenient.check(5, scalars(integers=8))


@pytest.mark.parametrize(
    ("text", "examples", "kind", "advice"),
    [
        ("Expected more than 1 value per channel when training", 1, ConfigError, "drop_last=True"),
        ("Expected all tensors to be on the same device, but got cpu", 4, ConfigError, "tensors of two devices"),
        ("Trying to backward through the graph a second time", 4, HiddenStateError, "Detach what is kept"),
    ],
)
def test_torchs_errors_get_the_step_the_virtual_node_and_what_to_do(
    text: str, examples: int, kind: type[Exception], advice: str
) -> None:
    reason = explained(RuntimeError(text), 3, examples, 5, None)
    assert type(reason) is kind
    assert str(reason).startswith("in step 5, ")
    assert "virtual node 3" in str(reason)
    assert advice in str(reason)


@pytest.mark.parametrize(("text", "examples"), [("something else", 1), ("Expected more than 1 value per channel", 2)])
def test_other_errors_stay_as_they_are(text: str, examples: int) -> None:
    assert explained(ValueError(text), 3, examples, 5, None) is None


@pytest.mark.parametrize(("is_mean", "total"), [(True, 12.0), (False, 3.0)])
def test_a_report_is_read_once_its_numbers_are_there_and_a_mean_counts_its_examples(
    is_mean: bool, total: float
) -> None:
    report = NodeReport(
        2, 4, 7, is_mean, lambda: 3.0, lambda: 4.0, lambda: [9, 1], True, False, {"right": lambda: (2.0, 4.0)}
    )
    expected = NodeScalars(total, 4.0, 7, 9, 2, is_mean, True, False, {"right": (2.0, 4.0)})
    assert report.scalars(unclean=2) == expected
    assert replace(report, weight=5.0).scalars(0).weight == 5.0


def test_a_replay_asks_for_the_same_rows_under_another_number() -> None:
    batch = GlobalBatch(epoch=1, step=2, shards=((4, 5), (6,)))
    first, second = (Attempt(batch, 9, number).request(1) for number in (0, 1))
    assert (first.epoch, first.step, first.virtual_node, tuple(first.indices)) == (1, 2, 1, (6,))
    assert second == replace(first, attempt=1)
