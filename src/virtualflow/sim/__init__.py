"""A cluster in virtual time: the same scheduler as live ones have, driven by a trace.

``engine`` is the loop; ``compare`` and ``metrics`` have the figures of what came out, and ``dashboard`` shows
them. Start with ``engine``.
"""
