"""``vf selftest``: does VirtualFlow keep its promises on this machine?"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from virtualflow.backends.local import LocalBackend
from virtualflow.cli.files import check_file, writing
from virtualflow.cli.options import DeviceType, device_type_of
from virtualflow.cli.screen import screen
from virtualflow.core.devices import CPU
from virtualflow.core.wording import counted
from virtualflow.selftest.promises import FAIL, FULL, PASS, QUICK, Check, Checks
from virtualflow.selftest.report import Report
from virtualflow.selftest.trials import TrialRunner
from virtualflow.system.interrupts import Interrupted, interruptible

COLOURS = {PASS: "green", FAIL: "bold red"}
REPORT = Path("vf-selftest.json")
MOST_CORES = 4  # that are used by default


def selftest(
    devices: Annotated[
        int | None,
        typer.Option(
            help="Up to how many devices; all accelerators of this machine, or some cores.", min=1, metavar="N"
        ),
    ] = None,
    device_type: DeviceType = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Train less and measure little: a look, not a proof.")] = False,
    output: Annotated[Path, typer.Option("--report", help="Where to write the report.", metavar="FILE")] = REPORT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, and progress to stderr.")] = False,
) -> None:
    """Check the promises on this machine's own devices: PASS or FAIL for each, in about two minutes.

    Three small networks (an MLP, a convnet with batch norm and dropout, a transformer) are trained on 1 to N devices,
    resized, killed, stopped and resumed, and must end with the same bits. Speed is measured against plain PyTorch and
    DistributedDataParallel, in turns. Nothing is downloaded, and nothing is left but the report: please send it in,
    above all from a machine with GPUs. Exit code 0: all promises were kept, 1: one was not.
    """
    console = screen(stderr=as_json, highlight=False, soft_wrap=True)
    chosen_type = device_type_of(device_type)
    check_file(output, "--report")
    report = None
    try:
        with interruptible(), LocalBackend(device_type=chosen_type) as backend:
            report = _started(backend, chosen_type, devices, quick)
            console.print(_headline(report))
            try:
                _run(backend, chosen_type, report, console)
            finally:
                with writing(output, "--report"):
                    output.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    except Interrupted as interruption:
        console.print(f"interrupted; {output} has what was found so far" if report else "interrupted")
        raise typer.Exit(128 + interruption.signal_number) from None
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    console.print(_summary(report, output))
    raise typer.Exit(0 if report.has_passed else 1)


def _started(backend: LocalBackend, device_type: str, devices: int | None, quick: bool) -> Report:
    """An empty report, on as many devices as are wanted. Raises LaunchError if there are fewer."""
    accelerators = backend.accelerators if device_type != CPU else ()
    count = devices or len(accelerators) or max(2, min(MOST_CORES, os.cpu_count() or 1))
    backend.check([str(number) for number in range(count)])
    return Report(count, accelerators, quick)


def _run(backend: LocalBackend, device_type: str, report: Report, console: Console) -> None:
    with tempfile.TemporaryDirectory(prefix="vf-selftest-") as folder:
        checks = Checks(
            TrialRunner(backend, Path(folder), device_type), report.devices, QUICK if report.is_quick else FULL
        )
        for promise, check in checks.promises():
            with console.status(Text(promise)):
                result = check()
            report.checks.append(result)
            report.facts = checks.facts
            console.print(_line(result))
    report.is_complete = True


def _headline(report: Report) -> str:
    names = sorted({accelerator.name for accelerator in report.accelerators}) or ["cpu"]
    return f"{counted(report.devices, 'device')}: {', '.join(names)}"


def _line(check: Check) -> Text:
    time = f" ({check.seconds:.1f} s)" if check.seconds else ""
    detail = check.detail.splitlines()[-1]  # of a traceback; the report has all of it
    return Text.assemble((check.status, COLOURS.get(check.status, "yellow")), f"  {check.promise}: {detail}{time}")


def _summary(report: Report, file: Path) -> Text:
    failed = sum(check.status == FAIL for check in report.checks)
    summary = f"{failed} of {len(report.checks)} promises were not kept" if failed else "all promises were kept"
    return Text.assemble((summary, COLOURS[FAIL if failed else PASS]), f". The report is in {file}: please send it in.")
