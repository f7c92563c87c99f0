"""Scheduling policies, one small file each, and none of them does I/O. ``registry`` lists them by name.

Start with ``base``, which says what a policy is, then ``fifo`` and ``priority``.
"""
