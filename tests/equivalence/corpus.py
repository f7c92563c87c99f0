"""The corpus: ordinary training scripts, each run in every way that a job may take, and held to what it declares.

A script declares what is to become of it in its docstring. Without a word it has the same digest and certificate
whichever way it is run. Otherwise one or more of these lines say what happens instead, in all ways or in those named:

    Refused: HiddenStateError "discriminator"
    Refused when grown, killed: CollectiveError "vf.State"
    Warned when resumed: "'best' had changed by then"
    Not promised when resumed: its variables are gone
    Equal up to rounding
    Other bits on accelerators: torch updates it in another way there
    On CPUs only: it has no deterministic kernel elsewhere
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from virtualflow.backends.local import LocalBackend
from virtualflow.errors import MappingError
from virtualflow.events import EventReader, StepDone, read_events, read_timed_events
from virtualflow.events.certificate import Certificate, compare
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec

SCRIPTS = Path(__file__).with_name("scripts")
HELD = Path(__file__).with_name("held.py")
CALM = ("python", "1 device", "2 devices", "3 devices")
DISTURBED = ("grown", "grown at the top", "killed", "resumed", "resumed at the top")
WAYS = (*CALM, *DISTURBED)
POINTS = ("forward", "backward", "before the scalars", "after the scalars", "optimizer", "after the commit")
PATIENCE_SECONDS = 10.0
LONGEST_SECONDS = 100.0
STREAMS = "events*.jsonl"
OF_DEVICES = ("device_type", "accelerator", "code", "sources", "commit")  # facts
ROUNDED, OTHER_BITS, ON_CPUS_ONLY = "Equal up to rounding", "Other bits on accelerators:", "On CPUs only:"
TOLERANCE = 1e-3  # of the losses, where a script is equal up to rounding only


class BrokenPromiseError(AssertionError):
    """A script of the corpus did not do what it declares."""


@dataclass(frozen=True)
class Refusal:
    """An error that a script is to end with: its name, and what its text has to say."""

    error: str
    says: str


@dataclass(frozen=True)
class Script:
    """One script, and what it declares."""

    path: Path
    refusals: dict[str, Refusal]  # by the way it is run
    warnings: dict[str, str]  # what it is told instead of the same bits, by the way it is run
    skipped: frozenset[str]  # ways that nothing is promised for
    rounded: bool
    other_bits: bool  # on an accelerator than on a CPU; there, too, the same in all ways
    on_cpus_only: bool

    @classmethod
    def read(cls, path: Path) -> Script:
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        refusals: dict[str, Refusal] = {}
        for ways, error, says in re.findall(r'^Refused(?: when (.+?))?: (\w+) "(.+)"$', text, re.MULTILINE):
            refusals |= dict.fromkeys(_ways(ways), Refusal(error, says))
        warnings: dict[str, str] = {}
        for ways, says in re.findall(r'^Warned when (.+?): "(.+)"$', text, re.MULTILINE):
            warnings |= dict.fromkeys(_ways(ways), says)
        skipped = [way for ways in re.findall(r"^Not promised when (.+?):", text, re.MULTILINE) for way in _ways(ways)]
        declared = [f"\n{line}" in text for line in (ROUNDED, OTHER_BITS, ON_CPUS_ONLY)]
        return cls(path, refusals, warnings, frozenset(skipped), *declared)

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def chance(self) -> int:
        """Of this script alone: which worker is killed, and where."""
        return zlib.crc32(self.name.encode())


def _ways(named: str) -> tuple[str, ...]:
    """The ways that *named* names: each stands for those that begin with it."""
    if not named:
        return WAYS
    chosen = tuple(way for way in WAYS if any(way.startswith(name) for name in named.split(", ")))
    assert chosen, f"no way to run a script is called {named!r}"
    return chosen


def corpus() -> dict[str, Script]:
    """All scripts, by name."""
    return {path.stem: Script.read(path) for path in sorted(SCRIPTS.glob("*.py"))}


@dataclass(frozen=True)
class Ran:
    """What became of a script."""

    failure: str  # empty if it came to its end
    text: str
    last_line: str
    certificates: tuple[Certificate, ...]  # of its Trainers, in order

    @property
    def how(self) -> str:
        """How it ended, in a line."""
        last = (self.text.strip().splitlines() or [""])[-1]
        return f"ended with {self.failure}: {last}" if self.failure else "came to its end"

    @property
    def steps(self) -> dict[int, StepDone]:
        return self.certificates[0].steps if self.certificates else {}


@dataclass
class LeadsWords:
    """A sink that keeps what the lead printed, whoever that was at the time."""

    out: bytes = b""
    err: bytes = b""

    def write(self, device: str, stream: str, data: bytes, *, lead: bool) -> None:
        if stream == "stderr":
            self.err += data
        elif lead:
            self.out += data

    def close(self) -> None: ...


def run_plainly(script: Script, folder: Path) -> Ran:
    """``python script.py``, with nothing of ours around it."""
    environment = os.environ | {"VF_HOME": str(folder), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, str(script.path)], env=environment, capture_output=True, text=True, timeout=LONGEST_SECONDS
    )
    errors = re.findall(r"^(?:[\w.]+\.)?(\w+)(?:: .*)?$", done.stderr, re.MULTILINE) if done.returncode else []
    return _ran(errors[-1] if errors else "", done.stderr, done.stdout, folder)


def _ran(failure: str, text: str, out: str, folder: Path) -> Ran:
    streams = sorted(folder.rglob(STREAMS), key=_began)
    certificates = tuple(Certificate.of(read_events(path), path.name) for path in streams)
    return Ran(failure, text, (out.strip().splitlines() or [""])[-1], certificates)


def _began(stream: Path) -> tuple[float, int, str]:
    """The order in which a script has made its Trainers."""
    return next(read_timed_events(stream), (0.0,))[0], len(stream.name), stream.name


@dataclass
class Held:
    """One script as a job, disturbed by a plan that is tied to the job's steps."""

    backend: LocalBackend
    script: Script
    folder: JobFolder
    devices: int
    at: int = 0  # the step that it is disturbed in
    words: LeadsWords = field(default_factory=LeadsWords)
    step: int = -1  # the last one committed
    to_kill: int = 0  # workers; any other that is lost has died of something else

    @property
    def gates(self) -> Path:
        return self.folder.path / "gates"

    def run(self, plan: Callable[[Held], Iterator[None]] | None = None, resume_from: Path | None = None) -> Ran:
        """Run the script itself; or, with a *plan*, held at the gates that the plan opens."""
        spec = self._spec(held=plan is not None)
        if resume_from is None:
            self.folder.create(spec)
        else:
            self.folder.change(spec)
        self._reader = EventReader(self.folder.path / "events.jsonl")
        self._plan = plan(self) if plan is not None else iter(())
        self._deadline = time.monotonic() + LONGEST_SECONDS
        if plan is not None:
            self.gates.mkdir(exist_ok=True)
            next(self._plan, None)  # gates that are shut from the start
        self.coordinator = Coordinator(spec, self.folder, self.backend, self.words, self._tick, resume_from)
        try:
            outcome = self.coordinator.run()
        except MappingError as error:  # it can't be disturbed in this way, and says so
            return self._ran(type(error).__name__, str(error))
        failure = outcome.failure
        kind = failure.cause if failure is not None else "exit" if outcome.code else ""
        if not kind and next(self._plan, "done") != "done":
            raise BrokenPromiseError(f"{self.script.name} came to its end before it could be disturbed at {self.at}")
        if not kind and self.coordinator.roster.failures != self.to_kill:
            return self._ran("lost", "workers were lost that nobody had killed")
        return self._ran(kind, failure.text if failure is not None else "")

    def _ran(self, failure: str, text: str) -> Ran:
        return _ran(failure, self.words.err.decode() + text, self.words.out.decode(), self.folder.path)

    def _spec(self, held: bool) -> JobSpec:
        return JobSpec.of(
            job_id=self.folder.path.name,
            script=str(HELD if held else self.script.path),
            arguments=(str(self.script.path), str(self.gates)) if held else (),
            devices=tuple(str(device) for device in range(self.devices)),
            patience_seconds=PATIENCE_SECONDS,
        )

    def _tick(self) -> None:
        if time.monotonic() > self._deadline:
            raise BrokenPromiseError(f"{self.script.name} hangs after step {self.step}")
        self.step = max([self.step, *(event.step for _, event in self._reader.read() if isinstance(event, StepDone))])
        next(self._plan, None)

    def shut(self, *names: str) -> None:
        for name in names:
            (self.gates / name).touch()

    def open(self, *names: str) -> None:
        for name in names:
            (self.gates / name).unlink(missing_ok=True)

    def until(self, condition: Callable[[], bool]) -> Iterator[None]:
        while not condition():
            yield

    def is_published(self) -> bool:
        """Whether the workers are told of others who wait to be let in; or nobody will be."""
        roster = self.coordinator.roster
        return (roster.pending is not None and roster.pending.cause == "resize") or roster.closed or roster.is_settled


def grown(held: Held) -> Iterator[None]:
    """One more device, while a step is held; it is let in after that step."""
    held.shut("slow", f"hold-{held.at}")
    yield
    yield from held.until(lambda: held.step >= held.at - 1)
    held.coordinator.resize(held.devices + 1)
    yield from held.until(held.is_published)
    held.open(f"hold-{held.at}")
    yield from held.until(lambda: held.coordinator.roster.is_settled)
    held.open("slow")


def killed(held: Held) -> Iterator[None]:
    """One worker killed within a step; its replacement is let in two steps later."""
    victim = held.script.chance % held.devices
    point = POINTS[held.script.chance // 8 % len(POINTS)]
    held.to_kill = 1
    held.shut("slow", f"kill-{victim}-{held.at}-{point}", f"hold-{held.at + 2}")
    yield
    yield from held.until(lambda: held.coordinator.roster.failures > 0)
    yield from held.until(lambda: held.step >= held.at + 1)
    yield from held.until(held.is_published)
    held.open(f"hold-{held.at + 2}")
    yield from held.until(lambda: held.coordinator.roster.is_settled)
    held.open("slow")


def stopped(held: Held) -> Iterator[None]:
    """Stopped with a checkpoint, after a step that is held."""
    held.shut("slow", f"hold-{held.at}")
    yield
    yield from held.until(lambda: held.step >= held.at - 1)
    held.coordinator.stop(checkpoint=True)
    held.open(f"hold-{held.at}")


def undisturbed(held: Held) -> Iterator[None]:
    """All gates are open."""
    held.open("slow")
    yield


class Runner:
    """Runs scripts of the corpus and holds them to what they declare."""

    def __init__(self, backend: LocalBackend, folder: Path) -> None:
        self._backend = backend
        self._folder = folder
        self._jobs = 0
        self.on_accelerators = bool(backend.accelerators)

    def run(self, script: Script, way: str, calm: Ran | None = None) -> Ran:
        """Run *script* in this *way*; *calm* is a run that nothing has disturbed, and tells where to."""
        if way == "python":
            return run_plainly(script, self._new_folder())
        if way in CALM:
            return self._held(script, int(way[0])).run()
        assert calm is not None
        at = _step_to_disturb(calm, top=way.endswith("top"))
        if way.startswith("resumed"):
            return self._resumed(script, at)
        return self._held(script, 3 if way == "killed" else 2, at).run(killed if way == "killed" else grown)

    def _resumed(self, script: Script, at: int) -> Ran:
        held = self._held(script, 3, at)
        before = held.run(stopped)
        if before.failure:
            return before
        checkpoint = held.folder.latest_checkpoint()
        if checkpoint is None:
            raise BrokenPromiseError(f"{script.name}, stopped at step {at}, has left no checkpoint: {before.text}")
        return Held(self._backend, script, held.folder, 2).run(undisturbed, checkpoint)

    def _held(self, script: Script, devices: int, at: int = 0) -> Held:
        return Held(self._backend, script, JobFolder(self._new_folder()), devices, at)

    def _new_folder(self) -> Path:
        self._jobs += 1
        return self._folder / f"job-{self._jobs}"

    def check(self, script: Script, way: str, calm: Ran | None = None) -> Ran:
        """Run *script* in this *way*, and hold it to what it declares; *calm* is the run to be equal to."""
        needs_steps = way in DISTURBED and not (calm is not None and calm.steps and not calm.failure)
        if way in script.skipped or (needs_steps and way in script.refusals):
            return calm or Ran("", "", "", ())
        ran = self.run(script, way, calm)
        if way in script.refusals:
            _check_refused(script, way, ran)
        elif way in script.warnings:
            if ran.failure or script.warnings[way] not in " ".join(ran.text.split()):
                raise BrokenPromiseError(f'{script.name}, {way}: no word of "{script.warnings[way]}", it {ran.how}')
        else:
            _check_equal(script, way, ran, calm or ran)
        return ran


def _step_to_disturb(calm: Ran, *, top: bool) -> int:
    """The second step of the second epoch; or the last one of the first, after which the second epoch's top comes."""
    first = min(step.step for step in calm.steps.values() if step.epoch == 1)
    at = max(1, first - 1) if top else first + 1
    assert at + 4 <= len(calm.steps), "a script needs a few more steps, or it ends before it can be disturbed"
    return at


def _check_refused(script: Script, way: str, ran: Ran) -> None:
    wanted = script.refusals[way]
    if ran.failure != wanted.error or wanted.says not in ran.text:
        raise BrokenPromiseError(f'{script.name}, {way}: not refused by {wanted.error} "{wanted.says}", it {ran.how}')
    if way in CALM and len(ran.steps) > 1:
        raise BrokenPromiseError(f"{script.name}, {way}: refused, though only after {len(ran.steps)} steps")


def _check_equal(script: Script, way: str, ran: Ran, calm: Ran) -> None:
    if ran.failure:
        raise BrokenPromiseError(f"{script.name}, {way}: it {ran.how}")
    if not ran.certificates or len(ran.certificates) != len(calm.certificates):
        raise BrokenPromiseError(f"{script.name}, {way}: {len(ran.certificates)} Trainers, not as many as calm")
    for one, other in zip(calm.certificates, ran.certificates, strict=True):
        if one.steps.keys() != other.steps.keys():
            raise BrokenPromiseError(f"{script.name}, {way}: {len(other.steps)} steps instead of {len(one.steps)}")
        if script.rounded:
            _check_close(script, way, one, other)
        elif not (verdict := compare(_as_if_on_the_devices_of(other, one), other)).equal or verdict.facts:
            raise BrokenPromiseError(f"{script.name}, {way}: {verdict.summary}; {'; '.join(verdict.facts)}")
    if not script.rounded and ran.last_line != calm.last_line:
        raise BrokenPromiseError(f"{script.name}, {way}: it printed {ran.last_line!r}, calm {calm.last_line!r}")


def _as_if_on_the_devices_of(other: Certificate, one: Certificate) -> Certificate:
    """*one*, with what *other* says of its devices: those made for tests have the CPU's bits, and code of their own."""
    if one.facts["device_type"] == other.facts["device_type"]:
        return one
    return replace(one, facts=one.facts | {key: other.facts[key] for key in OF_DEVICES})


def _check_close(script: Script, way: str, one: Certificate, other: Certificate) -> None:
    for step, event in one.steps.items():
        if abs(event.loss - other.steps[step].loss) > TOLERANCE * max(1.0, abs(event.loss)):
            raise BrokenPromiseError(
                f"{script.name}, {way}: loss {other.steps[step].loss} for {event.loss}, step {step}"
            )
