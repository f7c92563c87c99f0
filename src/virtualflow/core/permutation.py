"""A shuffled order of any length that is never in memory: where each position goes is computed when it is asked for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from virtualflow.core.seeds import derive

Positions = npt.NDArray[np.int64]
ROUNDS = 6


def permuted(positions: Positions, length: int, seed: int) -> Positions:
    """For each of *positions*, all below *length*, its place in an order that *seed* decides. No two share one."""
    # A Feistel network permutes numbers of an even number of bits; those that land beyond the length go on until they
    # land within it, which keeps it a permutation. Less than 4 rounds through the network on average.
    half = max(1, ((length - 1).bit_length() + 1) // 2)
    keys = [derive(seed, "permutation", number) for number in range(ROUNDS)]
    places = _mixed(positions.astype(np.uint64), half, keys)
    while (beyond := places >= length).any():
        places[beyond] = _mixed(places[beyond], half, keys)
    return places.astype(np.int64)


def _mixed(numbers: npt.NDArray[np.uint64], half: int, keys: list[int]) -> npt.NDArray[np.uint64]:
    mask = np.uint64((1 << half) - 1)
    left, right = numbers >> np.uint64(half), numbers & mask
    for key in keys:
        left, right = right, left ^ (_hashed(right + np.uint64(key << 32)) & mask)
    return (left << np.uint64(half)) | right


def _hashed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of MurmurHash3: every bit of the result depends on every bit of the number."""
    numbers = (numbers ^ (numbers >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    numbers = (numbers ^ (numbers >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return numbers ^ (numbers >> np.uint64(33))
