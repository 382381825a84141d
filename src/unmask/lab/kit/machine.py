"""Where numbers were measured."""

from __future__ import annotations

import os
import platform

import torch


def machine() -> str:
    """Processor, cores and torch, in a few words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    capability = torch.backends.cpu.get_cpu_capability()
    threads = torch.get_num_threads()
    return f"{platform.machine()} {capability}, {cores} cores, {threads} threads, torch {torch.__version__}"
