"""Builds the device against the torch wheel's own headers, once for each version of both."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")


def torch_folder() -> Path:
    """Where torch is, without importing it."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def why_not() -> str | None:
    """Why the device can't be built on this machine; None if it can."""
    return None if shutil.which("g++") else "there is no g++ to build a CUDA device for tests with"


def library() -> Path:
    """The built device."""
    key = hashlib.sha256(SOURCE.read_bytes() + importlib.metadata.version("torch").encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "virtualflow"
    built = cache / f"fakecuda-{key}.so"
    if not built.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = Path(folder, "made.so")
            torch = torch_folder()
            options = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC"]
            headers = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
            libraries = [f"-L{torch}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch}/lib"]
            subprocess.run(["g++", *options, *headers, str(SOURCE), "-o", str(made), *libraries], check=True)
            made.replace(built)
    return built
