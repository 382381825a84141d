"""Our engines beside the peers on the CPU: throughput on two sets of texts, and the latency of one text.

    pip install 'unmask[bench]'
    UNMASK_DATA=folder python benchmarks/engine.py [--model minilm] [--out results.json]

The texts: 128 of mixed length, captions of Multi30k joined (mean 38 tokens, at most 219), and 64 reviews of IMDB that
the model reads whole. Everybody tokenizes with the same tokenizer, has the same weights and as many threads, and takes
turns; the best of five rounds counts. The peers get their texts sorted by length and their best batch size. Token
vectors are compared with those of torch.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import torch

import common
from unmask.bench.peers import installed
from unmask.bench.run import Plan, Report, bench
from unmask.models.fetch import fetch
from unmask.text.tokenizer import Tokenizer


def reviews(tokenizer: Tokenizer, limit: int, count: int = 64) -> list[str]:
    with gzip.open(common.data_folder() / "imdb" / "test.tsv.gz", "rt", encoding="utf-8") as lines:
        texts = [line.rstrip("\n").split("\t", 2)[2] for line in lines]
    random.Random(0).shuffle(texts)
    return [text for text in texts[: 4 * count] if len(tokenizer.encode(text)) <= limit][:count]


def show(name: str, report: Report) -> None:
    peers = {kind: [one for one in report.figures if kind in one.name and "unmask" not in one.name] for kind in KINDS}
    best = {kind: max(some, key=lambda one: one.texts_per_second, default=None) for kind, some in peers.items()}
    rows: list[dict[str, object]] = []
    for one in report.figures:
        rival = best["int8" if "int8" in one.name else "fp32"]
        row: dict[str, object] = {
            "": one.name,
            "texts/s": round(one.texts_per_second, 1),
            "times the best peer": round(one.texts_per_second / rival.texts_per_second, 2) if rival else "–",
            "cosine": f"{one.cosine:.5f}",
            "largest difference": f"{one.difference:.2g}",
        }
        for length, taken in one.latency.items():
            row[f"{length} tokens, p50 ms"] = round(taken["p50"], 2)
            row[f"{length} tokens, p99 ms"] = round(taken["p99"], 2)
        rows.append(row | {"how": one.note})
    mean = sum(report.tokens) / len(report.tokens)
    title = f"{name}: {report.texts} texts, mean {mean:.0f} and at most {max(report.tokens)} tokens"
    common.show(f"{title}, {report.threads} threads", rows, False)
    print()


KINDS = ("fp32", "int8")


def main() -> None:
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--out", type=Path, help="write all figures here as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = Tokenizer.from_folder(fetch(options.model))
    found: dict[str, object] = {}
    for name, texts in {
        "captions": common.mixed_length_texts(),
        "reviews": reviews(tokenizer, 510),
    }.items():
        lengths = (16, 128) if name == "captions" else ()
        plan = Plan(peers=installed(), rounds=options.rounds, lengths=lengths)
        report = bench(options.model, texts, plan)
        found[name] = report.as_json()
        show(name, report)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
