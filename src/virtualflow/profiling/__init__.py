"""``vf profile``: runs a script as small jobs that measure it, on each device type and between devices.

``bench`` is all of it. What a worker measures is in ``train.profiler``; what a profile is, in ``core.profile``.
"""
