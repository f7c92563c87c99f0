"""``vf port``: what to change in a script, line by line."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from virtualflow.cli.screen import screen
from virtualflow.errors import ConfigError
from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.rules import advise
from virtualflow.system.text import visible

COLOURS = {Severity.CHANGE: "yellow", Severity.CHECK: "cyan", Severity.CANNOT: "red"}
NOTHING = "nothing that would have to change was found. It reads one file: name the one that holds the training loop."
NEXT = (
    "Then compare `python {script}` with `vf run --devices 2 {script}`, and let `vf run --audit --devices 2 {script}` "
    "look for state that was forgotten."
)


def port(
    script: Annotated[Path, typer.Argument(help="The training script. It is read, not run.", metavar="SCRIPT")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read a PyTorch script and say, line by line, what to change for VirtualFlow, and what can't be kept.

    It gives advice and changes nothing: `change` is needed, `check` is for you to judge, `can't` has no counterpart.
    """
    all_advice = advise(_read(script), str(script))
    if as_json:
        print(json.dumps({"script": str(script), "advice": [asdict(advice) for advice in all_advice]}, indent=2))
    else:
        _print(script, all_advice)


def _read(script: Path) -> bytes:
    if script.is_dir():
        raise ConfigError(f"{script} is a folder. Name the script in it that holds the training loop.")
    if script.exists() and not script.is_file():
        raise ConfigError(f"{script} is no regular file. Name a Python script.")
    return script.read_bytes()


def _print(script: Path, all_advice: list[Advice]) -> None:
    console = screen(highlight=False, soft_wrap=True)
    if not all_advice:
        console.print(f"{script}: {NOTHING}")
        return
    first_lines: dict[str, int] = {}
    previous = 0
    for advice in all_advice:
        if advice.line != previous:
            console.print(Text.assemble((f"line {advice.line}", "bold"), f"  {visible(advice.seen)}"))
            previous = advice.line
        first = first_lines.setdefault(advice.instead, advice.line)
        text = advice.instead if first == advice.line else f"as for line {first}"
        mark = Text(f"  {advice.severity:<7} ", COLOURS[advice.severity])
        console.print(mark + Text(visible(text).replace("\n", "\n" + " " * 10)))
    counts = Counter(advice.severity for advice in all_advice)
    console.print(
        f"\n{script}: " + ", ".join(f"{counts[severity]} x {severity}" for severity in Severity if counts[severity])
    )
    console.print(NEXT.format(script=script))
