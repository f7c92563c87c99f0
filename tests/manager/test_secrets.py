"""What a job was told in confidence: who gets it, where it is kept, and for how long."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_run import VF
from tests.manager.managed import SCRIPT, Managed, Service, until
from virtualflow.core.job_description import JobDescription
from virtualflow.errors import ConfigError
from virtualflow.job.folder import JobFolder
from virtualflow.manager import environment
from virtualflow.manager.submission import Submission

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing
SECRET = "swordfish-7141"
TELLS = "import json, os\nprint(json.dumps(dict(os.environ)))\n"
NOBODY = 65534


@pytest.fixture
def service(vf_home: Path) -> Iterator[Service]:
    service = Service(vf_home, "--devices", "1")
    service.up()
    yield service
    service.close()


def submit(service: Service, *words: str, **variables: str) -> Managed:
    environment = os.environ | {"VF_HOME": str(service.home), **variables}
    done = subprocess.run(
        [*VF, "submit", *words], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return Managed(service, done.stdout.split()[1], service.home)


def holds_secret(folder: Path) -> list[str]:
    return [str(file.relative_to(folder)) for file in folder.rglob("*")
            if file.is_file() and SECRET.encode() in file.read_bytes()]  # fmt: skip


def script(folder: Path, text: str = TELLS) -> str:
    (folder / "tells.py").write_text(text)
    return str(folder / "tells.py")


@pytest.mark.parametrize("name", ["PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "CONDA_PREFIX", "VIRTUAL_ENV", "HOME"])
def test_what_programs_need_goes_with_a_job(name: str) -> None:
    assert environment.allowed({name: "x"}) == {name: "x"}


@pytest.mark.parametrize(
    "name",
    ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "WANDB_API_KEY", "GITHUB_TOKEN", "PGPASSWORD", "SSH_AUTH_SOCK", "http_proxy",
     "CONDA_TOKEN", "PYTHON_KEYRING_PASSWORD", "CUDA_LICENSE_KEY", "NCCL_SECRET", "VF_TOKEN_FILE", "MY_PATH", "path"],
)  # fmt: skip
def test_what_else_is_in_a_shell_does_not(name: str) -> None:
    assert environment.allowed({name: "x"}) == {}


def test_more_goes_if_it_is_named() -> None:
    here = {"HF_TOKEN": "a", "WANDB_API_KEY": "b", "WANDB_MODE": "c", "PATH": "d"}
    assert environment.chosen(here, ["HF_TOKEN"]) == {"HF_TOKEN": "a", "PATH": "d"}
    assert environment.chosen(here, ["WANDB_*"]) == {"WANDB_API_KEY": "b", "WANDB_MODE": "c", "PATH": "d"}
    assert environment.chosen(here, ["NEW=x=y", "PATH=z"]) == {"NEW": "x=y", "PATH": "z"}
    for wrong in ("MISSING", "=x", "", "a b=c"):
        with pytest.raises(ConfigError, match="--env"):
            environment.chosen(here, [wrong])


def test_a_job_gets_what_is_allowed_and_named_and_it_is_gone_when_the_job_ends(
    service: Service, tmp_path: Path
) -> None:
    secrets = {"MY_SECRET": SECRET, "OTHER_SECRET": SECRET + "-other", "PYTHONHASHSEED": "7"}
    service.client.post("/api/devices/0/drain")  # so that it waits
    job = submit(service, "--env", "MY_SECRET", script(tmp_path), **secrets)
    kept = f"jobs/{job.id}/environment.json"
    assert holds_secret(service.home) == [kept]
    assert SECRET + "-other" not in (service.home / kept).read_text()
    service.kill()
    service.up()  # the job's variables outlive a manager
    service.client.post("/api/devices/0/return")
    assert job.until_over()["state"] == "DONE", job.view()
    seen = json.loads(job.output.splitlines()[0])
    assert (seen["MY_SECRET"], seen["PYTHONHASHSEED"]) == (SECRET, "7")
    assert "OTHER_SECRET" not in seen
    assert seen["PATH"] == os.environ["PATH"]
    (job.folder.path / "logs" / "lead.log").unlink()  # where the script has printed it
    (job.folder.path / "logs" / "0.log").unlink()
    assert holds_secret(service.home) == []


def test_a_job_that_is_cancelled_or_fails_leaves_no_secret_behind(service: Service, tmp_path: Path) -> None:
    service.client.post("/api/devices/0/drain")
    cancelled = submit(service, "--env", f"MY_SECRET={SECRET}", script(tmp_path))
    cancelled.ask("cancel")
    assert holds_secret(service.home) == []
    failed = submit(service, "--env", f"MY_SECRET={SECRET}", script(tmp_path, "raise ValueError('on purpose')\n"))
    service.client.post("/api/devices/0/return")
    assert failed.until_over()["state"] == "FAILED"
    assert holds_secret(service.home) == []


def test_a_job_whose_variables_are_lost_fails_with_the_reason(service: Service, tmp_path: Path) -> None:
    service.client.post("/api/devices/0/drain")
    job = submit(service, script(tmp_path))
    (job.folder.path / "environment.json").unlink()
    service.client.post("/api/devices/0/return")
    view = job.until_over()
    assert view["state"] == "FAILED"
    assert "the variables that the job was submitted with can't be read" in view["failure"]


def test_without_any_variables_told_a_job_gets_what_is_allowed_of_the_managers(
    vf_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", SECRET)
    variables = Submission(JobDescription("job.py"), {"job.py": ""}).variables
    assert "PATH" in variables
    assert SECRET not in variables.values()


def open_to_others(folder: Path) -> dict[str, str]:
    """Files and folders that somebody else may do something with."""
    return {
        str(path.relative_to(folder)): stat.filemode(path.lstat().st_mode)
        for path in (folder, *folder.rglob("*"))
        if path.lstat().st_mode & 0o077 and not stat.S_ISLNK(path.lstat().st_mode)
    }


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_what_a_job_leaves_is_for_its_owner_alone(vf_home: Path, tmp_path: Path) -> None:
    (tmp_path / "gates").mkdir()
    command = [*VF, "run", "--checkpoint-every", "50", str(SCRIPT), str(tmp_path / "gates")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (job,) = (vf_home / "jobs").iterdir()
    assert {"job.json", "snapshot", "logs", "state.json"} <= {each.name for each in job.iterdir()}
    for private in (vf_home / "jobs", job, job / "job.json", job / "snapshot" / SCRIPT.name, job / "logs" / "lead.log",
                    job / "state.json", job / "snapshot", job / "logs"):  # fmt: skip
        assert not private.stat().st_mode & 0o077, (private, stat.filemode(private.stat().st_mode))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.usefixtures("no_umask")
def test_another_user_sees_nothing_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen_by_another(path: Path) -> int:
        return subprocess.run(["/bin/ls", str(path)], user=NOBODY, capture_output=True, check=False).returncode

    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o755)
        monkeypatch.setenv("VF_HOME", home)
        command = [*VF, "run", script(Path(home)), "--password", SECRET]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert seen_by_another(Path(home)) == 0
        (job,) = (Path(home) / "jobs").iterdir()
        (Path(home) / "jobs").chmod(0o755)  # an owner may think that this does no harm
        for path in (job, job / "job.json", job / "snapshot" / "tells.py", job / "logs" / "lead.log"):
            assert path.exists()
            assert seen_by_another(path) != 0


@pytest.mark.usefixtures("no_umask")
def test_what_a_manager_keeps_is_for_its_owner_alone(vf_home: Path, tmp_path: Path) -> None:
    service = Service(vf_home, "--devices", "1")  # its folder is open, as one may have been made by hand
    service.up()
    try:
        job = submit(service, script(tmp_path), "--password", SECRET)
        until(lambda: job.view()["state"] == "DONE")
        assert not (vf_home / "cluster").stat().st_mode & 0o077
        assert set(open_to_others(vf_home / "jobs")) <= {f"{job.id}/lock"}  # which is empty
        assert not (vf_home / "jobs").stat().st_mode & 0o077
    finally:
        service.close()


def test_a_folder_that_an_older_version_left_open_is_closed(vf_home: Path) -> None:
    folder = JobFolder(vf_home / "jobs" / "old")
    folder.path.mkdir(parents=True)
    for each in (folder.path, folder.path.parent):
        each.chmod(0o755)
    with folder.locked():
        assert open_to_others(vf_home / "jobs") == {"old/lock": "-rw-r--r--"}
