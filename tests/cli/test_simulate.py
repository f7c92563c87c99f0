"""vf trace and vf simulate."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from virtualflow.cli.main import app
from virtualflow.errors import VirtualFlowError
from virtualflow.sim import costs

runner = CliRunner()
FIGURES = {
    "average_jct_seconds",
    "median_jct_seconds",
    "makespan_seconds",
    "median_queueing_seconds",
    "utilization",
    "jobs",
}


def invoke(*arguments: str | Path) -> str:
    result = runner.invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    assert "12 jobs" in invoke("trace", "generate", "--jobs", "12", "--rate", "12/h", "--seed", "1", "-o", path)
    return path


def test_json_has_the_figures_of_each_policy(trace: Path) -> None:
    arguments = ("simulate", trace, "--devices", "V100:8", "--policy", "wfs", "--policy", "priority", "--json")
    report = json.loads(invoke(*arguments))["policies"]
    assert list(report) == ["wfs", "priority"]
    for result in report.values():
        assert set(result) >= FIGURES
        assert [job["id"] for job in result["jobs"]] == [str(n) for n in range(12)]
        assert all(job["arrival_seconds"] <= job["start_seconds"] < job["end_seconds"] for job in result["jobs"])
    assert invoke(*arguments) == invoke(*arguments)


def test_policies_stand_side_by_side_with_intervals(trace: Path) -> None:
    text = invoke("simulate", trace, "--devices", "V100:4+4", "--policy", "wfs", "--policy", "fifo", "--seeds", "3")
    assert all(word in text for word in ("wfs", "fifo", "±", "average JCT", "makespan", "fairness", "utilisation"))


@pytest.mark.parametrize("policy", ["las", "las-mixed", "las-mixed-columns", "water-filling"])
def test_a_cluster_of_one_machine_may_lose_it(trace: Path, policy: str) -> None:
    result = invoke("simulate", trace, "--policy", policy, "--machine-failures", "2", "--devices", "V100:8", "--json")
    assert len(json.loads(result)["policies"][policy]["jobs"]) == len(json.loads(trace.read_text())["jobs"])


def embedded(page: Path) -> Any:
    (data,) = re.findall(r'id="vf-data">(.*?)</script>', page.read_text())
    return json.loads(data)["policies"]


@pytest.fixture
def report(trace: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "report"
    arguments = ("--devices", "V100:4,P100:4", "--policy", "wfs", "--policy", "fifo", "--seeds", "3")
    invoke("simulate", trace, *arguments, "--failures", "0.1", "-o", folder)
    return folder


def test_a_report_is_one_page_and_its_figures(report: Path) -> None:
    assert sorted(path.name for path in report.iterdir()) == ["index.html", "results.json"]


def test_the_page_has_every_policy_with_its_jobs_and_allocations(report: Path) -> None:
    policies = embedded(report / "index.html")
    assert list(policies) == ["wfs", "fifo"]
    for policy in policies.values():
        assert len(policy["state"]["jobs"]) == 12
        assert {segment["job"] for segment in policy["history"]["segments"]} == {str(n) for n in range(12)}


def test_the_page_has_the_figures_of_the_table_with_their_intervals(report: Path) -> None:
    results = json.loads((report / "results.json").read_text())["policies"]
    for name, policy in embedded(report / "index.html").items():
        assert policy["summary"]["average_jct_seconds"] == results[name]["average_jct_seconds"]
        assert policy["half_widths"] == results[name]["intervals"]


def test_the_page_says_where_the_device_seconds_went(report: Path) -> None:
    for policy in embedded(report / "index.html").values():
        parts = [policy["summary"][part] for part in ("productive", "restarting", "unused", "free", "lost")]
        assert sum(parts) == pytest.approx(1.0)
        assert all(part >= 0 for part in parts)


def test_a_report_needs_no_matplotlib(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    invoke("simulate", trace, "--devices", "V100:8", "-o", tmp_path / "report")
    assert (tmp_path / "report" / "index.html").exists()


def test_import_writes_our_format(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n0,1,0,606,vgg19,164,30\n"
    )
    invoke("trace", "import", tmp_path / "jobs.csv", "-o", tmp_path / "trace.json")
    text = invoke("simulate", tmp_path / "trace.json", "--devices", "V100:16", "--machine-size", "8", "--json")
    assert json.loads(text)["policies"]["wfs"]["makespan_seconds"] == pytest.approx(costs.MEASURED.boot + 164.0)


def test_pollux_traces_have_measured_speeds_and_only_pollux_changes_their_batch(tmp_path: Path) -> None:
    header = "name,time,application,num_replicas,batch_size"
    (tmp_path / "jobs.csv").write_text(f"{header}\ncifar10-0,0,cifar10,8,128\n")
    policies = ["--policy", "wfs", "--policy", "pollux"]
    text = invoke("simulate", tmp_path / "jobs.csv", "--devices", "T4:8", "--machine-size", "4", *policies, "--json")
    makespans = {name: found["makespan_seconds"] for name, found in json.loads(text)["policies"].items()}
    assert makespans["pollux"] < 0.7 * makespans["wfs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "V100"], "TYPE:COUNT"),
        (["--devices", "V100:8", "--policy", "magic"], "no policy 'magic'"),
        (["--devices", "V100:8", "--costs", "free"], "expected one of paper, measured, none"),
        (["--devices", "V100:8", "--round", "up"], "any, pow2"),
        (["--devices", "Abacus:8"], "can run on no device of this cluster"),
    ],
)
def test_errors_say_what_to_do(trace: Path, arguments: list[str], message: str) -> None:
    result = runner.invoke(app, ["simulate", str(trace), *arguments])
    assert isinstance(result.exception, VirtualFlowError)
    assert message in str(result.exception)


def test_help_reads_well() -> None:
    assert "Poisson" in invoke("trace", "generate", "--help")
    text = invoke("simulate", "--help")
    assert all(option in text for option in ("--policy", "--devices", "--seeds", "--costs", "--json", "--round"))
