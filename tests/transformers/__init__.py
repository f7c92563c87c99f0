"""Tests of this folder need the extra ``transformers``, and peft."""

from importlib.util import find_spec

if missing := [name for name in ("transformers", "accelerate", "peft") if find_spec(name) is None]:
    import pytest

    pytest.skip(f"{missing[0]} is not installed: pip install 'virtualflow[transformers]'", allow_module_level=True)
