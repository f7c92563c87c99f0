"""``vf tensorboard``: a job's scalars for TensorBoard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from virtualflow.cli.files import check_folder
from virtualflow.errors import LaunchError
from virtualflow.events import STREAM, Evaluated, Event, EventReader, Regrouped, StepDone
from virtualflow.job.folder import JobFolder

LOOK_SECONDS = 0.5


def tensorboard(
    job: Annotated[str, typer.Argument(help="The job's id.", metavar="JOB")],
    output: Annotated[Path, typer.Option("-o", "--output", help="TensorBoard's --logdir.", metavar="DIR")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")] = False,
) -> None:
    """Write a job's loss, speed, devices, evaluations and pauses for TensorBoard, by global step."""
    try:
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped]
    except ImportError as error:
        raise LaunchError("this needs tensorboardX: pip install 'virtualflow[tensorboard]'") from error
    folder = JobFolder.of(job)
    check_folder(output)
    reader = EventReader(folder.path / STREAM)
    with SummaryWriter(str(output / job)) as writer:
        try:
            while True:
                ended = not folder.is_locked()
                for at, event in reader.read():
                    for name, step, value in _scalars(event):
                        writer.add_scalar(name, value, step, walltime=at)
                if ended or not follow:
                    return
                writer.flush()
                time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            return


def _scalars(event: Event) -> list[tuple[str, int, float]]:
    if isinstance(event, StepDone):
        speed = event.examples / max(event.seconds, 1e-9)
        return [("loss", event.step, event.loss), ("examples per second", event.step, speed)]
    if isinstance(event, Evaluated):
        return [("evaluated", event.step, event.value)]
    if isinstance(event, Regrouped):
        pause = sum(event.pause_ms.values())
        return [("devices", event.step, len(event.devices)), ("pause in ms", event.step, pause)]
    return []
