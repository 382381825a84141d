"""What int8 costs in quality, and whether an answer depends on its company.

    UNMASK_DATA=folder python benchmarks/engine_quality.py [--sst2 runs/sst2/best] [--out results.json]

STS-B: Spearman correlation of the cosine of MiniLM's sentence vectors with people's marks, 1,500 pairs of the
development set, not fine-tuned. SST-2 (with `--sst2`, a fine-tuned model): accuracy on the development set, and the
labels and largest difference of logits of 2,000 training texts, alone, in batches of 7, 32 and 128, and shuffled.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

import common
import unmask
from unmask.data.examples import TextExample
from unmask.nn.batch import Batch
from unmask.nn.modes import evaluating
from unmask.tasks.runs import model_folder

ENGINES = ("torch", "fp32", "int8")


def sts(engine: str) -> float:
    path = common.data_folder() / "glue" / "STS-B" / "dev.tsv"
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    rows = [row for row in rows if len(row) >= 10]
    bundle = unmask.load("minilm", engine=engine)
    first, second = (bundle.embed([row[place] for row in rows]) for place in (7, 8))
    first, second = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (first, second))
    return float(spearmanr((first * second).sum(1), [float(row[9]) for row in rows]).statistic)


def accuracy(bundle: unmask.Bundle) -> tuple[float, int]:
    path = common.data_folder() / "glue" / "SST-2" / "dev.tsv"
    rows = [line.rsplit("\t", 1) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    said = list(bundle.predictor.run(TextExample(text, line=1) for text, _ in rows))
    right = sum(str(one.label) == label for one, (_, label) in zip(said, rows, strict=True))
    return right / len(rows), len(rows)


@torch.inference_mode()
def logits(bundle: unmask.Bundle, ids: list[list[int]], size: int) -> torch.Tensor:
    model = bundle.predictor.model
    with evaluating(model):
        found = [model.class_logits(model(Batch.of(ids[at : at + size]))) for at in range(0, len(ids), size)]
    return torch.cat(found)


def company(bundle: unmask.Bundle) -> dict[str, object]:
    path = common.data_folder() / "glue" / "SST-2" / "train.tsv"
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    texts = [line.rsplit("\t", 1)[0] for line in random.Random(0).sample(lines, 2000)]
    ids = [encoding.ids for encoding in bundle.tokenizer.encode_batch(texts)]
    order = random.Random(1).sample(range(len(ids)), len(ids))
    alone = logits(bundle, ids, 1)
    found = {str(size): logits(bundle, ids, size) for size in (7, 32, 128)}
    shuffled = logits(bundle, [ids[number] for number in order], 32)
    found["32, shuffled"] = torch.empty_like(shuffled)
    found["32, shuffled"][torch.tensor(order)] = shuffled
    return {
        name: {
            "other labels": int((one.argmax(1) != alone.argmax(1)).sum()),
            "largest difference": float((one - alone).abs().max()),
        }
        for name, one in found.items()
    }


def main() -> None:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--sst2", help="a model fine-tuned on SST-2: run or folder")
    parser.add_argument("--out", type=Path, help="write all figures here as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: dict[str, dict[str, object]] = {engine: {"STS-B": sts(engine)} for engine in ENGINES}
    for engine in ENGINES if options.sst2 else ():
        bundle = unmask.load(model_folder(options.sst2), engine=engine)
        found[engine]["SST-2"], found[engine]["texts"] = accuracy(bundle)
        found[engine]["company"] = company(bundle)
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
