"""MiniLM on movie reviews."""

import pytest

pytestmark = pytest.mark.timeout(600)

SMALL = ("--examples", 72, "--epochs", 1, "--max-length", 12)


@pytest.mark.usefixtures("reviews")
def test_two_devices_fine_tune_to_the_same_bits_as_a_plain_run(python, vf_run, digest):
    plain, two = python("text_classifier.py", *SMALL), vf_run(2, "text_classifier.py", *SMALL)
    assert digest(plain) == digest(two)
    assert "accuracy" in two.stdout


def test_the_reviews_are_all_there(reviews):
    assert len(reviews) == 10_605
    assert sum(label for _, label in reviews) == 5_242
    assert reviews[2] == ("Effective but too tepid biopic", 0)


def test_reviews_that_pip_cannot_fetch_are_an_error_that_says_what_to_do(python, tmp_path):
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    missing = python("data.py", "reviews", **nowhere)
    assert missing.returncode == 1
    assert "pip could not download" in missing.stderr
    assert "Try it by hand" in missing.stderr
    assert "Traceback" not in missing.stderr
