"""Two networks that train against each other, and one that learns from its own past."""

import pytest


@pytest.mark.parametrize(
    ("script", "options"),
    [("dcgan.py", ("--examples", 256, "--epochs", 1, "--batch-size", 64)), ("distillation.py", ("--examples", 512))],
)
def test_two_devices_train_several_models_to_the_same_bits_as_a_plain_run(script, options, python, vf_run, digest):
    plain, two = python(script, *options), vf_run(2, script, *options)
    assert digest(plain) == digest(two)
