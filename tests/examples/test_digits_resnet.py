"""The README's example."""

SMALL = ("--epochs", 1, "--batch-size", 240, "--virtual-nodes", 6)


def test_a_plain_run_and_two_devices_with_loader_processes_give_the_same_bits(python, vf_run, digest, tmp_path):
    plain = python("digits_resnet.py", *SMALL)
    two = vf_run(2, "digits_resnet.py", *SMALL, "--loader-workers", 1, "--save", tmp_path / "digits.pt")
    assert digest(plain) == digest(two)
    assert "epoch  1  loss" in two.stdout
    assert (tmp_path / "digits.pt").is_file()


def test_a_bad_option_is_refused_with_the_choices(vf_run):
    refused = vf_run(1, "digits_resnet.py", "--reduction", "roughly")
    assert refused.returncode == 2
    assert "choose from" in refused.stderr
