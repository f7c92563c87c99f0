"""Builds and loads ``accumulate.c`` with the machine's C compiler, once per processor type, without torch's headers."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("accumulate.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-std=c11", "-shared", "-fPIC")


@cache
def load() -> ctypes.CDLL | None:
    """The fused kernel, or None where it cannot be built: the torch version gives the same bits, more slowly."""
    try:
        library = ctypes.CDLL(str(_built()))
    except (OSError, subprocess.SubprocessError):
        return None
    pointer, integer, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    for add in (library.vf_add_float, library.vf_add_double):
        add.argtypes = (pointer, pointer, integer, real, ctypes.c_int, pointer)
    for finish in (library.vf_finish_float, library.vf_finish_double):
        finish.argtypes = (pointer, integer, real, pointer, pointer)
        finish.restype = None
    for checksum in (library.vf_checksum_float, library.vf_checksum_double):
        checksum.argtypes = (pointer, integer, real, real, real)
        checksum.restype = ctypes.c_uint64
    library.vf_digest.argtypes = (pointer, integer)
    library.vf_digest.restype = ctypes.c_uint64
    return library


def _built() -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("no C compiler")
    key = hashlib.sha256(SOURCE.read_bytes() + repr((FLAGS, compiler, _processor())).encode()).hexdigest()[:16]
    target = _cache_folder() / f"accumulate-{key}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder, "kernel.so")
            command = [compiler, *FLAGS, "-o", str(made), str(SOURCE)]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            made.replace(target)  # atomic: several workers may build at once
    return target


def _processor() -> str:
    # -march=native: a home folder shared by machines of several kinds must keep their builds apart.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return os.uname().machine
    return repr(sorted({line for line in lines if line.startswith(("flags", "model name"))}))


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "virtualflow"
