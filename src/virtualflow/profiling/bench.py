"""Runs a script as small jobs that measure it, for ``vf profile``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtualflow.backends.local import LocalBackend
from virtualflow.core.devices import type_of
from virtualflow.core.emulation import Devices
from virtualflow.core.profile import Point
from virtualflow.core.stage_profile import Link, StagePoint
from virtualflow.core.wording import counted
from virtualflow.errors import LaunchError
from virtualflow.events.lines import newest_first
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.output import LeadOutput
from virtualflow.job.serve import run_job
from virtualflow.job.tokens import parse_address
from virtualflow.system.home import home, new_job_id

MOST_COUNTS = 4  # of devices, or of machines, at which communication is measured

CommunicationCosts = tuple[tuple[int, float], ...]  # by count, in seconds
Describe = Callable[[JobFolder], str | None]
Show = Callable[[str | None], None]  # how far a measurement is, in place of what was shown before; None: no news


class InterruptedMeasurement(Exception):  # noqa: N818  (no error)
    """Ctrl-C or a signal has interrupted it; *code* is the exit code for that."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class JoinAddress:
    """Where workers from other machines come in."""

    address: str
    token_file: Path

    @property
    def host(self) -> str:
        return parse_address(self.address)[0]

    @property
    def command(self) -> str:
        return f"vf join {self.address} --token-file {self.token_file.name}"


@dataclass(frozen=True, slots=True)
class Bench:
    """Measures *script* on *devices*. ``progress(title)`` gives something to show how far a measurement is."""

    script: Path
    arguments: tuple[str, ...]
    devices: Devices
    device_type: str  # of the job that measures them, as ``--device-type`` has it
    backend: LocalBackend
    progress: Callable[[str], AbstractContextManager[Show]]
    seconds: float  # that a measurement may take, or wait for machines

    def node_sizes(self, device_type: str, want: dict[str, Any]) -> dict[str, Any]:
        """Node sizes on one device of a type; of a model in stages, for each of them."""
        name = next(name for name in self.devices.names if type_of(name) == device_type)

        def describe(folder: JobFolder) -> str | None:
            if (line := _last_line(folder)) is None:
                return None
            if "stage" in line:
                return _stage_line(device_type, line)
            point = Point(**line)
            low, high = point.low or point.seconds, point.high or point.seconds
            return (
                f"{device_type}: node size {point.node_size}, {point.seconds * 1e3:.4g} ms "
                f"({low * 1e3:.4g} to {high * 1e3:.4g}), {point.examples_per_second:.4g} examples/s"
            )

        return self._run((name,), want, describe, f"{device_type}: starting")

    def between_devices(self) -> CommunicationCosts:
        """What more devices of this machine add to a step at node size 1."""
        most = len(self.devices.names)

        def describe(folder: JobFolder) -> str | None:
            return _measured(folder, "device")

        result = self._communication(most, most, describe)
        return _costs(result["step_seconds"])

    def between_stages(self) -> Link:
        """What a message between two devices of this machine costs, in a job whose model is cut into stages."""
        result = self._run(
            self.devices.names[:2], {"what": "link"}, lambda _: None, "messages: starting", node_sizes=(1, 1)
        )
        return Link(**result["link"])

    def between_machines(self, most: int, join: JoinAddress) -> CommunicationCosts:
        """What more machines, with one device each, add to a step at node size 1."""

        def describe(folder: JobFolder) -> str | None:
            missing = most - max(1, len(folder.read_state().workers))
            if (measured := _measured(folder, "machine")) is not None or not missing:
                return measured or f"communication: {most} machines"
            return f"waiting for {missing} of {most} machines: run `{join.command}` there"

        result = self._communication(1, most, describe, join)
        hosts = sorted({join.host, *(device.rpartition("/")[0] for device in result["devices"][1:])})
        if len(hosts) < most:
            raise LaunchError(
                f"{len(hosts)} of {most} machines took part: {', '.join(hosts)}. Run `{join.command}` once on each "
                f"other machine, with a copy of {join.token_file}, within --minutes; or lower --machines."
            )
        if result["step_seconds"].keys() != {str(count) for count in _counts(most)}:
            raise LaunchError("a machine was lost while communication was measured. Try again.")
        return _costs(result["step_seconds"])

    def _communication(
        self, here: int, most: int, describe: Describe, join: JoinAddress | None = None
    ) -> dict[str, Any]:
        """Step times by count, on *most* devices of which *here* exist: all stand for the first type's."""
        first = type_of(self.devices.names[0])
        names = tuple(f"{first}:{number}" for number in range(here))
        emulated = self.devices.emulated.get(self.devices.names[0])
        want = {"what": "communication", "counts": _counts(most), "seconds": self.seconds}
        return self._run(
            names,
            want,
            describe,
            "communication: starting",
            emulated=dict.fromkeys(names, emulated) if emulated else {},
            node_sizes=(1,) * most,
            listen=join.address if join is not None else None,
            token_file=str(join.token_file) if join is not None else None,
        )

    def _run(
        self, names: tuple[str, ...], want: dict[str, Any], describe: Describe, title: str, **more: Any
    ) -> dict[str, Any]:
        """Run the script as a job that measures what it is to; return the result."""
        emulated = {name: facts for name, facts in self.devices.emulated.items() if name in names}
        job = JobSpec.of(
            job_id=new_job_id(),
            script=str(self.script),
            arguments=self.arguments,
            devices=names,
            device_type=self.device_type,
            profiling=want,
            replace_lost=False,
            resumable=False,
            **({"emulated": emulated} | more),
        )
        folder = JobFolder(home() / "jobs" / job.job_id)
        folder.create(job)
        shown = LeadOutput() if sys.stdout.isatty() else None
        with self.progress(title) as show:
            outcome = run_job(folder, shown, lambda: show(describe(folder)), backend=self.backend)
        if outcome.was_interrupted:
            raise InterruptedMeasurement(outcome.code)
        result = folder.path / "profile.json"
        if outcome.code or not result.exists():
            reason = outcome.failure.text.strip() if outcome.failure else f"it ended with exit code {outcome.code}"
            raise LaunchError(
                f"{self.script} could not be measured: {reason}\nIt must train with a vf.Trainer; `vf run "
                f"{self.script}` shows whether it does."
            )
        contents: dict[str, Any] = json.loads(result.read_text())
        return contents


def _counts(most: int) -> list[int]:
    """A few from *most* down to 2, and 1."""
    between = {round(2 + (most - 2) * part / (MOST_COUNTS - 1)) for part in range(MOST_COUNTS)}
    return [*sorted(between, reverse=True), 1]


def _costs(step_seconds: dict[str, float]) -> CommunicationCosts:
    """What each count adds to the step of one device alone."""
    by_count = {int(count): seconds for count, seconds in step_seconds.items()}
    return tuple((count, max(0.0, by_count[count] - by_count[1])) for count in sorted(by_count) if count > 1)


def _last_line(folder: JobFolder) -> dict[str, Any] | None:
    path = folder.path / "profile.jsonl"
    newest = next(newest_first(path), None) if path.exists() else None
    line: dict[str, Any] | None = json.loads(newest) if newest is not None else None
    return line


def _stage_line(device_type: str, line: dict[str, Any]) -> str:
    stage = line.pop("stage")
    point = StagePoint(**line)
    return (
        f"{device_type}: stage {stage}, node size {point.node_size}, {point.forward_seconds * 1e3:.4g} ms forward, "
        f"{point.backward_seconds * 1e3:.4g} ms backward"
    )


def _measured(folder: JobFolder, noun: str) -> str | None:
    if (line := _last_line(folder)) is None:
        return None
    return f"communication: {counted(line['devices'], noun)}, {line['step_seconds'] * 1e3:.4g} ms a step"
