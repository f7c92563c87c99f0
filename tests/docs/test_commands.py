"""Every command of README and docs runs as written, on a machine without GPUs and without a network.

The documents are read in order, in one folder with a small ``train.py``; a command that occurs twice runs once.
Commands that need more than this machine are in ELSEWHERE, with the reason; ``vf`` must accept their arguments.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tests.cli.test_jobs import run_verb
from virtualflow.cli.main import app

ROOT = Path(__file__).parent.parent.parent
PARTS = ("tutorials", "how-to", "reference", "explanation", ".")
GENERATED = ROOT / "docs" / "reference" / "commands.md"
PAGES = [path for part in PARTS for path in sorted((ROOT / "docs" / part).glob("*.md")) if path != GENERATED]
DOCUMENTS = [ROOT / "README.md", *PAGES]
PROGRAMS = ("vf", "make", "pip", "ray", "python", "cat", "exec", "sbatch", "scancel", "#!/bin/sh", "#SBATCH")
ELSEWHERE = {
    r"make (demo|test)": "sets everything up, and takes minutes",
    r"pip install .*": "needs a network; what it names is tested beside this",
    r"ray start .*": "a Ray cluster",
    r"vf .*--backend ray.*": "a Ray cluster: the tests of the runtime have one",
    r"vf (run|profile) .*--listen 10\.0\.0\.5:.*": "an address of another machine: the tests of the runtime have some",
    r"vf join .*": "another machine",
    r"vf cluster (token|audit|up --(tls|listen)).*": "several users: tests/manager/test_several_users.py has some",
    r"vf .*large\.(py|json).*": "a script whose model is cut into stages: the tests of stages have some",
    r"vf simulate (philly\.csv|vf_like_8jph_seed0\.trace) .*": "a published trace, to be fetched first",
    r"vf simulate --from-cluster .*": "a cluster with a past: tests/sim/test_replayed.py has one",
    r"vf submit --(sweep|after|name prepare) .*": "many jobs: tests/cli/test_sweeps.py has some",
    r"vf sweep .*": "a name that is made when a sweep is submitted",
    r"(cat|sbatch|scancel|exec|#!/bin/sh|#SBATCH) ?.*": "Slurm",
}
PROCESSES = ("run", "profile", "cluster", "submit")  # the other verbs are called in this process, which is quicker
TRAIN = """
import time
from pathlib import Path

import torch, virtualflow as vf
from torch import nn
from torch.nn.functional import cross_entropy

vf.seed(0)
data = torch.utils.data.TensorDataset(torch.randn(1024, 8), torch.randint(4, (1024,)))
model = nn.Linear(8, 4)
trainer = vf.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: cross_entropy(m(b[0]), b[1]),
                     batch_size=512, virtual_nodes=16)
held = Path("hold").exists()
for _ in trainer.epochs(10**6 if held else 1):
    for batch in trainer.batches(data):
        trainer.step(batch)
        time.sleep(0.02 if held else 0.0)
print(trainer.digest())
"""


def blocks(document: Path) -> Iterator[tuple[str, str]]:
    """The language and the text of each fenced block."""
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", document.read_text(), re.DOTALL | re.MULTILINE):
        yield match[1], match[2]


def commands(document: Path) -> list[str]:
    """Each as one line, without its comment."""
    result = []
    for language, text in blocks(document):
        joined = re.sub(r"\s+# .*", "", text.replace("\\\n", " "))
        lines = [line.removeprefix("$ ").rstrip() for line in joined.splitlines() if line.strip()]
        if language or not lines[0].startswith(PROGRAMS):
            assert not re.search(r"^\s*(\$ )?vf ", text, re.MULTILINE), f"commands amid something else: {text}"
            continue
        while lines:
            line = lines.pop(0)
            while line.count("'") % 2:  # a quotation goes on in the next line
                line += " " + lines.pop(0).strip()
            assert line.startswith(PROGRAMS), f"{document.name}: what is {line!r}?"
            result.append(line)
    return result


def is_elsewhere(line: str) -> bool:
    return any(re.fullmatch(pattern, line) for pattern in ELSEWHERE)


def understood(words: list[str]) -> None:
    """Let the verb read its arguments, and do nothing."""
    command, place = typer.main.get_command(app), 0
    while place < len(words) and words[place] in getattr(command, "commands", {}):
        command, place = command.commands[words[place]], place + 1  # type: ignore[attr-defined]
    assert place, f"vf has no verb {words[0]}"
    command.make_context(words[place - 1], words[place:])


class Newcomer:
    """Types what the documents say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: list[str] = []
        self.done: set[str] = set()
        self.has_manager = False
        self.compares = False  # whether the document compares the runs that it makes: then it makes all of them
        (folder / "train.py").write_text(TRAIN)
        hidden = ("DISPLAY", "WAYLAND_DISPLAY")
        self._environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self._environment |= {"VF_HOME": str(folder / "home"), "COLUMNS": "200"}

    def needs(self, line: str) -> bool:
        """Whether to type *line*: a manager is started and ended where the documents do so, all else once."""
        if line.startswith("vf cluster up"):
            return not self.has_manager
        return line == "vf cluster down" or line not in self.done or (line.startswith("vf run") and self.compares)

    def types(self, line: str) -> str:
        words = shlex.split(line)
        if words[:3] in (["vf", "cluster", "up"], ["vf", "cluster", "down"]):
            self.has_manager = words[2] == "up"
        jobs = iter(self.jobs[-words.count("JOB") :])
        words = [next(jobs) if word == "JOB" else word for word in words]
        if "--watch" in words:
            return self._watches(words)
        if words[0] == "vf" and words[1] not in PROCESSES:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(self.folder)
                patch.setenv("VF_HOME", self._environment["VF_HOME"])
                code, output = run_verb(*words[1:])
            assert code == 0, f"{line}\n{output}"
            return output
        program = ["-m", "virtualflow.cli.main"] if words[0] == "vf" else []
        process = subprocess.run(
            [sys.executable, *program, *words[1:]],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert process.returncode == 0, f"{line}\n{process.stdout}\n{process.stderr}"
        self.jobs += re.findall(r"^job (\S+)$", process.stdout, re.MULTILINE)
        return process.stdout

    def _watches(self, words: list[str]) -> str:
        """On a terminal, until there is something to see."""
        command = [sys.executable, "-m", "virtualflow.cli.main", *words[1:]]
        ours, theirs = pty.openpty()
        process = subprocess.Popen(command, cwd=self.folder, env=self._environment, stdout=theirs)
        os.close(theirs)
        try:
            seen = os.read(ours, 1)
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # that is how a terminal ends that nobody writes to any more
                while data := os.read(ours, 4096):
                    seen += data
            assert process.wait(30) == 0, words
        finally:
            process.kill()
            process.wait()
            os.close(ours)
        return seen.decode()


@contextlib.contextmanager
def cleaned_up(home: Path) -> Iterator[None]:
    """Ends what runs under *home* in the end, even if this process is killed: the pipe closes either way."""
    environment = os.environ | {"VF_HOME": str(home)}
    command = [sys.executable, str(Path(__file__).with_name("clean_up.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True) as cleaner:
        yield
        assert cleaner.stdin is not None
        cleaner.stdin.close()
        assert cleaner.wait(100) == 0


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    somebody = Newcomer(tmp_path_factory.mktemp("newcomer"))
    with cleaned_up(somebody.folder / "home"):
        yield somebody


def test_a_killed_test_leaves_no_manager_behind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    code = f"""
import os, signal
from pathlib import Path
from tests.docs.test_commands import cleaned_up
from tests.cli.test_jobs import run_verb

os.environ["VF_HOME"] = {str(home)!r}
with cleaned_up(Path({str(home)!r})):
    assert run_verb("cluster", "up", "--devices", "1", "--listen", "127.0.0.1:0")[0] == 0
    os.kill(os.getpid(), signal.SIGKILL)
"""
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=100)
    assert process.returncode == -signal.SIGKILL
    with (home / "cluster" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the manager holds it as long as it runs


@pytest.mark.timeout(600)  # for a busy machine: many processes start here
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_document_run(document: Path, newcomer: Newcomer) -> None:
    for language, text in blocks(document):
        if language == "toml" and "time_scale" in text:
            (newcomer.folder / "devices.toml").write_text(text)
    for name, code in re.findall(
        r"Save this as `(\w+\.py)`.*?```python\n(.*?)^```$", document.read_text(), re.S | re.M
    ):
        (newcomer.folder / name).write_text(code)
    lines = [line for line in commands(document) if not is_elsewhere(line)]
    newcomer.compares = "vf verify JOB JOB" in lines
    hold = newcomer.folder / "hold"
    for place, line in enumerate(lines):
        if not newcomer.needs(line):
            continue
        # A job that later lines speak of lasts until they do.
        if "--detach" in line and any("resize" in later or "vf stop" in later for later in lines[place:]):
            hold.touch()
        if "--resume" in line:
            hold.unlink(missing_ok=True)
        newcomer.types(line)
        if "JOB" not in line and "--detach" not in line:  # the next lines may be about that very job
            newcomer.done.add(line)
    hold.unlink(missing_ok=True)


def test_what_can_not_run_here_is_understood() -> None:
    for document in DOCUMENTS:
        for line in commands(document):
            words = shlex.split(line.removeprefix("exec ").removeprefix("srun "))
            if line.startswith("make "):
                assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
            elif words[0] == "vf":
                understood(words[1:])


def test_what_is_said_to_be_elsewhere_is_there() -> None:
    lines = [line for document in DOCUMENTS for line in commands(document)]
    for pattern in ELSEWHERE:
        assert any(re.fullmatch(pattern, line) for line in lines), f"no document has a command like {pattern!r}"


def test_verbs_and_options_in_the_text_exist() -> None:
    main = typer.main.get_command(app)
    for document in DOCUMENTS:
        for text in re.findall(r"`vf ([^`]+)`", document.read_text()):
            command, words = main, text.split()
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
            assert command is not main, f"{document.name}: vf {text}"
            known = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
            used = {word.strip("[],") for word in words if word.startswith(("-", "[-"))}
            assert used <= known, f"{document.name}: vf {text}"
