"""The kernels, compiled for this machine on first use and kept.

C compilers are tried in this order: the one in the environment variable CC, `cc`, `gcc`, `clang`, and the one in the
PyPI package `ziglang`. Nothing is compiled at installation, nothing is downloaded, and without a compiler everything
still works through torch. UNMASK_NATIVE=0 says so on purpose.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from unmask.errors import FetchError, UserError
from unmask.models.fetch import home
from unmask.storage import replacing

SOURCES = (
    *("vector.h", "product.h", "rows.h", "attention.h", "team.h", "encoder.c"),
    *("decoder.h", "vocabulary.h", "search.h", "unmask.c"),
)
#: Sums are taken as written (no -ffast-math); a product and a sum may become one instruction.
FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-w", "-shared", "-fPIC", "-pthread")
_SECONDS = 120


@dataclass(frozen=True)
class Native:
    """The compiled kernels, or why there are none."""

    code: ctypes.CDLL | None
    reason: str = ""


@cache
def native() -> Native:
    """The kernels, compiled if they were not; asked once a process."""
    if os.environ.get("UNMASK_NATIVE", "1") in ("0", "no", "off"):
        return Native(None, "UNMASK_NATIVE=0")
    if sys.platform == "win32":
        return Native(None, "the kernels need POSIX threads")
    compiler = find_compiler()
    if compiler is None:
        return Native(None, "no C compiler was found; install one, or pip install ziglang")
    try:
        return Native(ctypes.CDLL(str(_compiled(compiler))))
    except (OSError, subprocess.SubprocessError, UserError, FetchError) as error:
        return Native(None, f"the kernels could not be compiled with {compiler[0]}: {_short(error)}")


def find_compiler() -> list[str] | None:
    """The command that compiles C, or None."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (path := shutil.which(name)):
            return [path]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def _compiled(compiler: list[str]) -> Path:
    with as_file(files("unmask.engine") / "kernels") as folder:
        digest = hashlib.sha256()
        for part in (*(folder / name for name in SOURCES),):
            digest.update(part.read_bytes())
        digest.update(repr((compiler, FLAGS, _processor())).encode())
        target = home() / "kernels" / f"{digest.hexdigest()[:20]}.so"
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as draft:
                command = [*compiler, *FLAGS, *_tuning(), str(folder / "unmask.c"), "-o", str(draft), "-lm"]
                subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS, text=True)
        return target


def _tuning() -> list[str]:
    """For the very processor that runs this."""
    return ["-mcpu=native"] if platform.machine().lower() in ("aarch64", "arm64") else ["-march=native"]


def _processor() -> str:
    """What the compiled code may depend on: another machine that shares the home folder compiles its own."""
    flags = ""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return f"{platform.machine()} {platform.system()} {flags}"


def _short(error: Exception) -> str:
    said = getattr(error, "stderr", None) or str(error)
    return str(said).strip().splitlines()[0][:200] if str(said).strip() else type(error).__name__
