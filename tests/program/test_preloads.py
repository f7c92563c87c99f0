"""What is loaded before workers are forked: what the script imports, as far as nothing can tell the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.program.test_source import write
from virtualflow.cli.options import preload_of
from virtualflow.errors import ConfigError
from virtualflow.program import preload_names
from virtualflow.program.capture import take
from virtualflow.program.manifest import Program


def preloaded(folder: Path, **files: str) -> tuple[str, ...]:
    write(folder, **files)
    taken = take(folder / "train.py")
    taken.write(folder / "snapshot")
    return preload_names.of_program(Program.of(folder / "snapshot", str(folder / "train.py")), folder / "snapshot")


def test_imports_at_the_top_of_the_script_and_of_its_modules(tmp_path: Path) -> None:
    names = preloaded(
        tmp_path,
        train="import numpy as np, json\nimport torch.nn as nn\nfrom transformers import Trainer, BertConfig\n"
        "import beside\ndef later():\n    import scipy\n",
        beside="from sklearn.svm import *\nfrom . import other\nimport unheard_of\n",
    )
    assert names == ("numpy", "torch.nn", "transformers.Trainer", "transformers.BertConfig", "sklearn.svm")


def test_the_snapshot_is_read_and_not_what_was_edited_since(tmp_path: Path) -> None:
    write(tmp_path, train="import numpy")
    take(tmp_path / "train.py").write(tmp_path / "snapshot")
    write(tmp_path, train="import scipy")
    program = Program.of(tmp_path / "snapshot", str(tmp_path / "train.py"))
    assert preload_names.of_program(program, tmp_path / "snapshot") == ("numpy",)


def test_a_module_of_the_users_own_is_none_whatever_its_name(tmp_path: Path) -> None:
    assert preloaded(tmp_path, train="import datasets.words, numpy", datasets__words="") == ("numpy",)


@pytest.mark.parametrize(
    "setting",
    [
        "os.environ['HF_HOME'] = '.'",
        "os.environ.setdefault('OMP_NUM_THREADS', '2')",
        "environ.update(HF_HUB_OFFLINE='1')",
        "os.environ.update({name: '1'})",
        "os.environ |= variables",
        "os.putenv('A', 'b')",
        "del os.environ[name]",
        "load_dotenv()",
    ],
)
def test_nothing_if_the_program_sets_variables_that_an_import_may_read(tmp_path: Path, setting: str) -> None:
    assert preloaded(tmp_path, train="import numpy, beside", beside=f"def main():\n    {setting}") == ()


def test_variables_that_are_read_later_do_not_count(tmp_path: Path) -> None:
    text = "import os, numpy\nos.environ['TOKENIZERS_PARALLELISM'] = os.environ['HF_HOME']\n"
    assert preloaded(tmp_path, train=text + "os.environ.update({'WANDB_MODE': 'offline'}, CUDA_X='')") == ("numpy",)


def test_by_hand_it_is_what_is_named_or_nothing() -> None:
    assert preload_of("transformers, scipy.stats") == ("transformers", "scipy.stats")
    assert preload_of("none") == ()
    assert preload_of(None) is None
    for wrong in ("", "a b", "train.py,", "../net"):
        with pytest.raises(ConfigError, match="is not the name of a module"):
            preload_of(wrong)
