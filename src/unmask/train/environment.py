"""What a run was made with: programs, machine, command. Nothing about who made it, and no environment variables."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from unmask.config import read_json
from unmask.errors import SettingsError
from unmask.storage import atomic_write

ENVIRONMENT = "environment.json"
_PACKAGES = ("numpy", "tokenizers", "safetensors")


def environment() -> dict[str, Any]:
    """The programs, the machine and the command of this process, as plain JSON-like data."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "unmask": _version("unmask"),
        "git": _git(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "torch": {
            "version": torch.__version__,
            "build": _torch_build(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "interop_threads": torch.get_num_interop_threads(),
        },
        "packages": {name: _version(name) for name in _PACKAGES},
        "cpu": {"model": _cpu_model(), "cores": os.cpu_count(), "cores_usable": _cores_usable()},
        "memory_bytes": _memory(),
        "devices": _devices(),
    }


def machine() -> str:
    """Processor, cores and torch, in a few words: where numbers were measured."""
    torch_says = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {_cores_usable()} cores, {torch_says}"


def write_environment(run: Path) -> Path:
    """Add this process to RUN/environment.json, a list with an entry for each process that worked on the run."""
    path = run / ENVIRONMENT
    before = read_json(path) if path.exists() else []
    if not isinstance(before, list):
        raise SettingsError(f"{path}: expected a list, given {type(before).__name__}; remove the file to go on")
    run.mkdir(parents=True, exist_ok=True)
    atomic_write(path, (json.dumps([*before, environment()], ensure_ascii=False, indent=2) + "\n").encode())
    return path


def _version(name: str) -> str | None:
    """The version of an installed package; None for one that was only copied to its place."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _command() -> list[str]:
    """The command line. The folder of the program is left out and the home folder is `~`: it has the user's name."""
    program = Path(sys.argv[0] or "python")
    name = f"python -m {program.parent.name}" if program.name == "__main__.py" else program.name
    home = os.path.expanduser("~").rstrip("/\\")
    inside = re.compile(re.escape(home) + r"(?=[/\\]|$)")
    return [name, *(inside.sub("~", word) if home else word for word in map(_writable, sys.argv[1:]))]


def _writable(text: str) -> str:
    """A text that can be written as UTF-8: an argument may hold bytes that are none."""
    return text.encode(errors="backslashreplace").decode()


def _git() -> dict[str, Any] | None:
    """The commit of the working directory, and whether files it knows were changed since; None if there is none."""
    commit = _output("git", "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    changes = _output("git", "--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changes is None else changes != ""}


def _output(*command: str) -> str | None:
    """What a program prints; None if it is not there, fails or takes long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _torch_build() -> list[str]:
    """What torch was built with, without its long list of compiler flags."""
    lines = [line.strip(" -") for line in torch.__config__.show().splitlines()[1:]]
    return [line for line in lines if line and not line.startswith("Build settings")]


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("model name", "cpu model"):
                return value.strip()
    except OSError:
        pass
    named = _output("sysctl", "-n", "machdep.cpu.brand_string") if sys.platform == "darwin" else None
    return named or platform.processor() or platform.machine()


def _cores_usable() -> float:
    """As many as the system lets this process run on; less if a container has a smaller share of their time."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = _control_group("cpu.max").split()
    if len(quota) == 2 and quota[0].isdecimal() and quota[1].isdecimal():
        cores = min(cores, int(quota[0]) / int(quota[1]))
    return cores


def _memory() -> int | None:
    """Bytes of memory of the machine, or of the container if it has less; None where the system does not tell."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    limit = _control_group("memory.max").strip()
    return min(total, int(limit)) if limit.isdecimal() else total


def _control_group(name: str) -> str:
    try:
        return (Path("/sys/fs/cgroup") / name).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


def _devices() -> list[dict[str, Any]]:
    """The accelerators that torch can use."""
    found: list[dict[str, Any]] = []
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(number)
            memory = {"memory_bytes": about.total_memory, "cuda": torch.version.cuda}
            found.append({"device": f"cuda:{number}", "name": about.name, **memory})
    if torch.backends.mps.is_available():
        found.append({"device": "mps", "name": _cpu_model()})
    return found
