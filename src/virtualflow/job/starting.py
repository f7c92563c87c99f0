"""How the workers of a job start: the first ones, those that join later, and those from other launchers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from virtualflow.core.roster import Roster
from virtualflow.errors import LaunchError, NotReadyError
from virtualflow.job.balancing import Balancing
from virtualflow.job.crew import Crew
from virtualflow.job.early_calls import EarlyCalls
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import EarlyResult, FromWorker, WorkAssigned
from virtualflow.program.manifest import RunningProgram, changed_text, read_modules

RETRY_SECONDS = 0.5  # before a worker that could not be started is tried again
START_SECONDS = 120.0  # for a process to fork the first ones from


class Starting:
    """Starts workers in *crew*, each with its spec; joiners are sent the results of early calls."""

    def __init__(
        self,
        job: JobSpec,
        folder: JobFolder,
        running_program: RunningProgram,
        crew: Crew,
        roster: Roster,
        balancing: Balancing,
        resume_from: Path | None,
    ) -> None:
        self._job = job
        self._folder = folder
        self._running_program = running_program
        self._crew = crew
        self._roster = roster
        self._balancing = balancing
        self._resume_from = resume_from
        self._early_calls = EarlyCalls()

    def check_files(self) -> None:
        """Raise LaunchError if a worker that starts now would read other files than the job has read."""
        if changed := self._running_program.program.changed():
            raise LaunchError(changed_text(map(self._running_program.program.shown, changed)))

    def start_first(self, device: str, address: str, wait: Callable[[float], None]) -> None:
        """Start a worker of the job's first generation, which is there from the beginning or not at all.

        *wait* takes the seconds until the next try, and lets them pass.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._crew.start(self._spec(device, address, joins=False))
                return
            except NotReadyError:
                if time.monotonic() > deadline:
                    raise
                wait(RETRY_SECONDS)

    def start_joiner(self, device: str, address: str) -> None:
        """Start a worker that joins. Raises NotReadyError or OSError if that is not possible now."""
        worker = self._crew.start(self._spec(device, address, joins=True))
        self._send_early_results(worker.device)

    def admit(self, device: str, address: str, wire: Wire[FromWorker], host: str, pid: int) -> None:
        """Let a worker join that another launcher has started on *host*."""
        self._crew.admit(device, wire, host, pid)
        spec = self._spec(device, address, joins=True)
        wire.send(WorkAssigned(spec, read_modules(self._folder.snapshot)))
        self._send_early_results(device)

    def keep(self, result: EarlyResult) -> None:
        """Keep the result of an early call for later joiners, and send it to those that are starting."""
        if self._early_calls.add(result):
            self._crew.send(self._roster.starting, result)

    def _send_early_results(self, device: str) -> None:
        for result in self._early_calls.results:
            self._crew.send((device,), result)

    def _spec(self, device: str, address: str, *, joins: bool) -> WorkerSpec:
        job = self._job
        return WorkerSpec(
            job_id=job.job_id,
            description=job.description,
            job_folder=str(self._folder.path),
            device=device,
            devices=self._roster.generation.devices,
            address=address,
            patience_seconds=job.patience_seconds,
            joins=joins,
            balances=self._roster.speeds is not None and job.description.owners is None,
            reports_pace=self._balancing.needs_step_times,
            mixed=self._balancing.mixed,
            may_outlive=job.backend == "local" and job.resumable,
            resume_from=str(self._resume_from) if self._resume_from else None,
        )
