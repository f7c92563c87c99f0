"""A manager's job as everybody sees it, and why it does not run."""

from __future__ import annotations

from virtualflow.cluster.job import Job
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.core.job_state import JobState
from virtualflow.core.job_view import JobView, Progress
from virtualflow.core.wording import counted
from virtualflow.job.status import with_cells
from virtualflow.manager import deadlines, dependencies, lifecycle
from virtualflow.manager.manager import Manager
from virtualflow.manager.record import Record, Wish

STOPPING = {
    Wish.PAUSE: "it is to pause: it stops at its next step boundary",
    Wish.CANCEL: "it is being cancelled",
    Wish.SUSPEND: "others need its devices: it stops at its next step boundary",
    Wish.DOWN: "the manager ends: it stops at its next step boundary",
}


def view_of(manager: Manager, record: Record, place: int | None, now: float) -> JobView:
    """A job of *manager*; *place* is its place in the queue."""
    runs = record.state == JobState.RUNNING
    watch = manager.fleet.watch(record.id) if record.started is not None else None
    cells = watch.cells if watch is not None else None
    status = manager.fleet.status(record.id) if runs else None
    workers = with_cells(status, cells).workers if status is not None else ()
    progress = watch.progress(running=runs) if watch is not None else Progress()
    use = manager.fleet.use(record.id) if runs else {}
    held = manager.scheduler.jobs.get(record.id)
    least = held.job.min if held is not None and held.job.types is not None else 1
    run_seconds = lifecycle.run_seconds(record, now)
    forecast = deadlines.forecast(record, watch, progress.eta_seconds, now)
    return JobView(
        id=record.id,
        name=record.name,
        script=record.description.script,
        state=manager.state_of(record),
        devices=list(manager.fleet.holds(record.id)) if runs else [],
        step=progress.step,
        steps=progress.steps,
        loss=progress.loss,
        metrics=progress.metrics,
        examples_per_second=progress.examples_per_second,
        eta_seconds=progress.eta_seconds,
        owner=record.terms.owner,
        by=record.terms.by,
        deadline=forecast.text if forecast is not None else "",
        late=forecast.late if forecast is not None else None,
        ends=forecast.ends if forecast is not None else None,
        sweep=record.description.sweep,
        parameters=record.description.parameters,
        priority=record.terms.priority,
        demand=record.terms.demand,
        want=max(record.max_devices, least),
        min=max(record.terms.min, least),
        cap=record.cap,
        virtual_nodes=record.terms.virtual_nodes,
        stages=cells.stages if cells is not None else None,
        mapping={worker.device: list(worker.virtual_nodes) for worker in workers},
        queued_seconds=round(max(0.0, (record.ended or now) - record.submitted - run_seconds), 1),
        run_seconds=round(run_seconds, 1),
        resizes=record.resizes,
        failures=record.failures,
        corruption=watch.corruption if watch is not None else [],
        reason=reason(manager, record, place),
        submitted=record.submitted,
        started=record.started,
        ended=record.ended,
        use={worker.device: use[worker.device] for worker in workers if worker.device in use},
    )


def reason(manager: Manager, record: Record, place: int | None) -> str:
    """Why the job does not run, or not on all that it asks for, in words. *place* is its place in the queue."""
    if record.failure:
        return record.failure.strip().splitlines()[-1]
    if trouble := manager.problem_of(record.id):
        return f"the manager can't see to it, and tries again: {trouble}"
    if record.wish is not None:
        return STOPPING[record.wish]
    if record.state == JobState.PAUSED and record.trouble:
        return record.trouble.replace("\n", " ")
    if record.state == JobState.PAUSED:
        return f"paused by its owner: vf resume {record.id}"
    if record.state == JobState.QUEUED:
        if after := dependencies.why_waiting(record, manager.records):
            return after
        return _why_waiting(manager, record, place)
    if record.state == JobState.RUNNING and (lacks := record.max_devices - len(record.devices)) > 0:
        more = f"it could use {counted(lacks, 'more device')}"
        why = manager.scheduler.why_no_more(record.id)
        return f"{more}, but {why}" if why else f"{more}, which the policy gives to other jobs"
    return ""


def _ahead(place: int | None) -> str:
    """What is before a job at *place* in the queue, as the beginning of a sentence."""
    if not place:
        return ""
    return f"{counted(place, 'job')} {'is' if place == 1 else 'are'} ahead of it, and "


def _why_without_room(snapshot: Snapshot, job: Job, place: int | None) -> str:
    """Why a job does not run that only some types, or several devices, have the memory for."""
    ahead = _ahead(place)
    types = snapshot.types_for(job)
    usable, free = (sum(counts.get(name, 0) for name in types) for counts in (snapshot.capacity, snapshot.free))
    what = f"it needs {counted(job.min, 'device')} of {' or '.join(types)} for its memory"
    if usable < job.min:
        return f"{what}, and {usable} of them can be used now"
    return f"{ahead}{what}; {free} of {usable} are free"


def _why_waiting(manager: Manager, record: Record, place: int | None) -> str:
    if record.devices:
        others = sorted(
            other.name
            for other in manager.records.running()
            if other.id != record.id and set(manager.fleet.holds(other.id)) & set(record.devices)
        )
        return f"starts when {', '.join(others)} has left its devices" if others else "starts now"
    snapshot = manager.scheduler.snapshot()
    if not snapshot.devices:
        return "the cluster has no devices at the moment"
    if aside := manager.scheduler.why_aside(record.id):
        return aside
    state = manager.scheduler.jobs.get(record.id)
    if state is not None and state.job.types is not None:
        return _why_without_room(snapshot, state.job, place)
    if state is not None and not snapshot.within_reach(state.job):
        return f"the cluster has {counted(snapshot.devices, 'device')} now, and it needs at least {state.job.min}"
    if manager.policy.round_seconds is not None and snapshot.idle:
        return f"it may start at the next round; rounds take {manager.policy.round_seconds:.0f} s"
    ahead = _ahead(place)
    if snapshot.idle:
        needed = record.terms.min if record.terms.min > snapshot.idle else record.max_devices
        return f"{ahead}it needs {counted(needed, 'device')}, and only {snapshot.idle} can be used now"
    in_use = f"{ahead}all devices ({snapshot.devices}) are in use"
    if manager.policy.round_seconds is not None:
        return f"{in_use}, until its turn in a later round; rounds take {manager.policy.round_seconds:.0f} s"
    return f"{in_use}, and the policy takes none away for it"
