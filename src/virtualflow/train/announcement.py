"""The exchange at the start of a call that all workers make: do they make the same one?"""

from __future__ import annotations

from torch import Tensor

from virtualflow.core.mapping import DeviceId
from virtualflow.core.membership import Group, Membership, Work
from virtualflow.core.wording import listed
from virtualflow.errors import CollectiveError
from virtualflow.train.packed_values import gather_packed, unpacked

CALLS = (
    "Trainer",
    "step",
    "move",
    "squares",
    "parameters",
    "evaluate",
    "predict",
    "map",
    "once",
    "broadcast",
    "gather",
    "save",
    "export",
    "load",
    "the end of an epoch",
    "end of the script",
    "digest",
)


class Announcement:
    """Calls that were announced and not compared yet; *raised* is what the last step has raised here."""

    def __init__(self, work: Work | None, calls: list[Tensor], membership: Membership, raised: str = "") -> None:
        self._work = work
        self._calls = calls
        self._membership = membership
        self._group: Group | None = membership.group
        self._my_error = raised

    def check(self) -> None:
        """Raise an error that names both calls if two workers made different ones."""
        if not self._calls:
            self._membership.all_have_seen(self._membership.seen)
        if self._work is None:
            return
        self._work.wait()
        self._work = None
        first, *others = [tuple(call.tolist()) for call in self._calls]
        devices = self._membership.devices
        for device, call in zip(devices[1:], others, strict=True):
            if call[:3] != first[:3]:
                raise CollectiveError(self._raised() or _advice(devices[0], first, device, call, self._newcomers()))
        # Everyone has this list, so everyone knows the same: which generation all have heard of.
        self._membership.all_have_seen(min(call[3] for call in (first, *others)))

    def _raised(self) -> str:
        """Which errors the steps of some workers have ended with, if that can be the cause."""
        if any(CALLS[int(call[0])] == "end of the script" for call in self._calls):
            return ""  # that worker exchanges nothing any more
        everyone = unpacked(gather_packed(self._my_error, self._group))
        raised = [f"on device {d}, {text}" for d, text in zip(self._membership.devices, everyone, strict=True) if text]
        return (
            f"{'; '.join(raised)}. The script has caught that, and continues there with another model than on "
            f"the other "
            "devices: what updates the model (the optimizer, on_gradients=, on_step=) must do the same on all of them."
            if raised
            else ""
        )

    def _newcomers(self) -> str:
        """Who has not been here from the start, if that can be the cause."""
        joined = sorted({device for change in self._membership.changes for device in change.joined})
        if joined:
            return f"{listed('Device', joined)} joined while the job ran"
        return "The job was resumed" if self._membership.job.resume_from is not None else ""


def _advice(one: DeviceId, first: tuple[int, ...], other: DeviceId, call: tuple[int, ...], newcomers: str) -> str:
    what = f"device {one} called {_name(first)} while device {other} called {_name(call)}."
    if newcomers:
        return (
            f"{what} {newcomers}: a variable that steers the loop, such as a best score or a count of bad epochs, is "
            "lost on a worker that joins and in a job that resumes, unless the job keeps it. Keep it in progress = "
            "vf.State(best=..., bad=0) and vf.Trainer(..., state=[progress])."
        )
    if first[:2] == call[:2] and CALLS[first[0]] in ("step", "evaluate", "predict"):
        return (
            f"in {CALLS[first[0]]} (global step {first[1]}), devices {one} and {other} have different batches, or "
            "train different parameters. Is the dataset of another length there (a split without a seed, files that "
            "are not the same on every machine), does the sampler give another order, did the script skip a batch or "
            "freeze a layer on one of them?"
        )
    return (
        f"{what} Every worker must make the same calls with the same arguments in the same order: is one of them "
        "behind `if trainer.is_lead`, or does it depend on something that differs by worker?"
    )


def _name(call: tuple[int, ...]) -> str:
    code, number, detail, _ = call
    arguments = f", arguments {detail & 0xFFFF:04x}" if detail else ""
    return f"{CALLS[code]} (global step {number}{arguments})"
