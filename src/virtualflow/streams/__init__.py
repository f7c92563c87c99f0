"""Data that can only be read from front to back, as a pure function: (virtual node, number) -> example.

A stream has a fixed number of logical shards, each of which belongs to one virtual node. Nothing here imports torch;
how a Trainer passes over a stream is in ``train/loading``. Start with ``stream``.
"""
