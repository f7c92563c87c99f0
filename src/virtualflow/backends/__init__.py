"""Where workers run: as processes of this machine (``local``, forked from ``forkserver``) or on a Ray cluster (``ray``,
with ``remote_*`` for what passes between machines). Each fulfils ``job.backend``: start there, then read ``local``.
Knows nothing of virtual nodes.
"""
