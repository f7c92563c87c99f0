"""The glossary has every word that the code uses for itself, and no word that it does not use."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "virtualflow"
WORD = re.compile(r"^\| ([^|]+) \|", re.M)
# Module names that mean what they mean in any program of this field. A new name belongs here only if a newcomer
# understands it without a key; all others belong in the glossary.
PLAIN = """
    accelerate accumulate adapter advice ahead allocator alternatives assembly assignment backups balance balancing
    bench buffers checks client clock compare comparisons connections control costs data deadlines dependencies engine
    environment errors estimates execution fabric failures faults folder forkserver frameworks generate guard highs
    history home importers inference interrupts kernel launchers loaders loading local loggers loss messages metrics
    model networks notices optimizers outcome output page passes permutation plain preparation processes profiler
    prometheus ranks ray reader recorded recording refusals report result resumable resuming rules runner samples
    saving scheduler scheduling script search seeding seeds serve server service serving sessions sharding simulation
    source sources starting state status step strategy table text tls trained trainer training untouched update upload
    usage users variables waiting windows wording zipping
"""


def words() -> set[str]:
    rows = [row for row in WORD.findall((ROOT / "docs" / "glossary.md").read_text()) if row != "word"]
    return {word.strip().lower() for row in rows for word in row.split(",")}


def modules() -> set[str]:
    named = [file for file in SOURCE.rglob("*.py") if file.parent.name not in ("cli", "policies")]  # after verbs
    return {file.stem for file in named if not file.stem.startswith("__")}


def test_every_module_with_a_name_of_one_word_is_plain_or_explained() -> None:
    explained = {part.rstrip("s") for word in words() for part in word.split()}
    plain = set(PLAIN.split())
    single = {name for name in modules() if "_" not in name}
    assert sorted(name for name in single - plain if name.rstrip("s") not in explained) == []
    assert sorted(plain - single) == []


def test_every_word_is_one_that_the_code_uses() -> None:
    text = " ".join(file.read_text().lower() for file in SOURCE.rglob("*.py"))
    assert [word for word in sorted(words()) if any(part not in text for part in re.split("[- ]", word))] == []


def test_no_word_is_explained_twice() -> None:
    rows = WORD.findall((ROOT / "docs" / "glossary.md").read_text())
    listed = [word.strip() for row in rows for word in row.split(",") if row != "word"]
    assert sorted(word for word in set(listed) if listed.count(word) > 1) == []
