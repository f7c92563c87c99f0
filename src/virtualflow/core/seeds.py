"""Randomness as a pure function: a seed is derived from what it is for, never carried along."""

from __future__ import annotations

import hashlib


def derive(seed: int, *parts: int | str) -> int:
    """A 32-bit seed for *parts*: equal parts give equal seeds, others unrelated ones."""
    # 32 bits, because torch's CPU generator ignores the rest.
    text = repr((seed, *parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")
