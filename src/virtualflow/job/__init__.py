"""One running job: the coordinator and its workers, the messages between them, and the folder that a job leaves.

``coordinator`` receives messages, asks ``core.roster``, and carries out what that decides; ``crew`` has the workers'
processes and lines. ``worker`` is the other end: it joins this package with ``train``. Which jobs run on which devices
is the manager's business; where workers run is a backend's. Start with ``wire_messages``, ``coordinator`` and
``member``.
"""
