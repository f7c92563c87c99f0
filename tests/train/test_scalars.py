"""The numbers of each virtual node arrive everywhere, to the bit."""

from __future__ import annotations

import math
from functools import partial

from virtualflow.testing import ThreadGroup, run_together
from virtualflow.train.scalars import (
    INFINITE_BITS,
    NodeScalars,
    peak_value,
    read_pairs,
    read_scalars,
    reduce_pairs,
    reduce_scalars,
)

NAMES = ("accuracy", "tokens")
REPORTS = {
    0: NodeScalars(-1.5, 3.0, 7, -9, 0, is_mean=True),
    1: NodeScalars(
        -math.inf,
        5e-324,
        -(2**62),
        2**62,
        4,
        is_mean=False,
        born=True,
        unnamed=True,
        metrics={"tokens": (math.inf, 0.0)},
    ),
    3: NodeScalars(0.1 + 0.2, 1.0, 1, 2, 0, is_mean=True, metrics={"accuracy": (-0.0, 2.0), "tokens": (-7.5, 0.0)}),
}


def test_every_worker_reads_what_each_virtual_node_wrote() -> None:
    mine = [{0: REPORTS[0], 3: REPORTS[3]}, {1: REPORTS[1]}]
    peaks = [[5, -1, 0], [3, -1, INFINITE_BITS]]
    made = [partial(reduce_scalars, m, p, 4, NAMES, g) for m, p, g in zip(mine, peaks, ThreadGroup.of(2), strict=True)]
    for packed in run_together(*made):
        scalars = read_scalars(packed, 4, NAMES)
        assert scalars.nodes == REPORTS  # virtual node 2 had no examples
        assert scalars.peaks == [5, -1, INFINITE_BITS]


def test_total_and_weight_are_summed_in_the_order_of_the_virtual_nodes() -> None:
    scalars = read_scalars(reduce_scalars({3: REPORTS[3], 0: REPORTS[0]}, [], 4, NAMES, None), 4, NAMES)
    assert (scalars.total, scalars.weight) == (-1.5 + (0.1 + 0.2), 4.0)


def test_a_total_that_is_no_number_arrives_as_one() -> None:
    report = NodeScalars(math.nan, 1.0, 0, 0, 0, is_mean=True)
    assert math.isnan(read_scalars(reduce_scalars({0: report}, [], 1, NAMES, None), 1, NAMES).nodes[0].total)


def test_pairs_come_in_order() -> None:
    made = [partial(reduce_pairs, {rank: (rank - 0.5, -0.0)}, 2, g) for rank, g in enumerate(ThreadGroup.of(2))]
    assert [read_pairs(packed) for packed in run_together(*made)] == [[(-0.5, -0.0), (0.5, -0.0)]] * 2


def test_no_peak_counts_as_zero() -> None:
    assert [peak_value(bits) for bits in (-1, 0)] == [0.0, 0.0]
    assert peak_value(INFINITE_BITS) == math.inf
