"""``vf``: one module per command, or per family of them. A command parses, calls and prints; the work is elsewhere.

``app`` lists all commands.
"""
