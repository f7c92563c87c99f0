"""A GPT on the King James Bible."""

import pytest

pytestmark = pytest.mark.timeout(600)

SMALL = ("--verses", 40, "--held-out", 12, "--epochs", 1, "--batch-size", 16, "--virtual-nodes", 3)
TINY = ("--layers", 1, "--width", 16, "--heads", 2, "--context", 48)


@pytest.mark.usefixtures("verses")
def test_two_devices_train_on_padded_verses_to_the_same_bits_as_a_plain_run(python, vf_run, digest):
    plain, two = python("language_model.py", *SMALL, *TINY), vf_run(2, "language_model.py", *SMALL, *TINY)
    assert digest(plain) == digest(two)
    assert "bits per byte" in two.stdout


def test_the_verses_are_all_there(verses):
    assert len(verses) == 31_102
    assert verses[0] == "In the beginning God created the heaven and the earth."


def test_a_missing_package_is_an_error_that_names_the_command_to_install_it(python, tmp_path):
    missing = python("data.py", "verses", PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert missing.returncode == 1
    assert "apt-get install bible-kjv" in missing.stderr
    assert "Traceback" not in missing.stderr
