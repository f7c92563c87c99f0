"""What a job's owner asks of a cluster, wherever that is said: as it is submitted, recorded and shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobTerms:
    """Beside the description, which says what the job is."""

    priority: float = 1.0
    demand: int = 1  # devices that it can use
    min: int = 1  # devices: it waits rather than run on fewer
    virtual_nodes: int | None = None  # as its owner says, or learnt when it runs
    expect_seconds: float | None = None  # on the full demand; as its owner says, until its steps show it
    retries: int = 0  # if its script fails
    after: tuple[str, ...] = ()  # jobs, by id: it starts when all of them are done
    by: float | None = None  # when it should be done, in seconds since the epoch
    notify: str = ""  # a web address or a command that is to know when it ends
    owner: str = ""  # a user, against whose share its devices count
