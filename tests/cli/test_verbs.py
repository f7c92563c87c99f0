"""explain, verify, doctor and --help."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from tests.train.small import make, regression, train
from virtualflow.cli.help import PANEL_OF, ScriptCommand
from virtualflow.cli.main import app
from virtualflow.errors import VirtualFlowError
from virtualflow.events import StepDone, read_events
from virtualflow.events.certificate import Certificate, compare
from virtualflow.train import solo

runner = CliRunner()


def invoke(*arguments: str, code: int = 0, columns: int = 200) -> str:
    result = runner.invoke(app, list(arguments), env={"COLUMNS": str(columns), "TERM": "dumb"})
    assert result.exit_code == code, result.output
    return result.output


def test_help_reads_well() -> None:
    text = invoke("--help")
    for verb in ("run", "explain", "verify", "doctor"):
        assert verb in text
    assert "same bits" in text
    assert "--all-output" in invoke("run", "--help")


def all_commands(group: TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from all_commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_help_fits_80_columns_and_cuts_no_option() -> None:
    for path, command in all_commands(typer.main.get_command(app)):
        text = invoke(*path, "--help", columns=80)
        assert max(map(len, text.splitlines())) <= 80, path
        words = set(re.findall(r"[\w-]+", text))
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert {*parameter.opts, *parameter.secondary_opts} <= words, path


def test_help_shows_no_type_for_an_option_that_takes_no_value() -> None:
    for path, _ in all_commands(typer.main.get_command(app)):
        assert "<bool>" not in invoke(*path, "--help"), path


def test_the_panels_of_options_name_options_that_exist() -> None:
    known = {
        parameter.name
        for _, command in all_commands(typer.main.get_command(app))
        if isinstance(command, ScriptCommand)
        for parameter in command.params
    }
    assert set(PANEL_OF) <= known


def test_explain_shows_mapping_waves_and_shards() -> None:
    text = invoke("explain", "--devices", "3", "--batch-size", "20", "--virtual-nodes", "8", "--examples", "50")
    assert "3 waves" in text
    assert "3 steps an epoch" in text
    report = json.loads(invoke("explain", "--devices", "2", "--batch-size", "10", "--virtual-nodes", "3x2,4", "--json"))
    assert report["waves"] == 2
    assert [row["shard_sizes"] for row in report["devices"]] == [[3, 3], [4]]
    scattered = json.loads(
        invoke(
            "explain", "--devices", "2", "--batch-size", "8", "--virtual-nodes", "4", "--mapping", "1,0,0,1", "--json"
        )
    )
    assert scattered["devices"][0]["virtual_nodes"] == [1, 2]


def test_explain_says_what_finer_virtual_nodes_would_bring() -> None:
    """On 5 devices, 8 virtual nodes take as long as on 4."""
    words = "explain", "--devices", "5", "--batch-size", "80", "--virtual-nodes"
    finer = json.loads(invoke(*words, "8", "--json"))["finer"]
    assert [(each["virtual_nodes"], each["most_examples"]) for each in finer] == [(8, 20), (40, 16)]
    assert [round(each["longer"], 2) for each in finer] == [0.25, 0.0]
    assert "with 40 virtual nodes" in " ".join(invoke(*words, "8").split())
    assert "Finer" not in invoke(*words, "10")


def test_explain_refuses_what_a_job_would_refuse() -> None:
    with pytest.raises(VirtualFlowError, match="Use at most 2 devices"):
        runner.invoke(
            app, ["explain", "--devices", "3", "--batch-size", "8", "--virtual-nodes", "2"], catch_exceptions=False
        )


def test_doctor_tells_what_is_there() -> None:
    findings = {finding["subject"]: finding for finding in json.loads(invoke("doctor", "--json"))}
    assert findings["torch"]["is_good"]
    assert findings["gloo (several CPU devices)"]["is_good"]
    assert "torch" in invoke("doctor")


@pytest.fixture
def run() -> Any:
    """Runs a job of its own."""

    def one(**options: Any) -> Path:
        solo.start_over()
        trainer = make(**options)
        train(trainer, regression(), epochs=2)
        assert trainer.events_path is not None
        return trainer.events_path

    return one


def test_verify_says_equal(run: Any) -> None:
    assert "equal: 10 steps, bit by bit" in invoke("verify", str(run()), str(run().parent))


def test_verify_names_facts_first(run: Any) -> None:
    text = invoke("verify", str(run()), str(run(seed=1)), code=1)
    assert "different since step 0 (epoch 0): the examples" in text
    assert "seed: 0 and 1" in text
    assert json.loads(invoke("verify", str(run()), str(run(seed=1)), "--json", code=1))["step"] == 0


def test_verify_does_not_compare_fast_runs(run: Any) -> None:
    assert "not comparable" in invoke("verify", str(run(reduction="fast")), str(run()), code=1)


def test_verify_names_the_first_step_and_the_first_thing_that_differs(run: Any) -> None:
    path = run()
    one = Certificate.of(read_events(path), "one")
    for field, value, what in (
        ("loss_bits", "0x0p+0", "the loss"),
        ("norm_bits", "0x0p+0", "the gradient norm"),
        ("ids", "00000000", "the examples"),
    ):
        steps = dict(one.steps)
        steps[4] = replace(steps[4], **{field: value})
        verdict = compare(one, Certificate(one.facts, steps, one.digests))
        assert (verdict.equal, verdict.step) == (False, 4)
        assert what in (verdict.what or "")
        if field == "loss_bits":
            assert verdict.what == f"the loss ({one.steps[4].loss!r} and 0.0)"
    verdict = compare(one, Certificate(one.facts, one.steps, {4: "0" * 64}))
    assert verdict.step == 4
    assert "digest" in (verdict.what or "")
    shorter: dict[int, StepDone] = {step: done for step, done in one.steps.items() if step < 7}
    verdict = compare(one, Certificate(one.facts, shorter, one.digests))
    assert "equal up to step 6" in verdict.summary


def test_verify_explains_what_it_can_not_read(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("what\n{}\n")
    for name, message in (("nowhere", "there is no run 'nowhere'"), (str(tmp_path), "none of its lines is an event")):
        with pytest.raises(VirtualFlowError, match=message):
            runner.invoke(app, ["verify", name, name], catch_exceptions=False)


def test_a_stream_cut_off_by_a_kill_can_be_read(run: Any) -> None:
    path = run()
    path.write_text(path.read_text()[:-20])
    assert len(Certificate.of(read_events(path), "cut").steps) == 10


def test_verify_names_the_settings_of_the_optimizer_that_differ(run: Any) -> None:
    one = Certificate.of(read_events(run()), "one")
    assert (one.facts["optimizer"]["type"], one.facts["optimizer"]["lr"]) == ("SGD", "0.1")
    other = replace(one, facts=one.facts | {"optimizer": one.facts["optimizer"] | {"lr": "0.2"}})
    assert compare(one, other).facts == ("the optimizer's lr: 0.1 and 0.2",)
    assert compare(one, replace(one, facts={**one.facts, "optimizer": None})).facts == ()


def test_explain_shows_the_grid_of_a_model_in_stages() -> None:
    words = ("explain", "--devices", "3", "--batch-size", "8", "--virtual-nodes", "4", "--stages", "3", "--json")
    report = json.loads(invoke(*words))
    assert report["grid"] == [["0"] * 4, ["1"] * 4, ["2"] * 4]
    assert [row["peak_activations"] for row in report["cells"]] == [3, 2, 1]
    assert [row["bubble"] for row in report["cells"]] == [0.3333] * 3
    assert report["at_risk"] == []
    by_hand = json.loads(invoke(*words, "--mapping", "0,0,1,1/0,0,1,1/2,2,2,2", "--copies", "1"))
    assert by_hand["grid"][2] == ["2"] * 4
    assert by_hand["at_risk"] == [2]
    assert "2  c c c c" in invoke(*words[:-1])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--devices", "5", "--stages", "2"), "4 virtual nodes can use at most that many devices, not 5"),
        (("--devices", "2", "--mapping", "0,0,1,1/1,1,0,0"), "say how many with --stages"),
    ],
)
def test_explain_refuses_a_grid_that_no_job_can_have(words: tuple[str, ...], text: str) -> None:
    result = runner.invoke(app, ["explain", "--batch-size", "8", "--virtual-nodes", "4", *words])
    assert text in str(result.exception)
