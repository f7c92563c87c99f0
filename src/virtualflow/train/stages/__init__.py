"""A model that is cut into stages: how it is put together, what a device holds and runs of it, and what travels.

Nothing of it runs without ``stages=``. Which device runs what is decided in ``core/cells.py``. Start with ``staging``.
"""
