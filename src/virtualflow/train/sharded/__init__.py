"""State that is divided among the devices in blocks: who holds what, how sums get there, and how it is updated.

Nothing of it runs without ``sharding="state"``. Which device holds which block is decided in ``core/blocks.py``.
Start with ``shards``.
"""
