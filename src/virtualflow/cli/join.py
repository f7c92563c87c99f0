"""``vf join``: this machine becomes a device of a job that runs elsewhere."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from virtualflow.cli.screen import print_line
from virtualflow.errors import LaunchError
from virtualflow.job import tokens
from virtualflow.program.manifest import Program, changed_text, write_modules
from virtualflow.system.hash_seed import VARIABLE, hash_seed_here


def join(
    address: Annotated[
        str, typer.Argument(help="The address of `vf run --listen` or `vf profile --listen`.", metavar="HOST:PORT")
    ],
    token_file: Annotated[Path, typer.Option(help="The file with the job's token.", metavar="FILE")],
) -> None:
    """Join a job as one more device, from any launcher: ssh, Slurm, Kubernetes.

    The script comes from the job. Ends when the job does, or no longer needs this device. After Ctrl-C the job
    continues without it.
    """
    host, port = tokens.parse_address(address)
    token = tokens.read_token(token_file)
    if hash_seed_here() == "random":
        _start_again_with("0")  # what most jobs have
    from virtualflow.job import worker  # loads torch, before the job learns that this device is there

    joined = tokens.connect(host, port, token)
    connection = joined.connection
    with tempfile.TemporaryDirectory(prefix="vf-join-") as folder:
        snapshot = Path(folder) / "snapshot"
        write_modules(snapshot, joined.work.modules)
        spec = joined.work.spec.elsewhere(joined.address).in_folder(folder)
        if spec.description.hash_seed != hash_seed_here():
            connection.close()
            _start_again_with(spec.description.hash_seed)
        program = Program.of(snapshot, spec.description.script)
        if changed := program.changed():
            connection.close()
            raise LaunchError(f"on this machine, {changed_text(map(program.shown, changed))}")
        print_line(f"job {spec.job_id}: joining as device {spec.device}")
        signal.signal(signal.SIGINT, _leave)
        code = worker.run(spec, connection.detach())
    raise typer.Exit(code)


def _start_again_with(hash_seed: str) -> NoReturn:
    """In a new interpreter: an old one can't have another order of sets."""
    if sys.flags.ignore_environment:
        raise LaunchError(f"the job has {VARIABLE}={hash_seed}, which this Python ignores: start it without -E and -I")
    os.environ[VARIABLE] = hash_seed
    os.execv(sys.executable, sys.orig_argv)


def _leave(_: int, __: FrameType | None) -> None:
    """What a SIGTERM does: this device leaves between two steps. The next Ctrl-C ends the process, which is a loss."""
    print("\nleaving after this step; Ctrl-C again leaves at once", file=sys.stderr, flush=True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
