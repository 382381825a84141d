"""Translators of Multi30k on its three test sets: BLEU as sacrebleu signs it, and as papers report it.

    UNMASK_DATA=folder python benchmarks/multi30k.py RUN… [--out results.json]
    UNMASK_DATA=folder python benchmarks/multi30k.py RUN… --tokenised    runs that learned from what --prepare wrote
    UNMASK_DATA=folder python benchmarks/multi30k.py --prepare FOLDER    the pairs, lower-cased and tokenised

`BLEU` is that of whole sentences in their own case (13a). `BLEU, lower-cased tokens` is that of papers: the set's own
file of references for test2016, and translations brought to the same form by Moses' steps (normalise punctuation,
tokenise with escapes and without splitting hyphens, lower-case; `pip install sacremoses`), which is checked first: from
the raw references they give every one of the 1,000 lines of that file. Beam 5.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from common import data_folder
from finetune_common import Found, Results, parser, said, table
from unmask.bundle import load
from unmask.decode.settings import DecodeSettings
from unmask.metrics.translation import TranslationScores, score_translations
from unmask.storage import new_folder
from unmask.tasks.runs import MODEL
from unmask.train.seeds import summary

TESTS = {"test2016": "test_2016_flickr", "test2017": "test_2017_flickr", "mscoco": "test_2017_mscoco"}
LOWERED = ".lc.norm.tok"
QUICK = 8


def lines_of(name: str) -> list[str]:
    """The lines of one of the set's files."""
    text = (data_folder() / "multi30k_en-de" / name).read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n")


# Lower-cased and tokenised, as the authors of the set did it.


@cache
def moses(language: str) -> Callable[[str], str]:
    """What makes the form of papers of a raw sentence."""
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        sys.exit("lower-cased tokens need Moses' steps: pip install sacremoses")
    normalise, tokenise = MosesPunctNormalizer(lang=language).normalize, MosesTokenizer(lang=language).tokenize

    def made(sentence: str) -> str:
        normal = normalise(sentence).lower()
        return str(tokenise(normal, aggressive_dash_splits=False, escape=True, return_str=True))

    return made


def lowered(name: str, language: str) -> list[str]:
    """A file of the set in the form of papers; that of the authors where it is there."""
    if (data_folder() / "multi30k_en-de" / f"{name}{LOWERED}.{language}").is_file():
        return lines_of(f"{name}{LOWERED}.{language}")
    return [moses(language)(sentence) for sentence in lines_of(f"{name}.{language}")]


def reproduced(language: str, name: str = TESTS["test2016"]) -> tuple[int, int]:
    """How many lines of the authors' file our steps give, and how many there are."""
    raw, wanted = lines_of(f"{name}.{language}"), lines_of(f"{name}{LOWERED}.{language}")
    same = sum(moses(language)(one) == other for one, other in zip(raw, wanted, strict=True))
    return same, len(wanted)


def prepare(folder: Path, quick: bool) -> None:
    """Write all pairs in that form: train.en, train.de, val.en, …"""
    with new_folder(folder) as draft:
        for name in ("train", "val", *TESTS.values()):
            for language in ("en", "de"):
                if quick:
                    lines = [moses(language)(sentence) for sentence in lines_of(f"{name}.{language}")[:QUICK]]
                else:
                    lines = lowered(name, language)
                (draft / f"{name}.{language}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
                said(f"{name}.{language}: {len(lines):,} lines")


# Scores.


def measure(run: Path, test: str, options: argparse.Namespace) -> Found:
    """Translate a test set and score it."""
    name, some = TESTS[test], slice(QUICK if options.quick else None)
    sources = (lowered(name, "en") if options.tokenised else lines_of(f"{name}.en"))[some]
    translator = load(run / MODEL).translator
    settings: DecodeSettings = translator.usage.decode.replace(beam=options.beam)
    said_of: list[str] = [one.text for one in translator.run(sources, settings)]
    found: Found = {"n": len(sources), "decode": settings.model_dump(mode="json")}
    if not options.tokenised:
        found["cased"] = plain(score_translations(said_of, lines_of(f"{name}.de")[some], tokenize="13a"))
    low = said_of if options.tokenised else [moses("de")(sentence) for sentence in said_of]
    found["lowered"] = plain(score_translations(low, lowered(name, "de")[some], tokenize="none"))
    found["translations"] = said_of
    return found


def plain(scores: TranslationScores) -> dict[str, Any]:
    interval = scores.bleu_interval
    return {
        "bleu": scores.bleu,
        "interval": [interval.low, interval.high],
        "signature": scores.bleu_signature,
        "chrf": scores.chrf,
        "chrf_signature": scores.chrf_signature,
        "length_ratio": scores.length_ratio,
    }


def cell(found: Sequence[Found], kind: str) -> str:
    """BLEU and its interval: of the sentences for one run, of the mean for several."""
    if kind not in found[0]:
        return "–"
    values = [one[kind]["bleu"] for one in found]
    low, high = found[0][kind]["interval"]
    if len(found) > 1:
        mean = summary(values)
        low, high = mean.low, mean.high
    return f"{sum(values) / len(values):.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of `unmask train translate`")
    options.add_argument("--tokenised", action="store_true", help="the runs learned from what --prepare wrote")
    options.add_argument("--prepare", type=Path, metavar="FOLDER", help="write the pairs, lower-cased and tokenised")
    options.add_argument("--beam", type=int, default=5)
    given = options.parse_args()
    if not given.runs and given.prepare is None:
        options.error("give runs to score, or --prepare FOLDER")
    for language in ("en", "de"):
        same, count = reproduced(language)
        said(f"Moses' steps give {same:,} of {count:,} lines of test2016's {LOWERED}.{language}")
    if given.prepare is not None:
        prepare(given.prepare, given.quick)
        return
    results = Results(given)
    form = ", tokenised" if given.tokenised else ""
    found = {
        test: [
            results.get(f"{run} {test} beam {given.beam}{form}", lambda run=run, test=test: measure(run, test, given))
            for run in given.runs
        ]
        for test in TESTS
    }
    rows: list[dict[str, object]] = []
    for number, run in [*enumerate(given.runs), *([(None, "mean of them")] if len(given.runs) > 1 else [])]:
        for test, each in found.items():
            some = each if number is None else [each[number]]
            rows.append(
                {
                    "run": run if number is None else run.name,
                    "set": f"{test} ({each[0]['n']:,})",
                    "BLEU": cell(some, "cased"),
                    "BLEU, lower-cased tokens": cell(some, "lowered"),
                }
            )
    table(f"Multi30k, English to German, beam {given.beam} (95 % interval)", rows, given)
    if not given.json:
        one = found["test2016"][0]
        for kind in ("cased", "lowered"):
            if kind in one:
                print(f"{kind}: {one[kind]['signature']}")


if __name__ == "__main__":
    main()
