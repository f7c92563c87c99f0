"""The course of a job: the objects that keep where it is, and lead a script there and through its loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from virtualflow.loggers import Tool
from virtualflow.train.boundary import Boundary
from virtualflow.train.comparisons import Comparisons
from virtualflow.train.entrance import Entrance
from virtualflow.train.instruments import Engine, Instruments
from virtualflow.train.journal import Journal
from virtualflow.train.loading import Loading
from virtualflow.train.passes import Passes
from virtualflow.train.position import Loop
from virtualflow.train.preparation import Settled
from virtualflow.train.resuming import Resuming
from virtualflow.train.saving import Checkpoints


@dataclass(frozen=True, slots=True)
class Course:
    """What accompanies a script through its loops."""

    loop: Loop
    journal: Journal
    checkpoints: Checkpoints
    boundary: Boundary
    comparisons: Comparisons
    resuming: Resuming
    entrance: Entrance
    passes: Passes

    @classmethod
    def of(
        cls,
        facts: dict[str, Any],
        engine: Engine,
        settled: Settled,
        loading: Loading,
        instruments: Instruments,
        tools: Sequence[Tool],
    ) -> Course:
        """The course of a job that *engine* trains. *facts* say which job this is."""
        live, peers, recorded, number = engine.live, settled.peers, settled.recorded, settled.number
        loop = Loop()
        tools = tools if instruments.keep_files else ()
        journal = Journal(peers, number, settled.virtual_nodes, tools if instruments.keep_files else (), live.stages)
        checkpoints = Checkpoints(peers.membership.job, facts, live, loop, peers, recorded)
        boundary = Boundary(live, loop, peers, recorded, checkpoints, journal)
        comparisons = Comparisons(live, loop, peers, engine.undeclared, journal)
        resuming = Resuming(facts, live, loop, recorded, comparisons, journal)
        entrance = Entrance(number, live, loop, peers, recorded, checkpoints, boundary, comparisons, resuming, journal)
        passes = Passes(engine, instruments, loop, loading, entrance, boundary, comparisons, checkpoints, journal)
        return cls(loop, journal, checkpoints, boundary, comparisons, resuming, entrance, passes)
