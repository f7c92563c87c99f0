"""A cluster in virtual time: the same scheduler as live ones have, driven by a trace.

``engine`` is the loop; ``metrics``, ``charts`` and ``report`` say what came out. Start with ``engine``.
"""
