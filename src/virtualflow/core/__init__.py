"""The promise as pure functions and frozen values: virtual nodes and who runs them, shards, seeds, the exact grid,
the certificate, and the roster, which decides who belongs to a job.

No torch, no files, no clock, no environment, no processes: what needs those is in ``system``, ``program`` or ``job``.
Start with ``mapping``, then ``roster``.
"""
