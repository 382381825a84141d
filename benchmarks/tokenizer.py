"""How fast texts become ids: ours against the fast tokenizer of transformers, on the same lines in the same run.

    UNMASK_DATA=folder python benchmarks/tokenizer.py [--folder MODEL] [--json]
    UNMASK_DATA=folder python benchmarks/tokenizer.py --words [--json]

Both read all ids as Python lists. Rounds are interleaved and the best of each side counts, so that a busy
machine slows both. MODEL is any folder with a BERT tokenizer; Chinese lines use a vocabulary of their characters.
With --words, the installed Chinese word segmenters are compared instead: speed, time to load, and agreement with jieba.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from unmask.text import Tokenizer, segment

BATCH = 1000


def english_lines(data: Path, count: int) -> list[str]:
    with (data / "brown" / "brown.txt").open(encoding="utf-8") as file:
        return list(itertools.islice((line.strip() for line in file if line.strip()), count))


def chinese_lines(data: Path, count: int) -> list[str]:
    with gzip.open(data / "zhwiki_sample" / "zhwiki_sample.txt.gz", "rt", encoding="utf-8") as file:
        return list(itertools.islice((line.strip() for line in file if line.strip()), count))


def chinese_folder(lines: Sequence[str], folder: Path) -> Path:
    letters = sorted({character for line in lines for character in line if not character.isspace()})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    Tokenizer.from_vocab(tokens).save(folder)
    return folder


def best_seconds(sides: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(sides, float("inf"))
    counts = {name: run() for name, run in sides.items()}  # also warms up
    if len(set(counts.values())) != 1:
        raise SystemExit(f"the sides disagree on the number of tokens: {counts}")
    for turn in range(rounds):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            sides[name]()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def compare(folder: Path, lines: Sequence[str], rounds: int) -> dict[str, float]:
    from transformers import AutoTokenizer

    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(str(folder))
    theirs.model_max_length = 10**9  # otherwise every call warns about long lines
    batches = [list(lines[start : start + BATCH]) for start in range(0, len(lines), BATCH)]
    sides: dict[str, Callable[[], int]] = {
        "ours": lambda: sum(len(one.ids) for batch in batches for one in ours.encode_batch(batch)),
        "transformers": lambda: sum(len(ids) for batch in batches for ids in theirs(batch)["input_ids"]),
    }
    best = best_seconds(sides, rounds)
    speeds = {f"{name}_lines_per_second": len(lines) / seconds for name, seconds in best.items()}
    return {"lines": len(lines), **speeds, "ratio": best["transformers"] / best["ours"]}


def spans(words: Sequence[str]) -> set[tuple[int, int]]:
    ends = list(itertools.accumulate(map(len, words)))
    starts = [0, *ends[:-1]]
    return {(start, end) for word, start, end in zip(words, starts, ends, strict=True) if not word.isspace()}


def compare_segmenters(lines: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    cutters: dict[str, Callable[[str], list[str]]] = {}
    loading: dict[str, float] = {}
    for name in ("jieba", "rjieba", "jieba_next"):
        start = time.perf_counter()
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(module, "setLogLevel"):
            module.setLogLevel(60)
        cutters[name] = getattr(module, "lcut", module.cut)
        cutters[name]("加载词典")
        loading[name] = time.perf_counter() - start
    cutters["unmask.text.segment"] = segment  # type: ignore[assignment]
    found = {name: [spans(cut(line)) for line in lines] for name, cut in cutters.items() if name in loading}
    found["unmask.text.segment"] = [set(segment(line)) for line in lines]
    sides = {name: (lambda cut=cut: len([cut(line) for line in lines])) for name, cut in cutters.items()}  # type: ignore[misc]
    best = best_seconds(sides, rounds)
    characters = sum(map(len, lines))
    return {
        name: {
            "million_characters_per_second": characters / best[name] / 1e6,
            "seconds_to_load": loading.get(name, loading["rjieba"]),
            "agreement": agreement(found[name], found["jieba"]),
        }
        for name in cutters
    }


def agreement(found: Sequence[set[tuple[int, int]]], reference: Sequence[set[tuple[int, int]]]) -> float:
    """F1 of the words found against those of the reference."""
    same = sum(len(one & other) for one, other in zip(found, reference, strict=True))
    return 2 * same / (sum(map(len, found)) + sum(map(len, reference)))


def print_segmenters(results: dict[str, dict[str, float]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'segmenter':<22}{'M characters/s':>16}{'loads in s':>12}{'F1 with jieba':>15}")
    for name, row in results.items():
        speed, load, same = row.values()
        print(f"{name:<22}{speed:>16.2f}{load:>12.2f}{same:>15.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, help="a folder with an English BERT tokenizer (default: minilm)")
    parser.add_argument("--words", action="store_true", help="compare word segmenters instead")
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one core each: steadier where others work too
    data = Path(os.environ.get("UNMASK_DATA") or parser.error("set UNMASK_DATA to the folder with the data sets"))
    chinese = chinese_lines(data, options.lines)
    if options.words:
        print_segmenters(compare_segmenters(chinese, options.rounds), options.json)
        return
    if options.folder is None:
        from unmask.models.fetch import fetch

        options.folder = fetch("minilm")
    with tempfile.TemporaryDirectory() as spare:
        results = {
            "english": compare(options.folder, english_lines(data, options.lines), options.rounds),
            "chinese": compare(chinese_folder(chinese, Path(spare)), chinese, options.rounds),
        }
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'text':<10}{'lines':>8}{'ours, lines/s':>16}{'transformers':>16}{'ratio':>8}")
    for name, row in results.items():
        print(
            f"{name:<10}{row['lines']:>8.0f}{row['ours_lines_per_second']:>16,.0f}"
            f"{row['transformers_lines_per_second']:>16,.0f}{row['ratio']:>8.2f}"
        )


if __name__ == "__main__":
    main()
