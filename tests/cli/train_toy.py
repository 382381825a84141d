"""What the tests of `unmask train` share: a small text, settings for runs of a second, and how they are started."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

ENGLISH = [
    "the",
    "cat",
    "dog",
    "house",
    "river",
    "small",
    "big",
    "runs",
    "sleeps",
    "eats",
    "under",
    "over",
    "a",
    "green",
    "old",
    "tree",
    "king",
    "queen",
    "went",
    "to",
    "market",
    "bought",
    "fish",
    "bread",
    "and",
    "then",
    "came",
    "home",
    "again",
]
CHINESE = ["北京是中国的首都", "我爱吃苹果和面包", "天气很好我们去公园", "他在学校学习中文", "小猫在树上睡觉"]
MODEL = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "ffn_size": 24, "max_length": 40}


def write_text(path: Path, documents: int = 48, seed: int = 0) -> Path:
    """Documents of English and Chinese sentences, apart by blank lines."""
    draw = random.Random(seed)
    written = []
    for number in range(documents):
        lines = []
        for _ in range(draw.randint(4, 8)):
            if number % 3:
                lines.append(" ".join(draw.choice(ENGLISH) for _ in range(draw.randint(5, 11))).capitalize() + ".")
            else:
                lines.append("。".join(draw.sample(CHINESE, 2)) + "。")
        written.append("\n".join(lines))
    path.write_text("\n\n".join(written) + "\n", encoding="utf-8")
    return path


def flags(updates: int = 12, **settings: object) -> list[str]:
    """The flags of a small run."""
    told: dict[str, object] = {
        "stages": [{"length": 24, "updates": updates, "batch_tokens": 200}],
        "vocabulary.size": 200,
        "model.other": MODEL,
        "model.dropout": 0.1,
        "held_out": 6,
        "evaluation_tokens": 600,
        "train.log_every": 1,
        "train.save_every": 5,
        "train.evaluate_every": 6,
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    given = [flag for name, value in told.items() for flag in ("--set", f"{name}={json.dumps(value)}")]
    return [*given, "--threads", "1"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "unmask", "train", "pretrain", *map(str, arguments)]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "PYTHONWARNINGS": "error"}


def interrupted(signum: int, run: Path, updates: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Start a run, and send it a signal when it has done so many updates."""
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    log = run / "metrics.jsonl"
    while process.poll() is None and not (log.is_file() and log.read_bytes().count(b"\n") >= updates):
        time.sleep(0.005)
    process.send_signal(signum)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def digest(run: Path, updates: int) -> str:
    """All that a run has learned: the model, and the last checkpoint with its optimizer and random state."""
    files = [run / "model" / "model.safetensors", run / f"checkpoint-{updates}" / "model.safetensors"]
    files += [run / f"checkpoint-{updates}" / "position.json", run / "metrics.jsonl"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
