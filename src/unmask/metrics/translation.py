"""Translations against references: BLEU and chrF as sacrebleu computes and signs them.

They are points from 0 to 100, not shares as elsewhere in this room: a signature promises the number that everyone with
sacrebleu gets. The interval and the comparison draw whole sentences: BLEU is made of sums over them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, zip_longest
from typing import Any, Literal, get_args

import numpy as np

from unmask.errors import DataError, SettingsError
from unmask.metrics.compare import Comparison, paired_test
from unmask.metrics.intervals import Interval, bootstrap_sums
from unmask.metrics.scores import Floats

Tokenize = Literal["auto", "13a", "zh", "char", "intl", "none"]
"""How BLEU cuts texts into words; none takes them as they are, cut at spaces. Those that fetch a model are left out."""
References = Sequence[str] | Sequence[Sequence[str]]
"""One for each hypothesis, or several for each: `references[i]` belongs to `hypotheses[i]`."""

LENGTH_EDGES = (10, 15, 20, 30, 40)
#: BLEU of fewer sentences moves by points when one of them changes.
_FEW = 50
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")


@dataclass(frozen=True)
class TranslationScores:
    """What is said of translations, with all that another needs to get the same."""

    n: int
    bleu: float
    #: Of BLEU, from samples of sentences drawn with replacement.
    bleu_interval: Interval
    bleu_signature: str
    chrf: float
    chrf_signature: str
    #: 1 where translations are at least as long as references; it is a factor of BLEU.
    brevity_penalty: float
    #: Words of the translations for each word of the references.
    length_ratio: float

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        low, high = self.bleu_interval.low, self.bleu_interval.high
        return (
            f"BLEU {self.bleu:.2f} ({self.bleu_interval.level:.0%} interval {low:.2f} to {high:.2f}, "
            f"{self.bleu_signature}), chrF {self.chrf:.2f} ({self.chrf_signature}), {self.n:,} sentences"
        )


@dataclass(frozen=True)
class LengthBucket:
    """The sentences whose source has at least `low` and fewer than `high` tokens."""

    low: int
    high: int | None  # None: without end
    scores: TranslationScores | None  # None where there are no such sentences

    @property
    def n(self) -> int:
        """How many sentences there are."""
        return 0 if self.scores is None else self.scores.n

    @property
    def small(self) -> bool:
        """Whether there are too few for a BLEU that means much."""
        return self.n < _FEW

    @property
    def name(self) -> str:
        """The lengths for readers: 10–14, 40+."""
        return f"{self.low}+" if self.high is None else f"{self.low}–{self.high - 1}"

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        scores = None if self.scores is None else self.scores.as_json()
        return {"low": self.low, "high": self.high, "n": self.n, "small": self.small, "scores": scores}


def score_translations(
    hypotheses: Sequence[str],
    references: References,
    *,
    tokenize: Tokenize = "auto",
    lowercase: bool = False,
    resamples: int = 1000,
    seed: int = 0,
) -> TranslationScores:
    """BLEU with its 95 % interval, and chrF.

    `tokenize="auto"` is zh where most references hold Chinese characters, else 13a; for Japanese say char. A hypothesis
    may be empty.
    """
    texts, lists = _checked(hypotheses, references)
    return _scored(texts, lists, BleuSums(word_splitter(lists, tokenize), lowercase), resamples, seed)


def by_source_length(
    source_lengths: Sequence[int],
    hypotheses: Sequence[str],
    references: References,
    edges: Sequence[int] = LENGTH_EDGES,
    *,
    tokenize: Tokenize = "auto",
    lowercase: bool = False,
) -> list[LengthBucket]:
    """The scores of sentences with short and with long sources; with edges 10 and 15 these are 0–9, 10–14 and 15+."""
    texts, lists = _checked(hypotheses, references)
    if len(source_lengths) != len(texts):
        raise DataError(f"there are {len(source_lengths):,} lengths of sources but {len(texts):,} translations")
    bounds = [0, *edges]
    if any(low >= high for low, high in pairwise(bounds)):
        raise SettingsError(f"edges rise from 1, such as 10, 15, 20; given {', '.join(map(str, edges))}")
    bleu = BleuSums(word_splitter(lists, tokenize), lowercase)
    places = np.searchsorted(np.asarray(edges), np.asarray(source_lengths), side="right")
    buckets = []
    for bucket, (low, high) in enumerate(zip_longest(bounds, bounds[1:])):
        chosen = np.flatnonzero(places == bucket).tolist()
        inside = [texts[number] for number in chosen], [lists[number] for number in chosen]
        buckets.append(LengthBucket(low, high, _scored(*inside, bleu, 1000, 0) if chosen else None))
    return buckets


def paired_bleu(
    a: Sequence[str],
    b: Sequence[str],
    references: References,
    *,
    tokenize: Tokenize = "auto",
    lowercase: bool = False,
    resamples: int = 10_000,
    names: tuple[str, str] = ("the first", "the second"),
) -> Comparison:
    """How many points of BLEU the first system has more than the second on the same sentences.

    The interval is that of a paired bootstrap, p that of swapping the two translations of a sentence at random.
    """
    first, lists = _checked(a, references)
    second, _ = _checked(b, references)
    bleu = BleuSums(word_splitter(lists, tokenize), lowercase)
    counts = bleu.counts(first, lists), bleu.counts(second, lists)
    return paired_test(*counts, bleu.of_sums, resamples=resamples, names=names)


class BleuSums:
    """BLEU from sums over sentences, for whoever gathers them in parts. `tokenize` is as `word_splitter` gives it."""

    def __init__(self, tokenize: str, lowercase: bool = False) -> None:
        from sacrebleu import BLEU  # late: it takes a tenth of a second

        # force: a warning about texts that look tokenized would be printed in the midst of ours.
        self.metric: Any = BLEU(tokenize=tokenize, lowercase=lowercase, force=True)

    def counts(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Floats:
        """What BLEU sums up, (n, 10): both lengths, then n-grams that are right and n-grams in all, of 1 to 4 words."""
        rows = []
        for text, several in zip(hypotheses, references, strict=True):
            found = self.metric.corpus_score([text], [[reference] for reference in several])
            rows.append([found.sys_len, found.ref_len, *found.counts, *found.totals])
        return np.array(rows, dtype=np.float64)

    def of_sums(self, sums: Floats) -> Floats:
        """BLEU of each row of (R, 10) sums."""
        compute, smooth = self.metric.compute_bleu, self.metric.smooth_method
        rows = np.rint(sums).astype(np.int64).tolist()
        found = [compute(row[2:6], row[6:], row[0], row[1], smooth).score for row in rows]
        return np.array(found, dtype=np.float64)


def word_splitter(references: References, tokenize: str = "auto") -> str:
    """The name of sacrebleu's tokenizer: the one that is asked for, or what `auto` means for these references."""
    if tokenize not in get_args(Tokenize):
        raise SettingsError(f"tokenize is {', '.join(get_args(Tokenize))}, given {tokenize!r}")
    if tokenize != "auto":
        return tokenize
    firsts = (several if isinstance(several, str) else several[0] for several in references)
    chinese = sum(_HAN.search(first) is not None for first in firsts)
    return "zh" if 2 * chinese > len(references) else "13a"


def _scored(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], bleu: BleuSums, resamples: int, seed: int
) -> TranslationScores:
    from sacrebleu import CHRF

    found = bootstrap_sums(bleu.counts(hypotheses, references), bleu.of_sums, resamples=resamples, seed=seed)
    # Sacrebleu wants the first reference of every sentence, then the second, with None where there is none.
    streams: Any = [list(stream) for stream in zip_longest(*references)]
    chrf = CHRF(lowercase=bleu.metric.lowercase)
    words, letters = bleu.metric.corpus_score(hypotheses, streams), chrf.corpus_score(hypotheses, streams)
    return TranslationScores(
        n=len(hypotheses),
        bleu=words.score,
        bleu_interval=Interval(words.score, found.low, found.high, found.level),
        bleu_signature=str(bleu.metric.get_signature()),
        chrf=letters.score,
        chrf_signature=str(chrf.get_signature()),
        brevity_penalty=words.bp,
        length_ratio=words.ratio,
    )


def _checked(hypotheses: Sequence[str], references: References) -> tuple[list[str], list[Sequence[str]]]:
    """Texts and a list of references for each; DataError where they are none, or do not belong together."""
    for texts, what in ((hypotheses, "translations"), (references, "references")):
        if isinstance(texts, str):
            raise DataError(f"{what} are a list of texts, given one text; put it into a list")
    if not len(hypotheses):
        raise DataError("there is nothing to score: there are no translations")
    if len(hypotheses) != len(references):
        raise DataError(
            f"there are {len(hypotheses):,} translations but references for {len(references):,}; "
            "the reference of each translation must stand at its place"
        )
    lists = [[several] if isinstance(several, str) else several for several in references]
    for number, (text, several) in enumerate(zip(hypotheses, lists, strict=True), 1):
        if not isinstance(text, str):
            raise DataError(f"translation {number} must be a text but is {text!r}")
        if not several or not all(isinstance(reference, str) for reference in several):
            raise DataError(f"translation {number} needs a reference, or several, that are texts; given {several!r}")
    return list(hypotheses), lists
