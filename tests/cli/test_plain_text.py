"""Text of users is never markup, and never an order to somebody's terminal: in no table, message or error."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_jobs import run_verb
from tests.cli.test_run import VF
from tests.manager.managed import Managed, Service, until
from virtualflow.cli.screen import screen, visible

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing
MARKUP = "[/bold] [red]x[/red] [link=http://e]y[/link] :cat: [/]"
ORDERS = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b31m\x08"
EVIL = MARKUP + ORDERS
NO_ORDERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # but for the ends of lines, and tabs


@pytest.fixture
def service(vf_home: Path) -> Iterator[Service]:
    service = Service(vf_home, "--devices", "1")
    service.up()
    yield service
    service.close()


def failing(folder: Path, text: str = EVIL) -> Path:
    """A script with an odd name, in an odd folder, that fails with odd words."""
    script = folder / "[/red] :dog:\x1b[31m" / "[/bold]\x1b[1m.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f"raise ValueError({text!r})\n")
    return script


def plain(*words: str) -> str:
    """What a verb says: whatever it is, it holds no orders, and it is no traceback of ours."""
    done = subprocess.run([*VF, *words], capture_output=True, text=True, timeout=120, check=False)
    output = done.stdout + done.stderr
    assert not NO_ORDERS.search(output), output
    assert "MarkupError" not in output, output
    return output


def test_no_verb_obeys_what_a_job_says(service: Service, tmp_path: Path) -> None:
    script = failing(tmp_path)
    output = plain("submit", "--wait", str(script), EVIL)  # its failure is printed
    assert MARKUP in output
    job = Managed(service, output.split()[1], tmp_path)
    for words in (["queue"], ["describe", job.id], ["status", job.id]):
        output = plain(*words)
        assert job.id in output
        assert "ValueError: [/bold] [red]x[/red]" in re.sub(r"\s+", " ", output), words
    assert "\\x1b[31m/[/bold]\\x1b[1m.py" in re.sub(r"\s+", "", plain("describe", job.id))
    for words in (["status"], ["devices"], ["queue", "--json"], ["describe", job.id, "--json"], ["status", "--json"]):
        plain(*words)
    service.kill()
    for records in (service.home / "cluster").glob("jobs.sqlite*"):
        records.unlink()
    assert "ValueError: [/bold]" in re.sub(r"\s+", " ", plain("cluster", "orphans"))  # as which it is listed now
    plain("cluster", "orphans", "--json")


def test_no_verb_obeys_what_it_was_told(service: Service, tmp_path: Path) -> None:
    script = failing(tmp_path)
    for words in (
        ["submit", "--name", EVIL, str(script)],
        ["submit", "--env", EVIL, str(script)],
        ["submit", "--expect", EVIL, str(script)],
        ["submit", EVIL],
        ["describe", EVIL],
        ["cancel", EVIL],
        ["priority", EVIL, "2"],
        ["resize", EVIL, "2"],
        ["status", EVIL],
        ["logs", EVIL],
        ["devices", "--drain", EVIL],
        ["run", EVIL],
        ["run", "--backend", EVIL, str(script)],
        ["run", "--devices", EVIL, str(script)],
        ["verify", EVIL, EVIL],
        ["simulate", EVIL, "--devices", "V100:1"],
        ["solve", "--workload", EVIL, "--batch-size", "8", "--devices", "V100:1"],
        [MARKUP],
        ["run", f"--{MARKUP}"],
    ):
        assert "[/bold]" in plain(*words), words


def test_a_run_that_fails_tells_it_as_it_is(tmp_path: Path) -> None:
    output = plain("run", "--no-progress", str(failing(tmp_path, "[/bold] and [red]x")))
    assert "ValueError: [/bold] and [red]x" in output


@pytest.mark.parametrize("verb", ["queue", "status"])
def test_a_table_on_a_terminal_stays_as_it_is(service: Service, tmp_path: Path, verb: str) -> None:
    """On a terminal there are colours and a live table: orders of ours, and none of the job's."""
    job = Managed(service, plain("submit", str(failing(tmp_path))).split()[1], tmp_path)
    until(lambda: job.view()["state"] == "FAILED")
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "300", "LINES": "40"}
    process = subprocess.Popen([*VF, verb, "--watch"], stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    seen = b""
    while job.id.encode() not in seen or b"FAILED" not in seen or (verb == "queue" and b"owned" not in seen):
        seen += os.read(ours, 1 << 16)
    process.send_signal(signal.SIGINT)
    try:
        while more := os.read(ours, 1 << 16):
            seen += more
    except OSError:  # so ends a terminal
        pass
    os.close(ours)
    assert process.wait(60) == 0, seen.decode()
    assert b"\x1b]0;owned" not in seen
    assert b"\x07" not in seen


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc é 猫 [x]", "a\tb\nc é 猫 [x]"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b31m\x7f\x00", "\\x9b31m\\x7f\\x00"),
        ("a\r\nb\rc", "a\nb\\x0dc"),
        ("\u202egnp.exe", "\\u202egnp.exe"),  # which would be read backwards
        ("\udcff", "\\udcff"),
    ],
)
def test_orders_are_shown_and_not_obeyed(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert visible(text) == shown
    screen(width=200, soft_wrap=True).print(text)
    assert capsys.readouterr().out.rstrip("\n").expandtabs() == shown.expandtabs()


def test_an_argument_that_is_no_text_does_not_break_the_queue(service: Service, tmp_path: Path) -> None:
    service.client.post("/api/devices/0/drain")
    done = subprocess.run(
        [*map(os.fsencode, VF), b"submit", os.fsencode(failing(tmp_path)), b"\xff\xfe"],
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert b"Traceback" not in done.stderr
    assert run_verb("queue")[0] == 0
