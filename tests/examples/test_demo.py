"""What `make demo` runs, with one epoch instead of fifteen."""

import json


def test_the_demo_shows_equal_digests_and_draws_the_curves(python, tmp_path):
    demo = python("demo.py", "--epochs", 1, "--out", tmp_path / "out", COLUMNS="120")
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "bit by bit" in demo.stdout
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
    digests = [line.split("│")[-2].strip() for line in demo.stdout.splitlines() if line.startswith("│ VirtualFlow")]
    assert len(digests) == 2
    assert digests[0] == digests[1]
    # The plain baseline's batch grows with its devices, so it makes fewer steps of the same examples.
    one, three = (json.loads((tmp_path / "out" / f"plain-{devices}.json").read_text()) for devices in (1, 3))
    assert (len(one["losses"]), len(three["losses"])) == (180, 60)
