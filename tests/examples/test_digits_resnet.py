"""The README's example."""

SMALL = ("--epochs", 1, "--batch-size", 240, "--virtual-nodes", 6)


def test_a_plain_run_two_devices_and_a_checkpoint_on_three_give_the_same_bits(python, vf_run, digest, tmp_path):
    checkpoint = tmp_path / "digits.pt"
    plain = python("digits_resnet.py", *SMALL, "--save", checkpoint)
    two = vf_run(2, "digits_resnet.py", *SMALL, "--loader-workers", 1)
    loaded = vf_run(3, "digits_resnet.py", *SMALL, "--load", checkpoint)
    assert digest(plain) == digest(two) == digest(loaded)
    assert "epoch  1  loss" in two.stdout
    assert "epoch" not in loaded.stdout  # the checkpoint had no epoch left to do


def test_a_bad_option_is_refused_once_with_the_choices(vf_run):
    refused = vf_run(2, "digits_resnet.py", "--reduction", "roughly")
    assert refused.returncode == 2
    assert refused.stderr.count("choose from") == 1
