"""The service behind ``vf cluster up``: many jobs on one set of devices.

``manager`` reconciles what the scheduler wants with what runs; ``records`` keeps what must not be forgotten; ``fleet``
launches, watches, moves and stops jobs; ``api`` serves all of it over HTTP, with ``client`` at the other end. What
happens inside one job is in ``job``. Start with ``manager``.
"""
