"""What every benchmark shares: data, interleaved timing, and how results are shown."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all contestants in turn; the best counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser


def data_folder() -> Path:
    folder = os.environ.get("UNMASK_DATA")
    if not folder:
        sys.exit("set UNMASK_DATA to the folder with the data sets")
    return Path(folder)


def mixed_length_texts(count: int = 128, spread: float = 0.95, seed: int = 0) -> list[str]:
    """Captions joined so that lengths spread as in real traffic (log-normal): many short, a few long."""
    captions = (data_folder() / "multi30k_en-de" / "train.en").read_text(encoding="utf-8").splitlines()
    draw = random.Random(seed)
    texts, place = [], 0
    for _ in range(count):
        joined = max(1, min(round(draw.lognormvariate(0.55, spread)), 20))
        texts.append(" ".join(captions[place : place + joined]))
        place += joined
    return texts


def interleaved(
    contestants: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Seconds of each contestant's best round; all run in turn, so that a busy machine hurts all alike."""
    for run in contestants.values():
        run()
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, run in contestants.items():
            started = clock()
            run()
            best[name] = min(best[name], clock() - started)
    return best


def machine() -> str:
    flags = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()}, {os.cpu_count()} cores, {flags}, torch {torch.__version__}"


def show(title: str, rows: list[dict[str, object]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"title": title, "machine": machine(), "rows": rows}))
        return
    print(f"{title}\n{machine()}")
    columns = list(rows[0])
    cells = [columns, *[[str(row[column]) for column in columns] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
