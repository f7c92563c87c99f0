"""The pages are current and whole: Python blocks run, generated pages match, and every page is in the site."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import Launcher
from tests.docs.test_commands import DOCUMENTS, GENERATED, ROOT, blocks

SOURCE = ROOT / "src" / "virtualflow"
BEFORE = {  # what a document leaves to its reader
    "README.md": """
import torch
class ResNet(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(12, 3))
train_set = test_set = torch.utils.data.TensorDataset(torch.randn(512, 3, 2, 2), torch.randint(3, (512,)))
def metric_fn(model, batch):
    return (model(batch[0]).argmax(1) == batch[1]).sum(), len(batch[1])
"""
}
CODE = [
    pytest.param(document, text, id=f"{document.relative_to(ROOT)}-{number}")
    for document in DOCUMENTS
    for number, (language, text) in enumerate(blocks(document))
    if language == "python"
]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("document", "text"), CODE)
def test_a_python_block_runs(
    document: Path, text: str, tmp_path: Path, run_on_cpus: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a job on one device, which is forked from a process with torch in it."""
    script = tmp_path / "block.py"
    script.write_text(BEFORE.get(document.name, "") + text)
    monkeypatch.chdir(tmp_path)
    finished = run_on_cpus(script)
    assert finished.outcome.code == 0, finished.failure + finished.err()


def test_the_page_of_commands_is_current() -> None:
    assert GENERATED.read_text() == generator().page(), "python docs/generate.py brings it up to date"


def test_the_page_of_commands_has_every_option_of_run() -> None:
    text = GENERATED.read_text()
    assert all(f"`{option}`" in text for option in ("--devices", "--resume", "--no-replace", "--policy"))


def test_every_request_of_the_api_is_on_its_page() -> None:
    page = (ROOT / "docs" / "reference" / "http-api.md").read_text()
    server = (SOURCE / "manager" / "api" / "server.py").read_text()
    routes = re.findall(r'@api\.(get|post|put|delete)\("(/api/[^"]*|/metrics)"', server)
    assert routes
    for method, path in routes:
        known = path.replace(":path}", "}")
        place = known.rpartition("/")
        shared = f"{method.upper()} {place[0]}/"
        assert f"`{method.upper()} {known}`" in page or (shared in page and f"`/{place[2]}`" in page), known


def test_every_page_is_in_the_site_and_the_site_has_no_other() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r"([\w/-]+\.md)$", text, re.MULTILINE))
    assert listed == {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}


@pytest.mark.parametrize("document", [*DOCUMENTS, GENERATED], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_pictures_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target
