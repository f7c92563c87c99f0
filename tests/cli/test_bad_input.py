"""Bad paths, bad values and odd names: one line that says what to do, and never a traceback."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest
import typer
from rich.console import Console

from tests.cli.test_jobs import run_verb
from virtualflow.cli import __file__ as home_of_verbs
from virtualflow.cli import verify
from virtualflow.cli.main import app
from virtualflow.events.certificate import Verdict
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.system.identity import identity

TRAIN = "import virtualflow"
# Every option and argument that is a file or a folder, and a command line around it: PATH is the bad one.
COMMANDS = {
    "run script": "run PATH",
    "run plan": "run --plan PATH missing.py",
    "run profiles": "run --profiles PATH --devices 1 train.py",
    "run device_file": "run --device-file PATH missing.py",
    "run token_file": "run --listen 127.0.0.1:0 --token-file PATH missing.py",
    "run tls_cert": "run --listen 127.0.0.1:0 --tls-cert PATH --tls-key PATH train.py",
    "run tls_key": "run --listen 127.0.0.1:0 --tls-cert own/certificate.pem --tls-key PATH train.py",
    "explain profiles": "explain --stages 2 --batch-size 8 --virtual-nodes 4 --devices 2 --profiles PATH",
    "port script": "port PATH",
    "profile script": "profile --device-type cpu PATH",
    "profile device_file": "profile --device-type cpu --device-file PATH train.py",
    "profile token_file": "profile --device-type cpu --machines 2 --listen 127.0.0.1:0 --token-file PATH train.py",
    "profile output": "profile --device-type cpu -o PATH train.py",
    "submit script": "submit PATH",
    "solve profiles": "solve --profiles PATH --batch-size 8 --devices V100:1",
    "solve output": "solve --workload resnet50 --batch-size 256 --devices V100:1 -o PATH",
    "plot output": "plot profile --workload resnet50 -o PATH",
    "plot profiles": "plot profile --profiles PATH -o out.png",
    "plot plan": "plot plan --workload resnet50 --plan PATH -o out.png",
    "submit from_checkpoint": "submit train.py --from-checkpoint PATH",
    "timeline output": "timeline a-job -o PATH",
    "tensorboard output": "tensorboard a-job -o PATH",
    "join token_file": "join 127.0.0.1:1 --token-file PATH",
    "cluster up device_file": "cluster up --foreground --device-file PATH",
    "cluster up users": "cluster up --foreground --users PATH",
    "cluster up tls_cert": "cluster up --foreground --tls-cert PATH --tls-key PATH",
    "cluster up tls_key": "cluster up --foreground --tls-cert own/certificate.pem --tls-key PATH",
    "cluster token add output": "cluster token add ann --role look -o PATH",
    "replay dump": "replay a-job --step 0 --dump PATH",
    "sweep output": "sweep a-sweep --plot PATH",
    "cluster restore backup": "cluster restore PATH",
    "selftest output": "selftest --quick --device-type cpu --report PATH",
    "simulate trace": "simulate PATH --devices V100:8",
    "simulate table": "simulate trace.json --devices V100:8 --throughputs PATH",
    "simulate output": "simulate trace.json --devices V100:8 -o PATH",
    "trace generate output": "trace generate --jobs 2 -o PATH",
    "trace import file": "trace import PATH -o out.json",
    "trace import output": "trace import trace.json -o PATH",
}
NO_FILE = ("missing.txt", "no-such-folder/x.png", "[bold]x[/]", "[/]", "train.py/x.png", "\udcff")
NO_TEXT = ("binary", "{}.json", "[].json")


def path_parameters(verbs: typer.Typer, *words: str) -> Iterator[str]:
    for verb in verbs.registered_commands:
        assert verb.callback is not None
        for parameter, kind in get_type_hints(verb.callback).items():
            if kind in (Path, Path | None):
                yield " ".join((*words, verb.name or verb.callback.__name__, parameter))
    for group in verbs.registered_groups:
        assert group.typer_instance is not None
        yield from path_parameters(group.typer_instance, *words, str(group.name))


def test_every_verb_that_takes_a_path_is_tested_here() -> None:
    assert sorted(path_parameters(app)) == sorted(COMMANDS)


@pytest.fixture
def folder(tmp_path: Path, vf_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    (place / "train.py").write_text(TRAIN)
    (place / "a-folder").mkdir()
    identity(place / "own")
    (place / "binary").write_bytes(bytes(range(256)))
    (place / "{}.json").write_text("{}")
    (place / "[].json").write_text("[]")
    assert run_verb("trace", "generate", "--jobs", "2")[0] == 0
    JobFolder(vf_home / "jobs" / "a-job").create(JobSpec.of("a-job", "train.py", (), ("0",)))
    return place


def refused(line: str, path: str) -> str:
    words = [path if word == "PATH" else word for word in shlex.split(line)]
    code, output = run_verb(*words)  # which fails if there is a traceback
    assert code in (1, 2), (words, output)
    assert "Traceback" not in output
    return output


@pytest.mark.parametrize("name", COMMANDS)
def test_a_path_that_can_not_be_used_is_an_error_that_says_so(name: str, folder: Path) -> None:
    line = COMMANDS[name]
    writes = name.endswith("output") or name.endswith("token_file")
    needs_folder = name in ("profile output", "simulate output", "tensorboard output", "replay dump")
    makes_it = name.endswith("token_file") and not name.startswith("join")
    bad = [*NO_FILE[1:2], *NO_FILE[4:5]] if writes else [*NO_FILE, *NO_TEXT, "a-folder"]
    bad = ["train.py/x.png", "train.py"] if needs_folder else [*bad, "a-folder"] if writes else bad
    bad = ["no-such-folder/x", "a-folder"] if makes_it else bad
    for path in bad:
        if (name, path) in ((each, "binary") for each in ("run script", "profile script")):
            continue  # a script like any other, until a worker reads it
        if name in ("run script", "profile script", "port script") and path.endswith(".json"):
            continue
        output = refused(line, path)
        if path != "\udcff" and not name.startswith("submit"):
            assert path.split("/")[0] in output.replace("\n", ""), (path, output)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("timeline a-job -o no-such-folder/x.png", "does not exist. Create it"),
        ("plot profile --workload resnet50 -o picture.nonsense", "not supported"),
        ("tensorboard a-job -o train.py/x", "train.py is a file, not a folder"),
        ("solve --workload resnet50 --batch-size 256 --devices V100:1 -o a-folder", "Name a file in it"),
        ("run --listen 127.0.0.1:0 --token-file no-such-folder/x train.py", "in a folder of yours"),
        ("join 127.0.0.1:1 --token-file binary", "is not text"),
        ("verify binary binary", "it is not text"),
        ("status [/]", "there is no job '[/]'"),
        ("status [bold]x[/]", "there is no job '[bold]x[/]'"),
        ("run [1,2].py", "there is no script [1,2].py"),
        ("solve --workload resnet50 --batch-size 8 --devices [bold]:2", "device type [bold]"),
        ("solve --workload [/] --batch-size 8 --devices V100:2", "there is no workload '[/]'"),
        ("explain --devices 1 --batch-size 4 --virtual-nodes [1,2]", "--virtual-nodes [1:"),
        ("nonsense[/]", "nonsense[/]"),
        ("run --[/] train.py", "--[/]"),
    ],
)
def test_what_was_typed_is_shown_as_it_was(folder: Path, words: str, reason: str) -> None:
    assert reason in refused(words, "")


@pytest.mark.parametrize(
    "text",
    [
        'time_scale = "slow"',
        "device = 3",
        "[device]\nV100 = 3",
        "slower = 3",
        '[[slower]]\ndevice = "0"',
        '[[slower]]\ndevice = "0"\nfrom_step = "x"\nfactor = 2',
        "[device.V100]\nprofile = 3",
        "[device.V100]\nworkload = 3",
        "[device.V100]\nspeed = [1]",
        "nonsense = 1",
        "[",
    ],
)
def test_a_device_file_with_odd_values_is_refused(folder: Path, text: str) -> None:
    (folder / "devices.toml").write_text(text)
    refused("run --devices V100:1 --device-file PATH missing.py", "devices.toml")


def test_a_home_that_can_not_be_used_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("VF_HOME", str(folder / "file"))
    assert "Set VF_HOME" in refused("run train.py", "")
    assert run_verb("doctor")[0] == 1


def test_tables_show_names_as_they_are(folder: Path, vf_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = "[bold]x[red] and [1, 2] :cat:"
    JobFolder(vf_home / "jobs" / odd).create(JobSpec.of(odd, "train.py", (), ("0",)))
    assert odd in run_verb("status")[1]
    assert odd in run_verb("status", odd)[1]
    closed = "[bold]x[/] and [1, 2]"
    verify.print_verdict(Verdict(False, closed, 0, facts=(closed,)))
    assert capsys.readouterr().out.count(closed) == 2


def test_no_verb_prints_with_markup() -> None:
    """Consoles come from ``screen``; what prints without one says that it takes text as it is."""
    for path in Path(home_of_verbs).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and path.name != "screen.py":
                assert node.func.id != Console.__name__, f"{path.name}:{node.lineno}"
        for text in re.findall(r'TextColumn\("[^"]*\{task.(?:description|fields)[^)]*\)', path.read_text()):
            assert "markup=False" in text, path.name
