"""How the workers of a job start: the first ones, those that join later, and those from other launchers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from virtualflow.core.roster import Roster
from virtualflow.errors import LaunchError
from virtualflow.job.backend import NotReadyError
from virtualflow.job.balancing import Balancing
from virtualflow.job.crew import Crew
from virtualflow.job.early_calls import EarlyCalls
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import EarlyResult, FromWorker, WorkAssigned
from virtualflow.program.manifest import Record, changed_text, read_modules

RETRY_SECONDS = 0.5  # before a worker that could not be started is tried again
START_SECONDS = 120.0  # for a process to fork the first ones from


class Starting:
    """Starts workers in *crew*, each with what it needs to know; whoever joins is sent the results of early calls."""

    def __init__(
        self,
        job: JobSpec,
        folder: JobFolder,
        record: Record,
        crew: Crew,
        roster: Roster,
        balancing: Balancing,
        resume_from: Path | None,
    ) -> None:
        self._job = job
        self._folder = folder
        self._record = record
        self._crew = crew
        self._roster = roster
        self._balancing = balancing
        self._resume_from = resume_from
        self._early_calls = EarlyCalls()

    def check_files(self) -> None:
        """Raise LaunchError if whoever starts now would not read what the job has read."""
        if changed := self._record.program.changed():
            raise LaunchError(changed_text(map(self._record.program.shown, changed)))

    def start_first(self, device: str, address: str, wait: Callable[[float], None]) -> None:
        """Start a worker of the job's first generation, which is there from the beginning or not at all.

        *wait* lets so many seconds pass until the next try.
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
        """Keep the result of an early call for those who join, and send it to those who are on their way."""
        if self._early_calls.add(result):
            for device in self._roster.starting:
                self._crew.send(device, result)

    def _send_early_results(self, device: str) -> None:
        for result in self._early_calls.results:
            self._crew.send(device, result)

    def _spec(self, device: str, address: str, *, joins: bool) -> WorkerSpec:
        job = self._job
        return WorkerSpec(
            job_id=job.job_id,
            job_folder=str(self._folder.path),
            device=device,
            devices=self._roster.generation.devices,
            script=job.script,
            arguments=job.arguments,
            address=address,
            patience_seconds=job.patience_seconds,
            owners=job.owners,
            threads_per_device=job.threads_per_device,
            device_type=job.device_type,
            audit=job.audit,
            joins=joins,
            node_sizes=job.node_sizes,
            balances=self._roster.speeds is not None and job.owners is None,
            reports_pace=self._balancing.needs_step_times,
            mixed=self._balancing.mixed,
            instruments={"emulated": job.emulated.get(device), "measurement": job.profiling},
            checkpoint_every=job.checkpoint_every,
            resume_from=str(self._resume_from) if self._resume_from else None,
            hash_seed=job.hash_seed,
        )
