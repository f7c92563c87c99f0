"""One running job: the coordinator and its workers, who belongs to it, how they talk, and the folder it leaves.

``coordinator`` receives what workers say, asks ``core.roster``, and carries out what that decides; ``crew`` has the
workers' processes and lines. ``worker`` is the other end: it joins this package with ``train``. Which jobs run on which
devices is the manager's business; where workers run is a backend's. Start with ``coordinator``, then ``member``.
"""
