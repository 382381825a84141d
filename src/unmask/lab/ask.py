"""Find the question that somebody means, in English or Chinese, by the words they share with it.

Words count the more, the fewer questions have them (inverse document frequency), and a question does not win by being
long (BM25). English words are cut to their stems; Chinese is read by characters and pairs of characters, so that no
dictionary is needed. Formulas count as words.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from unmask.lab.catalogue import entries
from unmask.lab.entry import Entry
from unmask.lab.words import Text

#: How much a word counts by where it stands.
_QUESTION, _WORDS, _CLAIM, _WHY = 5.0, 4.0, 1.0, 0.5
#: BM25's constants: how soon repeated words stop counting, and how much length is held against a question. Chosen on
#: 200 questions in people's own words; the choice hardly matters.
_SATURATION, _LENGTH = 8.0, 0.6
#: A pair of characters says more than each of them alone.
_SINGLE = 0.3

_PIECES = re.compile(r"[a-z][a-z0-9]*|\d+(?:\.\d+)?|[\u3400-\u9fff]+")
_FORMULAS = (
    (re.compile(r"√|\bsqrt\b|根号|平方根"), " sqrt 根号 "),
    (re.compile(r"d[_ ]?k\b|dk\b"), " dk "),
    (re.compile(r"\bw[_ ]?([qkv])\b"), r" w\1 \1 "),
    (re.compile(r"\[(cls|sep|mask|unk|pad)\]"), r" \1 \1token "),
    (re.compile(r"\b(layer|batch)[ -]?norm(?:ali[sz]\w*)?\b"), r" \1norm \1 norm "),
    (re.compile(r"o\(n\s*(?:\^?\s*2|²)"), " quadratic complexity 复杂度 "),
)
_SILENT = frozenset(
    """a an and are as at be been but by can could did do does for from get had has have how i if in into is it its just
    me my of on one or our so some such than that the their them then there these they this to us use used uses using
    was we were what when where which who why will with would you your about actually any anyone anything anyway each
    exactly explain happen happens instead kind like make makes mean means need needs not only other please really
    same should still tell thing things think too two up want whether work works s t m re don doesn isn didn""".split()  # noqa: SIM905
)
#: Endings and what stands in their place, the longest that fits first.
_ENDINGS = tuple(
    tuple(pair.split(">"))
    for pair in """ization>ize isation>ize ational>ate ations>ate ation>ate ating>ate ated>ate ising>ize izing>ize
    ised>ize ized>ize ise>ize ments>ment ness> ities>ity ies>y sses>ss ings> ing> edly> ed> ly> ers>er es> s>""".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Match:
    """A question that may be meant, and how well it fits."""

    entry: Entry
    score: float


def ask(text: str, count: int = 3) -> list[Match]:
    """The questions that fit a text best, best first; none if it shares no word with any."""
    index = _index()
    weights: dict[str, float] = {}
    for word, weight in _terms(text):
        weights[word] = max(weights.get(word, 0.0), weight)
    scores = [
        Match(entry, sum(weight * index.weight(word, entry.id) for word, weight in weights.items()))
        for entry in entries()
    ]
    return sorted((one for one in scores if one.score > 0), key=lambda one: -one.score)[:count]


class _Index:
    """How much each word says for each question."""

    def __init__(self, all_entries: Iterable[Entry]) -> None:
        self.counts: dict[str, dict[str, float]] = {entry.id: _counts(entry) for entry in all_entries}
        lengths = {name: sum(counts.values()) for name, counts in self.counts.items()}
        mean = sum(lengths.values()) / max(1, len(lengths))
        self.room = {name: 1 - _LENGTH + _LENGTH * length / mean for name, length in lengths.items()}
        having = Counter(word for counts in self.counts.values() for word in counts)
        total = len(self.counts)
        self.rarity = {word: math.log(1 + (total - n + 0.5) / (n + 0.5)) for word, n in having.items()}

    def weight(self, word: str, name: str) -> float:
        """What a word in a text says for a question."""
        count = self.counts[name].get(word, 0.0)
        if not count:
            return 0.0
        return self.rarity[word] * count * (_SATURATION + 1) / (count + _SATURATION * self.room[name])


@cache
def _index() -> _Index:
    return _Index(entries())


def _counts(entry: Entry) -> dict[str, float]:
    fields: Mapping[str | Text, float] = {
        entry.question: _QUESTION,
        " ; ".join(entry.words): _WORDS,
        entry.id.replace("-", " "): _WORDS,
        entry.claim: _CLAIM,
        entry.why: _WHY,
    }
    counts: dict[str, float] = {}
    for field, weight in fields.items():
        for text in [field] if isinstance(field, str) else field:
            for word, part in _terms(text):
                counts[word] = counts.get(word, 0.0) + weight * part
    return counts


def _terms(text: str) -> Iterable[tuple[str, float]]:
    """The words of a text and how much each says, by kind."""
    text = unicodedata.normalize("NFKC", text).casefold()
    for pattern, said in _FORMULAS:
        text = pattern.sub(said, text)
    for piece in _PIECES.findall(text):
        if piece[0] >= "\u3400":
            yield from ((character, _SINGLE) for character in piece)
            yield from ((piece[place : place + 2], 1.0) for place in range(len(piece) - 1))
        elif piece not in _SILENT:
            yield stem(piece), 1.0


def stem(word: str) -> str:
    """An English word without its endings, roughly: what is left need not be a word."""
    if len(word) <= 3:
        return word
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: len(word) - len(ending)] + instead
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls":
        word = word[:-1]
    return word.removesuffix("e")
