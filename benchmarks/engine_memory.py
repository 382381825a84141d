"""Memory of embedding many texts, and of loading a model: each in a process of its own.

    UNMASK_DATA=folder python benchmarks/engine_memory.py [--model minilm] [--engine int8]

Peaks are of the whole process (Python and torch too, which are shown apart), as the system tells them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import common


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(options: argparse.Namespace) -> None:
    import torch

    import unmask
    from unmask.bundle import load
    from unmask.engine.choose import kernels, speeds

    torch.set_num_threads(options.threads)
    if kernels() is not None:
        speeds()
    before = peak()
    started = time.perf_counter()
    bundle = load(options.model, engine=options.engine)
    found = {"bare": before, "load seconds": time.perf_counter() - started, "load": peak() - before}
    if options.texts:
        lines = (common.data_folder() / "multi30k_en-de" / "train.en").read_text(encoding="utf-8").splitlines()
        started = time.perf_counter()
        for _ in bundle.embed_stream(itertools.islice(itertools.cycle(lines), options.texts)):
            pass
        found |= {"peak": peak(), "seconds": time.perf_counter() - started}
    assert isinstance(bundle, unmask.Bundle)
    file = max(Path(str(bundle.folder)).glob("*.safetensors"), key=lambda path: path.stat().st_size)
    print(json.dumps(found | {"file": file.stat().st_size / 2**20}))


def main() -> None:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--engine", default="int8")
    parser.add_argument("--texts", type=int, help="measure in this process, with so many texts")
    options = parser.parse_args()
    if options.texts is not None:
        child(options)
        return
    rows: list[dict[str, object]] = []
    for texts in (0, 10_000, 100_000):
        command = [sys.executable, __file__, "--model", options.model, "--engine", options.engine]
        command += ["--texts", str(texts), "--threads", str(options.threads)]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        rows.append({"texts": f"{texts:,}"} | {name: round(value, 2) for name, value in said.items()})
    columns = {name: "–" for row in rows for name in row}
    common.show(f"{options.model}, engine {options.engine}, MiB", [columns | row for row in rows], options.json)


if __name__ == "__main__":
    main()
