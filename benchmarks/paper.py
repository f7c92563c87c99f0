"""The paper's accuracy results, on data and models that two cores can train.

1. Reproducibility (its ResNet table): batch size and virtual nodes fixed, on 1, 2, 4 and 8 devices, beside the naive
   way, where the batch shrinks with the devices and the learning rate stays.
2. Fine-tuning a pre-trained language model (its BERT table).
3. Batch size exploration: sizes that the device's memory does not hold.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import fashion, report
from benchmarks.arena import ROOT

JOB = Path(__file__).with_name("paper_job.py")
CLASSIFIER = ROOT / "examples" / "text_classifier.py"
BATCH_SIZE, VIRTUAL_NODES = 64, 8
NODE_SIZE = BATCH_SIZE // VIRTUAL_NODES
LIMIT_MEGABYTES = 32

Result = dict[str, Any]


def run(*, quick: bool) -> None:
    section = report.Section("paper", quick=quick)
    results: dict[str, Any] = {}
    if fashion.present():
        size = ["--examples", "1024", "--epochs", "4"] if quick else []
        results["reproducibility"] = reproducibility(section, size, [1, 2, 8] if quick else [1, 2, 4, 8])
        results["batch sizes"] = batch_sizes(section, size, [32, 128] if quick else [16, 32, 64, 128, 256])
    else:
        print("left out: Fashion-MNIST is not installed (Debian's dataset-fashion-mnist)")
    if CLASSIFIER.exists():
        results["fine-tuning"] = fine_tuning(section, [1, 2] if quick else [1, 2, 4, 8], 240 if quick else 1200)
    section.save(results)


def reproducibility(section: report.Section, size: Sequence[str], devices: Sequence[int]) -> list[Result]:
    """The same batch on any number of devices, and the batch that the devices hold."""
    found: list[Result] = []
    for count in devices:
        arguments = ["--batch-size", f"{BATCH_SIZE}", "--virtual-nodes", f"{VIRTUAL_NODES}", *size]
        virtual = _outcome(_vf(count, JOB, arguments))
        naive_batch = NODE_SIZE * count
        naive = _outcome(_torchrun(count, JOB, ["--plain", "--batch-size", f"{naive_batch}", *size]))
        found.append({"devices": count, "virtual": virtual, "naive_batch": naive_batch, "naive": naive})
    other = _outcome(_vf(2, JOB, ["--batch-size", f"{BATCH_SIZE}", "--virtual-nodes", f"{VIRTUAL_NODES // 2}", *size]))
    rows: list[list[object]] = [
        [
            item["devices"],
            BATCH_SIZE,
            VIRTUAL_NODES,
            f"{item['virtual']['accuracy']:.2%}",
            item["virtual"]["digest"][:12],
            item["naive_batch"],
            f"{item['naive']['accuracy']:.2%}",
        ]
        for item in found
    ]
    rows.append([2, BATCH_SIZE, VIRTUAL_NODES // 2, f"{other['accuracy']:.2%}", other["digest"][:12], "", ""])
    columns = ["devices", "batch", "virtual nodes", "accuracy", "digest", "naive batch", "naive accuracy"]
    section.show("ResNet-8 on Fashion-MNIST", columns, rows)
    _tell_if_equal([item["virtual"]["digest"] for item in found])
    return [*found, {"devices": 2, "virtual_nodes": VIRTUAL_NODES // 2, "virtual": other}]


def batch_sizes(section: report.Section, size: Sequence[str], sizes: Sequence[int]) -> list[Result]:
    """Train with each batch size in the same memory, with virtual nodes and without."""
    limit = ["--memory-limit", f"{LIMIT_MEGABYTES}"]
    found: list[Result] = []
    for batch_size in sizes:
        arguments = ["--batch-size", f"{batch_size}", *size, *limit]
        nodes = ["--virtual-nodes", f"{max(1, batch_size // NODE_SIZE)}"]
        virtual = _outcome([sys.executable, str(JOB), *arguments, *nodes], limited=True)
        plain = _outcome([sys.executable, str(JOB), "--plain", *arguments], limited=True)
        found.append({"batch_size": batch_size, "virtual": virtual, "plain": plain})
    rows = [[item["batch_size"], _accuracy(item["plain"]), _accuracy(item["virtual"])] for item in found]
    title = f"batch sizes on one device with {LIMIT_MEGABYTES} MB for the model, its activations and gradients"
    section.show(title, ["batch", "plain PyTorch", f"virtual nodes of {NODE_SIZE}"], rows)
    return found


def fine_tuning(section: report.Section, devices: Sequence[int], examples: int) -> list[Result]:
    """The example that fine-tunes MiniLM on movie reviews, on several numbers of devices; naively, with 8 on each."""
    found: list[Result] = []
    for count in devices:
        (accuracy, digest), (naive, _) = (
            _fine_tuned(count, 64, 8, examples),
            _fine_tuned(count, 8 * count, count, examples),
        )
        found.append({"devices": count, "accuracy": accuracy, "digest": digest, "naive": naive})
    rows = [
        [
            item["devices"],
            64,
            8,
            f"{item['accuracy']:.1%}",
            item["digest"][:12],
            8 * item["devices"],
            f"{item['naive']:.1%}",
        ]
        for item in found
    ]
    columns = ["devices", "batch", "virtual nodes", "accuracy", "digest", "naive batch", "naive accuracy"]
    section.show("MiniLM, fine-tuned on movie reviews", columns, rows)
    _tell_if_equal([item["digest"] for item in found])
    return found


def _fine_tuned(devices: int, batch_size: int, virtual_nodes: int, examples: int) -> tuple[float, str]:
    sizes = ["--batch-size", f"{batch_size}", "--virtual-nodes", f"{virtual_nodes}"]
    output = _run(_vf(devices, CLASSIFIER, [*sizes, "--examples", f"{examples}", "--max-length", "32"])).stdout
    accuracy, digest = re.findall(r"accuracy ([\d.]+)%", output), re.search(r"digest (\w+)", output)
    assert digest is not None
    return float(accuracy[-1]) / 100, digest[1]


def _tell_if_equal(digests: Sequence[str]) -> None:
    print("the same bits on every number of devices" if len(set(digests)) == 1 else "DIGESTS DIFFER", "\n")


def _accuracy(result: Result) -> str:
    return "out of memory" if result.get("out_of_memory") else f"{result['accuracy']:.2%}"


def _vf(devices: int, script: Path, arguments: Sequence[str]) -> list[str]:
    launcher = ["-m", "virtualflow.cli.main", "run", "--devices", f"{devices}", "--patience", "300"]
    return [sys.executable, *launcher, str(script), *arguments]


def _torchrun(devices: int, script: Path, arguments: Sequence[str]) -> list[str]:
    if devices == 1:
        return [sys.executable, str(script), *arguments]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", f"{devices}"]
    return [sys.executable, *launcher, str(script), *arguments]


def _outcome(command: Sequence[str], *, limited: bool = False) -> Result:
    done = _run(command, limited=limited)
    # Inside oneDNN, an allocation that fails may also end the process.
    if limited and done.returncode in (-signal.SIGSEGV, -signal.SIGABRT):
        return {"out_of_memory": True}
    result: Result = json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))
    return result


def _run(command: Sequence[str], *, limited: bool = False) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="vf-bench-") as home:
        environment = os.environ | {"VF_HOME": home, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode and not limited:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done
