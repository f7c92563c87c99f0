"""A part of the corpus, in a few ways each: `make chaos` runs all of it, in every way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.equivalence.corpus import DISTURBED, WAYS, BrokenPromiseError, Runner, Script, corpus
from virtualflow.backends.local import LocalBackend

# Beside one device, which each is compared with.
PART = {
    "conv_net": ("python", "3 devices"),
    "adamw_one_cycle": ("killed",),
    "language_model": ("2 devices",),
    "predictions": ("grown",),
    "ema": ("resumed",),
    "mixture_of_experts": ("3 devices",),
    "one_after_another": ("2 devices",),
    "own_test_loop": ("grown",),
    "mixup_random": ("grown",),
    "draw_after_evaluate": ("2 devices",),
    "sampler_after_evaluate": ("resumed",),
    "halved_at_the_top": ("grown",),
    "schedule_at_the_top": ("resumed",),
    "added_group": ("killed",),
    "set_epoch": ("grown",),
    "bf16_nadam": ("resumed",),
    "master_weights": ("grown",),
    "mask_in_forward": ("grown",),
    "growing_positions": ("2 devices",),
    "pruning": ("resumed",),
    "gan_spectral_norm": ("2 devices",),
    "dino_centre": ("killed",),
    "byol_target": ("2 devices",),
    "undeclared_spectral_norm": (),
    "undeclared_target": (),
    "kept_gradients": ("killed",),
    "skip_non_finite": ("2 devices",),
    "caught_error": ("3 devices", "grown"),
    "running_maximum": ("2 devices",),
    "complex_buffer": ("2 devices",),
    "large_counter": ("2 devices",),
    "float64": ("2 devices",),
    "fast_freezing": ("grown",),
    "early_stopping": ("resumed",),
    "early_stopping_locals": ("grown",),
    "containers_in_state": ("killed",),
    "own_generators": ("grown",),
    "options_from_a_dataclass": ("2 devices",),
    "vocabulary_from_a_set": ("python",),
    "scaler_without_examples": ("3 devices",),
    "writes_its_weights": (),
    "annealing_counter": (),
    "rng_in_the_dataset": (),
    "dqn_undeclared": ("grown",),
    "ema_undeclared": ("resumed",),
    "learner": ("grown",),
}


ON_CUDA = ["growing_positions"]  # `make chaos` runs the whole part there, too


@pytest.fixture
def runner(backend: LocalBackend, tmp_path: Path) -> Runner:
    return Runner(backend, tmp_path)


@pytest.fixture
def on_cpus(cpus: LocalBackend, tmp_path: Path) -> Runner:
    return Runner(cpus, tmp_path / "cpus")


@pytest.mark.on_cuda_too(some=ON_CUDA)
@pytest.mark.parametrize("name", PART)
def test_a_script_keeps_its_promise(runner: Runner, on_cpus: Runner, name: str) -> None:
    script = corpus()[name]
    calm = on_cpus.check(script, "1 device")
    if runner.on_accelerators:
        on_one = runner.check(script, "1 device", None if script.other_bits else calm)
        calm = on_one if script.other_bits else calm
    for way in PART[name]:
        runner.check(script, way, calm)


def test_a_script_that_breaks_its_promise_is_found(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    text = (corpus()["conv_net"].path).read_text()
    path.write_text(text.replace("vf.seed(0)", "vf.seed(0)\nimport os").replace("lr=0.05", "lr=1 / os.getpid()"))
    script = Script.read(path)
    calm = runner.check(script, "1 device")
    with pytest.raises(BrokenPromiseError, match="different since step 1"):
        runner.check(script, "1 device", calm)


def test_a_script_that_is_not_refused_is_found(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "refused.py"
    path.write_text(
        '"""A net.\n\nRefused when 1 device: LossError "weight"\n"""\n' + corpus()["conv_net"].path.read_text()
    )
    with pytest.raises(BrokenPromiseError, match="not refused by LossError"):
        runner.check(Script.read(path), "1 device")


def test_every_script_says_what_it_shows_and_declares_what_can_be_read() -> None:
    for script in corpus().values():
        text = script.path.read_text()
        assert text.startswith('"""'), script.name
        assert text.count("Refused") == len({id(refusal) for refusal in script.refusals.values()}), script.name
        assert script.skipped <= set(DISTURBED), script.name
        assert set(script.refusals) <= set(WAYS), script.name
        assert len(text.splitlines()) <= 70, script.name


def test_each_way_is_part_of_what_the_tests_run() -> None:
    run = {way for ways in PART.values() for way in ways} | {"1 device"}
    assert {way for way in WAYS if "at the top" not in way} <= run
