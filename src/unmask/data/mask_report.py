"""Whether examples are made as the settings say: counted over the first batches, to be shown when a run starts.

Everything is counted in the batches themselves and in the text that they were made of, not where they are made. What
is drawn at random lies outside its interval once in a hundred times though nothing is wrong: one value outside is a
reason to look again with more batches, several are a reason to stop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.data.pretraining import Examples, PretrainBatch

CONFIDENCE = 0.99

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Check:
    """A share, what it should be, and the interval in which it should lie."""

    name: str
    found: float
    expected: float
    low: float
    high: float
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether it lies inside."""
        return self.low <= self.found <= self.high


@dataclass(frozen=True)
class MaskReport:
    """What was counted."""

    batches: int
    examples: int
    tokens: int  # special ones included
    checks: tuple[Check, ...]

    @property
    def mean_length(self) -> float:
        """Tokens of an example."""
        return self.tokens / self.examples

    @property
    def ok(self) -> bool:
        """Whether everything lies inside its interval."""
        return all(check.ok for check in self.checks)

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """A table: name, found, expected, interval, ok."""
        counted = [
            ("batches", f"{self.batches:,}", "", "", ""),
            ("examples", f"{self.examples:,}", "", "", ""),
            ("tokens", f"{self.tokens:,}", "", "", ""),
            ("tokens of an example, mean", f"{self.mean_length:.1f}", "", "", ""),
        ]
        return counted + [
            (
                f"{check.name} ({check.note})" if check.note else check.name,
                f"{check.found:.3%}",
                f"{check.expected:.3%}",
                f"{check.low:.3%} … {check.high:.3%}",
                "yes" if check.ok else "NO",
            )
            for check in self.checks
        ]

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "batches": self.batches,
            "examples": self.examples,
            "tokens": self.tokens,
            "mean_length": self.mean_length,
            "confidence": CONFIDENCE,
            "ok": self.ok,
            "checks": [
                {
                    "name": check.name,
                    "found": check.found,
                    "expected": check.expected,
                    "interval": [check.low, check.high],
                    "note": check.note,
                    "ok": check.ok,
                }
                for check in self.checks
            ],
        }


def mask_report(examples: Examples, batches: int = 50) -> MaskReport:
    """Count over the first batches."""
    counts: Counter[str] = Counter()
    for number in range(batches):
        _count(counts, examples, number)
    return MaskReport(batches, counts["examples"], counts["tokens"], tuple(_checks(counts, examples)))


def _checks(counts: Counter[str], examples: Examples) -> list[Check]:
    masking, pairs = examples.settings.masking, examples.settings.pairs
    # A random token is now and then the one that stood there, and then looks as if it had been left.
    equal = masking.random / len(examples.vocabulary.ordinary)
    chosen = counts["chosen"]
    # Words and spans are chosen whole, so fewer choices are made than there are tokens.
    run = counts["run lengths"] / chosen if chosen and masking.unit != "token" else 1.0
    note = f"the interval allows for choices of {run:.1f} tokens" if run > 1 else ""
    found = [
        _share("chosen, of ordinary tokens", chosen, counts["ordinary"], masking.rate, run, note),
        _share("of the chosen: masked", counts["masked"], chosen, masking.mask),
        _share("of the chosen: another token", counts["replaced"], chosen, masking.random - equal),
        _share("of the chosen: as it was", counts["kept"], chosen, masking.keep + equal),
        _share("special tokens chosen, or put in", counts["special"], chosen, 0.0),
        _share("changed but not asked about", counts["changed"], counts["tokens"], 0.0),
    ]
    if masking.unit != "token":
        found.append(_share("words chosen in part", counts["split words"], counts["words"], 0.0))
    if pairs.objective != "none":
        name = "pairs that do not follow" if pairs.objective == "nsp" else "pairs that are swapped"
        found.append(_share(name, counts["unrelated"], counts["examples"], pairs.unrelated))
    found.append(_share("examples to be short", counts["short"], counts["examples"], pairs.short))
    return found


def _share(name: str, count: int, total: int, expected: float, run: float = 1.0, note: str = "") -> Check:
    """A share of `total` things that are drawn one by one, or in runs of some length."""
    from scipy.stats import binom

    if not total:
        return Check(name, 0.0, expected, 0.0, 1.0, "nothing to count")
    draws = max(1, round(total / run))
    low, high = binom.interval(CONFIDENCE, draws, min(1.0, max(0.0, expected)))
    return Check(name, count / total, expected, float(low) / draws, float(high) / draws, note)


def _count(counts: Counter[str], examples: Examples, number: int) -> None:
    batch, (ids, words) = examples[number], _text(examples, number)
    special = sorted(examples.special.all)
    rows = batch.masked_rows.numpy()
    seen = batch.batch.ids.numpy()
    chosen = np.zeros(len(ids), dtype=np.bool_)
    chosen[rows] = True
    before, now = ids[rows], seen[rows]
    masked = now == examples.special.mask_id
    ordinary = ~np.isin(ids, special)
    counts["examples"] += len(batch.batch)
    counts["tokens"] += len(ids)
    counts["ordinary"] += int(ordinary.sum())
    counts["chosen"] += len(rows)
    counts["masked"] += int(masked.sum())
    counts["kept"] += int((now == before).sum())
    counts["replaced"] += int((~masked & (now != before)).sum())
    counts["special"] += int(np.isin(before, special).sum() + np.isin(now[~masked], special).sum())
    counts["changed"] += int((seen != ids)[~chosen].sum() + (batch.targets.numpy() != before).sum())
    counts["run lengths"] += int((_lengths_of_runs(chosen) ** 2).sum())
    # A text may begin in the middle of a word; special tokens are words of their own.
    _count_words(counts, chosen, words | ~ordinary | np.roll(~ordinary, 1))
    _count_pairs(counts, batch, examples, number)


def _count_words(counts: Counter[str], chosen: Flags, starts: Flags) -> None:
    begins = np.flatnonzero(starts)
    sizes = np.diff(np.append(begins, len(starts)))
    hidden = np.add.reduceat(chosen, begins, dtype=np.int64)
    counts["words"] += len(begins)
    counts["split words"] += int(((hidden > 0) & (hidden < sizes)).sum())


def _count_pairs(counts: Counter[str], batch: PretrainBatch, examples: Examples, number: int) -> None:
    if batch.pair_labels is not None:
        counts["unrelated"] += int(batch.pair_labels.sum())
    counts["short"] += sum(example.short for example in examples.examples(number))


def _text(examples: Examples, number: int) -> tuple[Ids, Flags]:
    """The tokens of a batch with nothing hidden, as the corpus has them, and where words begin."""
    frame = np.ones(1, dtype=np.bool_)
    ids: list[Sequence[int] | Ids] = []
    words: list[Flags] = []
    for example in examples.examples(number):
        ids.append([examples.special.cls_id])
        words.append(frame)
        for text in (example.first, example.second):
            if text is not None:
                tokens, starts = examples.corpus.stretch(*text)
                ids += [tokens.astype(np.int64), [examples.special.sep_id]]
                words += [starts, frame]
    return np.concatenate(ids), np.concatenate(words)


def _lengths_of_runs(chosen: Flags) -> Ids:
    """How many chosen tokens stand side by side, for each such run."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], chosen.astype(np.int8), [0]))))
    return edges[1::2] - edges[::2]
