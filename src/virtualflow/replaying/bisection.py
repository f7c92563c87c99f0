"""Why two runs differ: the first step, then, by replays of it, where in the step, and what usually causes that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from virtualflow.errors import LaunchError
from virtualflow.events.certificate import JOB, Verdict, compare
from virtualflow.job.backend import Backend
from virtualflow.replaying.parting import BACKWARD, FORWARD, GRADIENT, INPUTS, LOSS, STATE, Parting, parting
from virtualflow.replaying.step_replay import PastRun, Replay, Replayed, ShowProgress, replayed

MACHINE = (
    "Something that is not recorded has changed since, or the machine has computed something else than it should: run "
    "`vf replay` of the step on other devices and machines."
)
NO_CHECKPOINT_HOLDS = (
    "Something in the script keeps state that no checkpoint holds: a counter or cache in a module, a global, a "
    "generator of its own. Keep it in a buffer or a vf.State() in state=[...]."
)
NOT_REPEATABLE = (
    "It gives something else each time that it runs: an unseeded generator, a clock, an order of files or of a set, or "
    "an operator that is not deterministic."
)
CAUSES = {
    STATE: "The update before it differed although its gradients did not: the learning rate or another setting of the "
    "optimizer, code that changes the model between two steps, or a bit that was flipped in memory.",
    INPUTS: "The data differ: another file, another order, a transformation with a generator of its own, another "
    "version of what loads it.",
    FORWARD: "The module has read something else than its input and the model: its code, a counter, a global, a "
    "generator of its own.",
    LOSS: "loss_fn has computed it from something else than the model's output and the batch.",
    BACKWARD: "The forward was equal and the backward not: an autograd function, a hook, or an operator whose backward "
    "is not deterministic.",
    GRADIENT: "It is made outside of modules: by a hook on the parameter, or in loss_fn.",
}


@dataclass(frozen=True, slots=True)
class Bisected:
    """What is known of the difference. *repeats* says of each run whether its replay gave what it has recorded."""

    verdict: Verdict
    parting: Parting | None = None
    repeats: tuple[bool, bool] | None = None
    cause: str = ""


def bisect(
    one: PastRun,
    other: PastRun,
    devices: tuple[str, ...] | None = None,
    show: ShowProgress = lambda _: None,
    *,
    backend: Backend | None = None,
) -> Bisected:
    """Find out why *one* and *other* differ, by replays on *devices*; by default on as many as each of them had."""
    verdict = compare(one.certificate, other.certificate)
    if verdict.equal or verdict.step is None or verdict.what == "length":
        return Bisected(verdict)
    if any(one.certificate.facts.get(name) != other.certificate.facts.get(name) for name in _JOB):
        return Bisected(verdict, cause="They are other jobs: what differs among their facts decides the bits.")
    step = verdict.step

    def again(run: PastRun, name: str, *, from_the_beginning: bool = False) -> Replayed:
        on = devices or run.devices_at(step)
        wanted = Replay(run.folder, step, on, notes=True, from_the_beginning=from_the_beginning)
        with replayed(run, wanted, lambda text: show(f"{name} {text}"), backend=backend) as (found, _):
            return found

    try:
        return _judged(verdict, one, other, again)
    except LaunchError as error:
        return Bisected(verdict, cause=str(error))


_JOB = tuple(name for name in JOB if name not in ("initial_digest", "seeded"))


def _judged(verdict: Verdict, one: PastRun, other: PastRun, again: Callable[..., Replayed]) -> Bisected:
    found = [again(run, f"job {run.folder.path.name}") for run in (one, other)]
    repeats = (found[0].verdict.equal, found[1].verdict.equal)
    where = parting(*found)
    for run, first, is_repeated in zip((one, other), found, repeats, strict=True):
        if is_repeated:
            continue
        name = f"job {run.folder.path.name}"
        if (odd := parting(first, again(run, name))) is not None:
            return Bisected(verdict, odd, repeats, f"Two replays of {name} part there. {NOT_REPEATABLE}")
        whole = again(run, name, from_the_beginning=True) if first.first_step else first
        if whole.verdict.equal:
            cause = f"{name} gives what it has recorded from its beginning on, but not from {first.start}."
            return Bisected(verdict, parting(first, whole) or where, repeats, f"{cause} {NO_CHECKPOINT_HOLDS}")
        facts = "; ".join(first.verdict.facts)
        cause = f"{name} does not give what it has recorded, at any try."
        reason = f"Its facts are not those of this machine: {facts}." if facts else MACHINE
        return Bisected(verdict, where, repeats, f"{cause} {reason}")
    if verdict.facts:
        return Bisected(verdict, where, repeats, "The runs' facts differ: see there first.")
    return Bisected(verdict, where, repeats, CAUSES[where.phase] if where is not None else MACHINE)
