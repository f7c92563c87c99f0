"""Where the examples' texts come from: fetched once, then kept in ``~/.cache/virtualflow/data``."""

import argparse
import fcntl
import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # on Debian: apt-get install dataset-fashion-mnist
REVIEWS = "vaderSentiment==0.5"  # its source archive holds them; later versions do not
REVIEWS_ARCHIVE = "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz"
REVIEWS_FILE = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"


class DataError(SystemExit):
    """Data that can't be had: ends the script with the reason, and no traceback."""


def movie_reviews() -> list[tuple[str, int]]:
    """10,605 sentences from movie reviews, each with 1 where 20 people rated it positive on average, else 0."""
    lines = cached("movie_reviews.tsv", _fetch_reviews).splitlines()
    rows = [line.split("\t", 2) for line in lines]
    return [(text.strip(), int(float(rating) > 0)) for _, rating, text in rows]


def bible_verses() -> list[str]:
    """The 31,102 verses of the King James Bible, in order."""
    lines = cached("bible_verses.txt", _fetch_bible).splitlines()
    return [line.split(" ", 1)[1] for line in lines]  # a line begins with its place: Ge1:1


def images(*, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Clothes of 28 x 28 pixels from Fashion-MNIST, or digits of 8 x 8 from scikit-learn where that is missing.

    Pixels go from 0 to 1; beside each image is what it shows.
    """
    if FASHION_MNIST.exists():
        name = "train" if train else "t10k"
        pixels = _read_idx(f"{name}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
        return pixels.astype(np.float32) / 255, _read_idx(f"{name}-labels-idx1-ubyte.gz", 8).astype(np.int64)
    from sklearn.datasets import load_digits

    digits, labels = load_digits(return_X_y=True)
    part = slice(None, -360) if train else slice(-360, None)
    return digits[part].reshape(-1, 1, 8, 8).astype(np.float32) / 16, labels[part]


def _read_idx(name: str, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress((FASHION_MNIST / name).read_bytes())[header:], np.uint8)


def cached(name: str, fetch: Callable[[], bytes]) -> str:
    """The text *name*, fetched if this machine does not have it yet."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    # Every device runs the script from the top: the first one fetches, the others wait for it.
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_suffix(".part")
            unfinished.write_bytes(fetch())
            unfinished.replace(path)
    return path.read_text(encoding="utf-8")


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/virtualflow/data``, by default in ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "virtualflow" / "data"


def _fetch_reviews() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        # Only this package as source: what pip needs to read its metadata may come built.
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "vaderSentiment"]
        done = subprocess.run([*command, "-d", folder, REVIEWS], capture_output=True, text=True, timeout=300)
        archives = list(Path(folder).glob("*.zip"))
        if done.returncode or not archives:
            raise DataError(
                f"The movie reviews come with the source archive of {REVIEWS}, which pip could not download:\n\n"
                f"{_last_lines(done.stderr)}\n\n"
                f"Try it by hand: pip download --no-deps --no-binary vaderSentiment {REVIEWS}\n"
                "Without a network, run examples/data.py on a machine that has one, and copy its movie_reviews.tsv to "
                f"{cache_folder()}"
            )
        with zipfile.ZipFile(archives[0]) as outer:
            inner = io.BytesIO(outer.read(REVIEWS_ARCHIVE))
    with tarfile.open(fileobj=inner) as archive:
        file = archive.extractfile(REVIEWS_FILE)
        assert file is not None  # a regular file in this fixed version
        return file.read()


def _fetch_bible() -> bytes:
    if shutil.which("bible") is None:
        raise DataError(
            "The text comes with the Debian package bible-kjv, which is not installed (there is no command `bible`). "
            "Install it: apt-get install bible-kjv"
        )
    # -f: one verse to a line.
    done = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, timeout=60)
    if done.returncode or not done.stdout:
        raise DataError(f"`bible -f gen1:1-rev22:21` gave no text:\n\n{_last_lines(done.stderr.decode())}")
    return done.stdout


def _last_lines(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-3:])


def main() -> None:
    texts = {"reviews": movie_reviews, "verses": bible_verses}
    parser = argparse.ArgumentParser(
        description="Fetch the examples' texts now, so that nothing is left to fetch later."
    )
    parser.add_argument("text", nargs="?", choices=texts, help="only this one")
    given = parser.parse_args()
    for name in [given.text] if given.text else texts:
        print(f"{len(texts[name]()):,} {name} in {cache_folder()}")


if __name__ == "__main__":
    main()
