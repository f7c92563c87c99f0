"""``vf doctor``: check this machine."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from virtualflow.cli.screen import screen
from virtualflow.system.home import home

OPTIONAL = (  # a module, the extra that brings it, and what needs it
    ("matplotlib", "plot", "figures"),
    ("sklearn", "examples", "the digits example"),
    ("transformers", "examples", "the text example"),
    ("accelerate", "transformers", "virtualflow.transformers"),
    ("fastapi", "cluster", "a manager and its dashboard"),
    ("uvicorn", "cluster", "a manager and its dashboard"),
    ("ray", "ray", "jobs on a Ray cluster"),
    ("tensorboardX", "tensorboard", "vf tensorboard"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. If *needed*, training cannot work without it."""

    subject: str
    result: str
    is_good: bool
    needed: bool = False
    advice: str = ""

    @property
    def colour(self) -> str:
        return "green" if self.is_good else "red" if self.needed else "yellow"


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check this machine: what is installed and what is missing. Exit code 1: training can't work."""
    findings = list(_examine())
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    raise typer.Exit(1 if any(finding.needed and not finding.is_good for finding in findings) else 0)


def _examine() -> Iterator[Finding]:
    version = platform.python_version_tuple()
    new_enough = (int(version[0]), int(version[1])) >= (3, 11)
    yield Finding("Python", platform.python_version(), new_enough, True, "Python 3.11 or newer is needed")
    yield from _torch()
    yield Finding("cores", str(os.cpu_count()), True)
    yield _writable_home()
    for module, extra, purpose in OPTIONAL:
        advice = f"for {purpose}: pip install 'virtualflow[{extra}]'"
        yield _present(module, find_spec(module) is not None, advice)
    for package, present in (
        ("dataset-fashion-mnist", Path("/usr/share/datasets/fashion-mnist").exists()),
        ("bible-kjv", which("bible") is not None),
    ):
        yield _present(f"data: {package}", present, f"for examples, on Debian: apt-get install {package}")


def _present(what: str, present: bool, advice: str) -> Finding:
    return Finding(what, "installed" if present else "missing", present, advice=advice)


def _torch() -> Iterator[Finding]:
    if find_spec("torch") is None:
        yield Finding("torch", "missing", False, True, "pip install torch==2.13.0")
        return
    import torch

    from virtualflow.train import accelerators, kernel
    from virtualflow.train.run_facts import instruction_set

    tested = torch.__version__.startswith("2.13.")
    yield Finding("torch", torch.__version__, tested, False, "tested with torch 2.13")
    yield Finding("instruction set", instruction_set(), True)
    gloo = torch.distributed.is_available() and torch.distributed.is_gloo_available()
    yield Finding("gloo (several CPU devices)", "yes" if gloo else "no", gloo, True, "install a torch built with gloo")
    fused = kernel.load() is not None
    advice = "install gcc: without a C compiler the exact reduction is slower, with the same bits"
    yield Finding("fused kernel", "built" if fused else "not built", fused, advice=advice)
    names = Counter(accelerator.name for accelerator in accelerators.present())
    shown = ", ".join(f"{count} x {name}" for name, count in names.items()) or "none"
    advice = "`vf selftest` checks every promise on them: please send in its report"
    yield Finding("accelerators", shown, not names, advice=advice)


def _writable_home() -> Finding:
    folder = home()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    writable = nearest.is_dir() and os.access(nearest, os.W_OK)
    return Finding("VF_HOME", str(folder), writable, True, "set VF_HOME to a folder that you can write to")


def _print(findings: list[Finding]) -> None:
    table = Table("", "check", "result", "what to do")
    for finding in findings:
        mark = Text("ok" if finding.is_good else "missing" if finding.needed else "note", finding.colour)
        table.add_row(mark, finding.subject, finding.result, "" if finding.is_good else finding.advice)
    screen().print(table)
    screen(highlight=False, soft_wrap=True).print(
        "`vf selftest` trains on this machine's devices and checks every promise."
    )
