"""Scheduling, pure: events in, actions out. Policies decide who gets how many devices, ``placement`` which ones.

No clock, no I/O, no torch: ``sim`` drives it in virtual time, ``manager`` on the wall clock. How fast a job would run
is in ``throughput``. Start with ``scheduler``, then ``policies.wfs``.
"""
