"""The service behind ``vf cluster up``: many jobs on one set of devices.

``service`` is the process; ``manager`` reconciles what the scheduler wants with what runs, and ``lifecycle`` decides
how a job's record changes; ``records`` keeps what must not be forgotten; ``fleet`` launches, watches, moves and stops
jobs; ``api`` serves all of it over HTTP, with ``client`` at the other end. What happens inside one job is in ``job``.
Start with ``lifecycle``, then ``manager``.
"""
