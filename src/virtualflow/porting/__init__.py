"""Reads a training script and says what to change for VirtualFlow, line by line. Runs nothing, and rewrites nothing.

Here live the rules, one module for each family of them, and what they read (``script``) and give (``advice``). The
command is in ``cli``. Start with ``rules``.
"""
