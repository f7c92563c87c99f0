"""The README's example, and the demo made of it: what `make demo` runs, with one epoch instead of twelve."""

import json

import pytest

pytestmark = pytest.mark.timeout(600)


def test_the_demo_on_one_and_three_devices_and_a_plain_run_give_the_same_bits(python, digest, tmp_path):
    demo = python("demo.py", "--no-cluster", "--epochs", 1, "--out", tmp_path / "out", COLUMNS="80")
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "equal: 6 steps, bit by bit" in demo.stdout  # said by `vf verify`
    one, three = (line.split("│")[-2].strip() for line in demo.stdout.splitlines() if line.startswith("│ VirtualFlow"))
    plain = python("digits_resnet.py", "--epochs", 1, "--loader-workers", 1, "--save", tmp_path / "digits.pt")
    assert one == three == digest(plain)[: len(one)]
    assert (tmp_path / "digits.pt").is_file()
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
    # The plain baseline's batch grows with its devices, so it makes fewer steps of the same examples.
    steps = [len(json.loads((tmp_path / "out" / f"plain-{n}.json").read_text())["losses"]) for n in (1, 3)]
    assert steps == [180, 60]
