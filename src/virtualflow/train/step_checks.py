"""What a step is refused for, once the scalars of all its virtual nodes are known, and before anything is updated."""

from __future__ import annotations

import math

from virtualflow.errors import HiddenStateError, LossError, NonFiniteError
from virtualflow.train.buffers import Buffers
from virtualflow.train.reduction import Reduction
from virtualflow.train.scalars import NodeScalars, StepScalars

_NON_FINITE_ADVICE = (
    'The model was not updated. Lower the learning rate, or set clip_grad_norm; on_nan="continue" trains on regardless.'
)


class StepChecks:
    """Looks at the results of a step. Numbers that are not finite are refused if *must_be_finite*."""

    def __init__(self, reduction: Reduction, buffers: Buffers, *, must_be_finite: bool) -> None:
        self._reduction = reduction
        self._buffers = buffers
        self._must_be_finite = must_be_finite

    def check(self, global_step: int, scalars: StepScalars) -> None:
        """Refuse a step without weight, whose virtual nodes contradict each other, or that is not finite."""
        if scalars.weight == 0:
            raise LossError(
                f"the weights of step {global_step} add up to 0, so there is no mean to take. Does loss_fn mask out "
                "every token of the batch?"
            )
        first, *others = scalars.nodes.items()
        for node, report in others:
            if report.integers != first[1].integers:
                raise HiddenStateError(self._integer_advice(global_step, first[0], node))
            if report.is_mean != first[1].is_mean:
                raise LossError(
                    f"in step {global_step}, loss_fn returned a mean for one of virtual nodes {first[0]} and {node} "
                    "and (total, weight) for the other. It must always return the same kind."
                )
        if self._must_be_finite:
            for node, report in scalars.nodes.items():
                self._check_node(global_step, node, report)
            if (name := self._reduction.not_finite(scalars.peaks)) is not None:
                raise NonFiniteError(
                    f"in step {global_step}, the gradient of {name!r} has values that are not finite. "
                    + _NON_FINITE_ADVICE
                )

    def check_norm(self, global_step: int, norm: float | None, weight: float) -> None:
        """Refuse a gradient that has left the range of its type when it was divided by the summed *weight*."""
        if self._must_be_finite and norm is not None and not math.isfinite(norm):
            raise NonFiniteError(
                f"in step {global_step}, the gradient's norm is {norm}, although all virtual nodes' gradients "
                f"are finite: divided by the summed weight of {weight:.3g}, they leave the range of their type. "
                + _NON_FINITE_ADVICE
            )

    def _check_node(self, global_step: int, node: int, report: NodeScalars) -> None:
        if math.isfinite(report.total) and not report.unclean:
            return
        what = (
            f"the gradient of {self._reduction.names[report.unclean - 1]!r} has values that are not finite"
            if math.isfinite(report.total)
            else f"the loss is {report.total}"
        )
        raise NonFiniteError(
            f"in step {global_step}, virtual node {node}, {what}. Look at that shard. {_NON_FINITE_ADVICE}"
        )

    def _integer_advice(self, global_step: int, one: int, other: int) -> str:
        changed = [self._buffers.all[index] for index in self._buffers.changed]
        names = [buffer.name for buffer in changed if not buffer.tensor.is_floating_point()]
        return (
            f"in step {global_step}, virtual nodes {one} and {other} left different values in an integer buffer "
            f"({', '.join(names) or 'of another worker'}). Virtual nodes run as if at the same time, so an integer "
            "can't be averaged: make it depend on the step alone, or use a floating point buffer."
        )
