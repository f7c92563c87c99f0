"""Profiles in, plans out: how many virtual nodes of which size each device type gets, so that a step is fastest.

``search`` finds the best plan; ``plan`` is a plan as a file, ``profile_files`` and ``device_files`` are the inputs as
files. Runs nothing. Start with ``node_shares``, which says what a plan is, then ``search``.
"""
