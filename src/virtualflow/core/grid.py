"""Where the shared grid of the exact reduction lies: exponents, and when a step must be replayed.

Every addend is rounded to a grid of spacing ``2**(e - 52)`` by ``(g + C) - C`` with ``C = 1.5 * 2**e``. Sums of such
numbers are exact in float64, in any order and over any all-reduce, while ``V * max|g| <= 2**(e + 1)``.
All decisions rest on the largest gradient over *all* virtual nodes, so that no mapping can influence them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MARGIN = 8  # a gradient may grow by 2**8 from one step to the next before a step is replayed
LOWEST = -97  # there the spacing is 2**-149, the smallest float32: nothing is rounded at all
LOWEST_DOUBLE = -1022  # the same for float64: 2**-1074
HIGHEST = 1022  # above, C or a sum could overflow
INTEGERS = 51  # the grid of integer buffers: spacing 1/2
PRECISION = 28  # bits kept, at least, between the largest gradient and the spacing


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid of one tensor."""

    exponent: int

    @property
    def constant(self) -> float:
        """The ``C`` of ``(g + C) - C``."""
        return math.ldexp(1.5, self.exponent)


def headroom(virtual_nodes: int) -> int:
    """Bits that the sum of *virtual_nodes* addends may grow by."""
    return max(1, math.ceil(math.log2(virtual_nodes)) - 1)


def summable(peak: float, virtual_nodes: int) -> bool:
    """Whether addends up to *peak* can be summed in float64 at all."""
    return peak == 0.0 or _ceil_log2(peak) + headroom(virtual_nodes) <= HIGHEST


def grid_for(peak: float, virtual_nodes: int, lowest: int = LOWEST) -> Grid:
    """The grid for addends that are likely to stay near *peak*, of a type whose lowest grid is *lowest*."""
    if peak == 0.0:
        return Grid(lowest)
    return Grid(min(HIGHEST, max(lowest, _ceil_log2(peak) + MARGIN + headroom(virtual_nodes))))


def fits(grid: Grid, peak: float, virtual_nodes: int, lowest: int = LOWEST) -> bool:
    """Whether a step whose largest addend was *peak* may be accepted: nothing overflowed, nothing was lost."""
    if peak == 0.0:
        return True
    room = headroom(virtual_nodes)
    log_peak = _ceil_log2(peak)
    too_small = log_peak > grid.exponent - room
    coarsest = max(MARGIN + 1 + room, 52 - PRECISION)
    too_coarse = grid.exponent > lowest and grid.exponent - log_peak > coarsest
    return not (too_small or too_coarse)


def after(grid: Grid, peak: float, virtual_nodes: int, lowest: int = LOWEST) -> Grid:
    """The grid of the next step. A tensor that was zero keeps its grid: it may come back."""
    return grid if peak == 0.0 else grid_for(peak, virtual_nodes, lowest)


def _ceil_log2(value: float) -> int:
    mantissa, exponent = math.frexp(value)
    return exponent - 1 if mantissa == 0.5 else exponent
