"""The steps that a script asks for: each is made, recorded and counted."""

from __future__ import annotations

import time

from virtualflow.core.seeds import derive
from virtualflow.core.sharding import GlobalBatch
from virtualflow.train.course import Course
from virtualflow.train.instruments import Engine, Instruments
from virtualflow.train.phases import check_phase
from virtualflow.train.preparation import Settled
from virtualflow.train.seeding import reseed
from virtualflow.train.step_metrics import StepLoss


class StepCalls:
    """What a Trainer's ``step`` and ``gradients`` do."""

    def __init__(self, engine: Engine, course: Course, settled: Settled, instruments: Instruments) -> None:
        self._engine = engine
        self._course = course
        self._seed = settled.seed
        self._trainer = settled.number
        self._instruments = instruments

    def make(self, batch: GlobalBatch, phase: str, *, update: bool) -> StepLoss:
        """Make a step of *phase* on *batch*, together with the other workers; without *update*, leave its gradients."""
        engine, loop, journal = self._engine, self._course.loop, self._course.journal
        feed = self._course.passes.feed_of(batch)
        check_phase(phase, engine.runners)
        if not engine.live.parts.model.training:
            journal.warn_once(
                "trainer.step trains a model that is in eval mode: without dropout, and with batch norm's running "
                "statistics. If a test of your own called model.eval(), call model.train() after it; "
                "trainer.evaluate(dataset, metric_fn) sets the mode back by itself."
            )
        started, step = time.perf_counter(), loop.position.global_step
        try:
            with engine.peers.noting_errors(step):
                result = engine.runners[phase].run(batch, step, feed, update=update)
        finally:
            reseed(derive(self._seed, "after", batch.epoch, batch.step))
        seconds = time.perf_counter() - started
        for verdict in result.verdicts:
            journal.verdict_reached(step, verdict)
        chain = journal.step_done(loop.position, batch, result, seconds)
        loop.complete_step(batch.step, chain)
        pace = engine.pace
        engine.peers.membership.report_pace(loop.position.global_step, pace.wave_seconds, pace.overran)
        self._instruments.end_step(self._trainer, step)
        return StepLoss(result.loss, result.metrics)
