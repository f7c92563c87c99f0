"""Whatever accelerator a machine has, it is reached in one way, and says of itself what bits depend on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests import fakecuda
from tests.fakecuda import build
from virtualflow.errors import ConfigError
from virtualflow.train import accelerators, seeding

needs_fake = pytest.mark.skipif(build.why_not() is not None, reason=build.why_not() or "")


def on_cuda(program: str, devices: int = 2, **variables: str) -> Any:
    """What *program* leaves in ``result``, in a process that has so many CUDA devices."""
    text = (
        f"import json, torch\nfrom virtualflow.train import accelerators, seeding\n{program}\nprint(json.dumps(result))"
    )
    environment = os.environ | fakecuda.environment(devices) | variables
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_without_an_accelerator_there_is_none() -> None:
    assert accelerators.present() == ()
    assert accelerators.facts(torch.device("cpu")) == {}


@needs_fake
@pytest.mark.parametrize(("visible", "taken"), [("2,GPU-fake-mine-0,9,1", [2, 0]), ("", [])], ids=["some", "none"])
def test_devices_that_are_hidden_are_not_there(visible: str, taken: list[int]) -> None:
    program = "result = [[each.device_type, each.name, each.identity] for each in accelerators.present()]"
    result = [["cuda", "Fake GPU", f"cuda-GPU-fake-mine-{index}"] for index in taken]
    assert on_cuda(program, devices=3, CUDA_VISIBLE_DEVICES=visible, **{fakecuda.MACHINE: "mine"}) == result


PROGRAM = """
import dataclasses
from virtualflow.train import memory_advice

backends = torch.backends
result = {"chosen": {}}


def precisions():
    facts = accelerators.facts(torch.device("cuda"))
    return [facts[name] for name in facts if name.startswith("precision")]


def choose(name):
    backends.fp32_precision = "ieee" if name == "ieee for all" else "none"
    backends.cuda.matmul.fp32_precision = "none"
    backends.cudnn.conv.fp32_precision = "ieee" if name == "convolutions" else "tf32"
    backends.cudnn.rnn.fp32_precision = "tf32"
    if name == "ieee for all":  # as in a new process, where nobody has spoken of convolutions alone
        backends.cudnn.conv.fp32_precision = backends.cudnn.rnn.fp32_precision = "none"
    if name == "matmul":
        torch.set_float32_matmul_precision("high")
    if name == "older names":
        backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = True, False


for name in ("ieee for all", "convolutions", "matmul", "older names"):
    choose(name)
    seeding.make_deterministic(torch.device("cuda"))
    result["chosen"][name] = precisions()
choose(None)
accelerators.use(1)
seeding.reseed(7)
first = torch.rand(3, device="cuda")
seeding.reseed(7)
with seeding.generators_kept():
    torch.rand(5, device="cuda")
second = torch.rand(3, device="cuda")
result["used"] = first.device.index
result["same"] = torch.equal(first.cpu(), second.cpu())

torch.ones(1 << 24, device="cuda")  # a peak of the past
memory = torch.ones(1 << 20, device="cuda")
result["memory"] = dataclasses.astuple(memory_advice.MemoryUse.of(memory.device, 7))
torch.backends.cudnn.benchmark = True
seeding.make_deterministic(torch.device("cuda"))
result["deterministic"] = torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.benchmark
result["facts"] = accelerators.facts(torch.device("cuda"))
backends.fp32_precision = "tf32"
result["after a word for all"] = precisions()
backends.fp32_precision = "none"
seeding.check_settings()
torch.backends.cudnn.benchmark = True
try:
    seeding.check_settings()
except Exception as error:
    result["refused"] = f"{type(error).__name__}: {error}"
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What ``PROGRAM`` found on a machine with two CUDA devices."""
    result: dict[str, Any] = on_cuda(PROGRAM)
    return result


@needs_fake
def test_a_device_is_used_and_its_generators_seeded_and_kept(seen: dict[str, Any]) -> None:
    assert (seen["used"], seen["same"]) == (1, True)


@needs_fake
def test_a_device_tells_how_much_memory_it_has_and_what_is_in_use(seen: dict[str, Any]) -> None:
    before, reached, capacity = seen["memory"]
    assert before == 7
    assert 4 << 20 <= reached < 5 << 20
    assert capacity == 8 << 30


@needs_fake
def test_exact_mode_chooses_deterministic_kernels(seen: dict[str, Any]) -> None:
    assert seen["deterministic"]


@needs_fake
def test_the_facts_name_driver_libraries_and_settings(seen: dict[str, Any]) -> None:
    facts = seen["facts"]
    assert {"driver", "CUDA", "cuBLAS", "cuDNN", "NCCL"} <= facts.keys()
    assert facts["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert facts["cudnn.deterministic"] == "True"
    assert facts["kinds of attention"]


@needs_fake
def test_who_chose_no_precision_has_that_of_plain_pytorch_and_it_is_held(seen: dict[str, Any]) -> None:
    operators = ("matrix products", "convolutions", "recurrent layers")
    assert [seen["facts"][f"precision of {each}"] for each in operators] == ["ieee", "tf32", "tf32"]
    assert seen["after a word for all"] == ["ieee", "tf32", "tf32"]


@needs_fake
def test_a_precision_that_the_script_has_chosen_is_kept(seen: dict[str, Any]) -> None:
    assert seen["chosen"] == {
        "ieee for all": ["ieee", "ieee", "ieee"],
        "convolutions": ["ieee", "ieee", "tf32"],
        "matmul": ["tf32", "tf32", "tf32"],
        "older names": ["tf32", "ieee", "ieee"],
    }


@needs_fake
def test_a_setting_that_changes_later_is_refused_by_name(seen: dict[str, Any]) -> None:
    assert seen["refused"].startswith("ConfigError")
    assert "cudnn.benchmark" in seen["refused"]


def test_a_device_without_float64_is_refused_in_exact_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def ones(*_: object, **__: object) -> None:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")

    accelerators.check_float64(torch.device("cpu"))
    monkeypatch.setattr(torch, "ones", ones)
    with pytest.raises(ConfigError, match=r"MPS framework.*reduction=\"fast\""):
        accelerators.check_float64(torch.device("mps"))


def test_an_operator_without_a_deterministic_kernel_is_named_with_what_to_do() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        torch.zeros(4).put_(torch.tensor([0]), torch.ones(1))
    except RuntimeError as error:
        advice = seeding.determinism_advice(3, 17, error)
    finally:
        torch.use_deterministic_algorithms(False)
    assert advice is not None
    for part in ("step 17", "virtual node 3", "put_", 'reduction="fast"', "does not have a deterministic"):
        assert part in advice


def test_cublas_that_was_not_set_up_in_time_is_told_apart() -> None:
    error = RuntimeError("this operation is not deterministic because it uses CuBLAS and you have CUDA >= 10.2.")
    assert "CUBLAS_WORKSPACE_CONFIG" in str(seeding.determinism_advice(0, 0, error))


def test_other_errors_get_no_such_advice() -> None:
    assert seeding.determinism_advice(0, 0, RuntimeError("out of memory")) is None


def test_cublas_is_set_up_when_virtualflow_is_imported() -> None:
    program = "import os, virtualflow; print(os.environ['CUBLAS_WORKSPACE_CONFIG'])"
    environment = {name: value for name, value in os.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ":4096:8"
