"""Words with two senses, in sentences; and how well a model's vectors tell the senses apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from unmask.bundle import Bundle
from unmask.models.fetch import fetch
from unmask.nn.record import record_attention

#: A character, and for each of its two senses the compounds that show it, as patterns: what else the same letters may
#: belong to (合肥市|长江路, 水仙花|了解) is left out.
CHINESE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "行": (("银行", "行业"), ("进行", "行动")),
    "长": (("部长", "市长(?![江宁春沙安治乐])"), ("长期", "长途")),
    "重": (("重要", "严重"), ("重新", "重建")),
    "花": (("鲜花", "花卉"), ("花钱", "(?<![仙昏礼开])花了(?!解)")),
    "会": (("会议", "大会"), ("不会", "也会")),
}
#: An English word, and six sentences for each of its senses.
ENGLISH: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bank": (
        (
            "She opened an account at the bank this morning.",
            "The bank refused to lend him the money.",
            "He works as a clerk in a small bank.",
            "Our bank charges a fee for every transfer.",
            "The bank closes at four on Fridays.",
            "They took out a mortgage from a foreign bank.",
        ),
        (
            "We sat on the bank of the river and watched the boats.",
            "The stream overflowed its bank after the storm.",
            "Willows grow along the muddy bank.",
            "He pulled the canoe up on the bank.",
            "An otter climbed the bank and shook itself dry.",
            "Children were fishing from the grassy bank.",
        ),
    ),
    "spring": (
        (
            "The garden is full of tulips in spring.",
            "Last spring it rained for three weeks.",
            "Birds return from the south every spring.",
            "The course begins in spring and ends in summer.",
            "It was the warmest spring on record.",
            "Farmers sow barley early in spring.",
        ),
        (
            "The mattress has a broken spring.",
            "A steel spring pushes the lid open.",
            "He replaced the rusty spring in the old clock.",
            "The spring stretches when a weight is hung on it.",
            "Each pen contains a tiny spring.",
            "The engineer measured how stiff the spring was.",
        ),
    ),
    "match": (
        (
            "They won the match by two goals.",
            "The match was delayed because of rain.",
            "She played a tennis match against her sister.",
            "Thousands of fans watched the match on television.",
            "The referee stopped the match after ten minutes.",
            "He was injured during the last match of the season.",
        ),
        (
            "He struck a match and lit the candle.",
            "She blew out the match before it burned her fingers.",
            "There was one match left in the box.",
            "A single match can start a forest fire.",
            "The match was damp and would not burn.",
            "He held the match to the dry twigs.",
        ),
    ),
    "light": (
        (
            "The light in the kitchen is still on.",
            "Bright light came through the window.",
            "Plants turn towards the light.",
            "The lamp gives a soft yellow light.",
            "A beam of light fell on the stage.",
            "The photographer waited for better light.",
        ),
        (
            "The suitcase was so light that a child could lift it.",
            "Aluminium is a light metal.",
            "She packed a light bag for the trip.",
            "The new bicycle is strong but light.",
            "He ate a light lunch and went back to work.",
            "A light jacket is enough for this weather.",
        ),
    ),
}
_LONGEST = 60  # characters of a sentence


@dataclass(frozen=True)
class Use:
    """A word in a sentence."""

    word: str
    sense: int
    compound: str
    sentence: str
    place: int  # of the word's first letter


def english() -> list[Use]:
    """All English sentences; each is its own surroundings."""
    return [
        Use(word, sense, sentence, sentence, _only(rf"\b{word}\b", sentence))
        for word, senses in ENGLISH.items()
        for sense, sentences in enumerate(senses)
        for sentence in sentences
    ]


def _only(pattern: str, sentence: str) -> int:
    (found,) = re.finditer(pattern, sentence)
    return found.start()


@cache
def chinese(most: int = 20) -> tuple[Use, ...]:
    """Newspaper sentences, at most so many a compound, spread over the whole text."""
    text = (fetch("people-daily") / "text.txt").read_text(encoding="utf-8")
    sentences = [one for one in re.split(r"(?<=[。！？；])|\n", text) if one and 6 <= len(one) <= _LONGEST]
    uses: list[Use] = []
    for word, senses in CHINESE.items():
        patterns = {pattern: sense for sense, compounds in enumerate(senses) for pattern in compounds}
        found: dict[str, list[Use]] = {pattern: [] for pattern in patterns}
        for sentence in sentences:
            for pattern, place in alone(word, tuple(patterns), sentence).items() if word in sentence else ():
                found[pattern].append(Use(word, patterns[pattern], pattern, sentence, place))
        for some in found.values():
            uses += some[:: max(1, len(some) // most)][:most]
    return tuple(uses)


def alone(word: str, patterns: Sequence[str], sentence: str) -> dict[str, int]:
    """Where each compound first has its character, unless that is in another compound too (银行业: 银行 and 行业)."""
    places = {
        pattern: [match.start() + match.group().index(word) for match in re.finditer(pattern, sentence)]
        for pattern in patterns
    }
    count = Counter(place for some in places.values() for place in some)
    own = {pattern: [place for place in some if count[place] == 1] for pattern, some in places.items()}
    return {pattern: some[0] for pattern, some in own.items() if some}


@torch.inference_mode()
def layers_of(bundle: Bundle, uses: Sequence[Use]) -> list[Tensor]:
    """The vector of each use (U, H) as embedded, and after each layer; the mean where a word has several tokens."""
    found: list[list[Tensor]] = []
    for use in uses:
        offsets = bundle.tokenizer.encode(use.sentence).offsets
        end = use.place + len(use.word)
        own = [number for number, (first, last) in enumerate(offsets) if first < end and last > use.place]
        batch = bundle.batch([use.sentence])
        with record_attention(bundle.model) as trace:
            bundle.encoder(batch)
        states = [bundle.encoder.embeddings(batch), *(states[0] for states in trace.hidden.values())]
        found.append([state[own].mean(0).double() for state in states])
    return [torch.stack([states[layer] for states in found]) for layer in range(len(found[0]))]


def distances(vectors: Tensor) -> Tensor:
    """(U, U) cosine distances, as half the squared distance of unit vectors: exactly 0 for a vector and itself."""
    unit = vectors / vectors.norm(dim=-1, keepdim=True)
    return (unit[:, None] - unit[None]).square().sum(-1) / 2


def separation(apart: Tensor, uses: Sequence[Use], same: Callable[[Use, Use], bool]) -> float:
    """The probability that a pair of the same sense lies closer than one of different senses (AUC); a tie counts half.

    `same` says which pairs count as of the same sense.
    """
    pairs = [(a, b) for a in range(len(uses)) for b in range(a)]
    near = [(a, b) for a, b in pairs if same(uses[a], uses[b])]
    other = [(a, b) for a, b in pairs if uses[a].sense != uses[b].sense]
    close, far = (apart[tuple(torch.tensor(some).T)] for some in (near, other))
    closer, tied = close[:, None] < far[None], close[:, None] == far[None]
    return float((closer.double() + tied.double() / 2).mean())


def same_sense(one: Use, other: Use) -> bool:
    """Whether two uses have one sense."""
    return one.sense == other.sense


def across_compounds(one: Use, other: Use) -> bool:
    """The same, and not just because the same letters stand beside the word."""
    return one.sense == other.sense and one.compound != other.compound
