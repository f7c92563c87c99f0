"""A GPT in stages."""

import pytest

pytestmark = pytest.mark.timeout(600)
SMALL = ("--width", 16, "--layers", 1, "--examples", 40, "--epochs", 1)


def test_a_pipeline_of_three_gives_the_bits_of_a_plain_run(python, vf_run, digest):
    assert digest(python("staged_gpt.py", *SMALL)) == digest(vf_run(3, "staged_gpt.py", *SMALL))
