"""Loads the CUDA device for tests before anything else, in each process that is told to have one."""

import os
import sys
from pathlib import Path

if os.environ.get("FAKECUDA_DEVICES"):
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from tests.fakecuda import install  # noqa: F401

    sys.path.pop(0)
