"""Does VirtualFlow keep its promises on this machine? Real jobs on its own devices: what ``vf selftest`` runs.

``promises`` has them, ``trials`` runs a job and does things to it, ``report`` is what is left to send in, and
``programs`` are what the jobs train. Start with ``promises``.
"""
