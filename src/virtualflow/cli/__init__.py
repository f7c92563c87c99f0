"""``vf``: one module per command, or per family of them. A command parses, calls and prints; the work is elsewhere.

Start with ``app``, which lists all commands, then ``run``. ``options`` has what several commands share.
"""
