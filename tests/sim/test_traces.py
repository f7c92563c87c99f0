"""Traces: drawn at random, and read from what others have published."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from virtualflow.cluster.job import Job
from virtualflow.errors import ConfigError, TraceError
from virtualflow.sim import importers
from virtualflow.sim.generate import PRIORITIES, Recipe, again, generate, per_second
from virtualflow.sim.trace import Trace, write


def test_a_recipe_always_gives_the_same_trace() -> None:
    assert generate(Recipe(50, "12/h", seed=3)) == generate(Recipe(50, "12/h", seed=3))


def test_a_trace_that_was_drawn_is_drawn_anew_with_the_next_seeds() -> None:
    made = generate(Recipe(50, "12/h", seed=3))
    assert again(made, 0) == made
    assert again(made, 1) == generate(Recipe(50, "12/h", seed=4))


def test_the_papers_mix_has_all_workloads_priorities_and_demands_up_to_8() -> None:
    jobs = generate(Recipe(50, "12/h", seed=3)).jobs
    assert {job.workload for job in jobs} == {"resnet50", "resnet56", "bert-base", "transformer"}
    assert {job.priority for job in jobs} == set(PRIORITIES)
    assert max(job.demand for job in jobs) == 8


def test_the_rate_is_met_on_average() -> None:
    made = generate(Recipe(4000, "12/h"))
    assert made.jobs[-1].arrival_seconds / 3999 == pytest.approx(300.0, rel=0.05)


def test_jobs_of_other_traces_are_dealt_out_anew() -> None:
    trace = Trace(tuple(Job(str(n), 10.0 * n, 1, 1.0 + n) for n in range(9)))
    dealt = again(trace, 1)
    assert [job.arrival_seconds for job in dealt.jobs] == [job.arrival_seconds for job in trace.jobs]
    assert [job.id for job in dealt.jobs] != [job.id for job in trace.jobs]
    assert sorted(job.steps for job in dealt.jobs) == sorted(job.steps for job in trace.jobs)


def test_a_damaged_recipe_is_named() -> None:
    made = replace(generate(Recipe(3, "1/h")), generated={"jobs": 3, "colour": "red"})
    with pytest.raises(TraceError, match="colour"):
        again(made, 1)


@pytest.mark.parametrize("rate", ["12", "h", "-1/h", "0/h", "12/week"])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    with pytest.raises(ConfigError, match="such as 12/h"):
        per_second(rate)


def test_our_own_format_comes_back_as_it_was(tmp_path: Path) -> None:
    made = generate(Recipe(10, "1/min", seed=1))
    write(made, tmp_path / "trace.json")
    assert importers.read(tmp_path / "trace.json") == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no trace that VirtualFlow knows"),
        ("a,b,c\n1,2,3\n", "no trace that VirtualFlow knows"),
        ("{", "is damaged"),
        ('{"format": "other"}', "its format is 'other'"),
        ('{"format": "virtualflow trace", "version": 9}', "has version 9"),
        ('{"format": "virtualflow trace", "version": 1, "jobs": []}', "has no jobs"),
        ('{"format": "virtualflow trace", "version": 1, "jobs": [{"colour": 1}]}', "job 0: unknown colour"),
        ('[{"workload": "bert"}]', "job 0: there is no 'gpu_demand'"),
        ('[{"workload": "chess", "gpu_demand": 1, "batch_size": 1}]', "job 0: unknown workload 'chess'"),
        ("timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,x\nsoon,1,1,1,x\n", "line 3"),
        ("timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,0,66.0,x\n", "line 2.*demand"),
        ("name,time,application,num_replicas,batch_size\nx-0,1,chess,1,1\n", "line 2: unknown application 'chess'"),
        ("a\tb\tc\n", "line 1: 3 columns"),
        ("[1, 2]", "job 0"),
        ("job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n0,1,nan,1,x,164,30\n", "line 2.*finite"),
    ],
)
def test_a_bad_line_names_itself_and_its_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(text)
    with pytest.raises(TraceError, match=message) as error:
        importers.read(path)
    assert "jobs.txt" in str(error.value)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read"):
        importers.read(tmp_path / "nowhere.csv")


def test_the_papers_format(tmp_path: Path) -> None:
    rows = [
        {"arrival_time": 1, "workload": "bert", "gpu_demand": 4, "priority": 5, "batch_size": 64, "num_epochs": 2,
         "num_virtual_nodes_per_device": 2, "glue_task": "CoLA"},
        {"arrival_time": 9, "workload": "resnet", "gpu_demand": 1, "priority": 1, "batch_size": 128, "num_epochs": 1,
         "dataset": "cifar10"},
        {"arrival_time": 10, "workload": "bert", "gpu_demand": 4, "priority": 1, "batch_size": 64, "num_steps": 105,
         "num_epochs": 10, "num_virtual_nodes_per_device": 2, "glue_task": "SST-2"},
    ]  # fmt: skip
    (tmp_path / "paper.json").write_text(json.dumps(rows))
    bert, resnet, short = importers.read(tmp_path / "paper.json").jobs
    assert (bert.workload, bert.virtual_nodes, bert.node_size, bert.steps) == ("bert-base", 8, 8, 267)
    assert (resnet.workload, resnet.steps, resnet.demand) == ("resnet56", 390, 1)
    assert short.steps == 1050  # the steps of an epoch, ten times


def test_gavels_two_formats(tmp_path: Path) -> None:
    ten = "ResNet-18 (batch size 32)\tcommand\tfolder\t--steps\t1\t5000\t2\t3\t-1.000000\t43"
    seven = "LM (batch size 5)\tcommand\t--steps\t1\t700\t12.000000\t4"
    (tmp_path / "gavel.trace").write_text(f"{ten}\n{seven}\n")
    later, first = reversed(importers.read(tmp_path / "gavel.trace").jobs)
    assert (first.workload, first.steps, first.demand, first.arrival_seconds) == ("LM (batch size 5)", 700, 4, 12.0)
    assert (later.demand, later.priority, later.node_size) == (2, 3.0, 32)


def test_rows_of_published_traces_are_read(tmp_path: Path) -> None:
    """Two rows of each, in its own format: id or time of arrival, demand, seconds of work."""
    published = {
        "philly": ("timestamp,duration,num_gpus,gpu_time,cluster", "2017-10-09 07:01:55,66.0,1,66.0,11cb48",
                   "2017-10-09 07:13:03,2951.0,8,2951.0,6214e9"),
        "pollux": ("name,time,application,num_replicas,batch_size", "cifar10-0,107,cifar10,6,2048",
                   "deepspeech2-1,110,deepspeech2,6,320"),
        "tiresias": ("job_id,num_gpu,submit_time,iterations,model_name,duration,interval", "0,1,0,606,vgg19,164,30",
                     "1,8,30,133,vgg11,147,23"),
    }  # fmt: skip
    read = {}
    for name, lines in published.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
        jobs = importers.read(tmp_path / f"{name}.csv").jobs
        read[name] = [(job.id, job.arrival_seconds, job.demand, job.steps) for job in jobs]
    assert read == {
        "philly": [("0", 0.0, 1, 66.0), ("1", 668.0, 8, 2951.0)],
        "pollux": [("cifar10-0", 107.0, 6, 3343.0), ("deepspeech2-1", 110.0, 6, 2275.0)],
        "tiresias": [("0", 0.0, 1, 164.0), ("1", 30.0, 8, 147.0)],
    }


def test_the_papers_simulation_log_is_read(tmp_path: Path) -> None:
    header = "job,arrival_s,workload,dataset,global_batch,total_steps,priority"
    (tmp_path / "simulation.csv").write_text(
        f"{header}\n0,1,transformer,wmt,65536,1000,1\n1,512,resnet50,imagenet,8192,156,5\n"
    )
    first, second = importers.read(tmp_path / "simulation.csv").jobs
    assert (first.demand, first.virtual_nodes, first.node_size, first.priority) == (16, 32, 2048, 1.0)
    assert (second.arrival_seconds, second.virtual_nodes, second.node_size, second.steps) == (512.0, 128, 64, 156)
