"""Scheduling policies, one small file each. See ``base.py`` for what they are."""
