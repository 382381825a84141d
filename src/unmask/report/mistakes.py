"""Which mistakes a report shows, and what it says of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unmask.data.examples import Entity
from unmask.report.letters import language, visible
from unmask.report.numbers import numbers_of, percent
from unmask.report.outcome import Evaluation, Outcome, QuestionOutcome, TaggedOutcome, TextOutcome

MOST = 20
_EXCERPT = 360  # characters of a text
_AROUND = 80  # characters before and after a wrong stretch
_LABEL = 80  # characters of a label or an answer


@dataclass(frozen=True)
class Piece:
    """A part of a text, plain or marked."""

    text: str
    #: `good` and `bad` are stretches that were found rightly and not; empty is plain text.
    style: str = ""
    label: str = ""


@dataclass(frozen=True)
class Passage:
    """A text as it is shown, with a name such as `text` or `question`."""

    name: str
    pieces: tuple[Piece, ...]

    @property
    def language(self) -> str:
        """What to tell the browser, which has other shapes for Chinese than for Japanese characters."""
        return language("".join(piece.text for piece in self.pieces))


@dataclass(frozen=True)
class Mistake:
    """One wrong example, ready to be shown."""

    #: Its line in the file, or what it is called there.
    where: str
    passages: tuple[Passage, ...]
    gold: str
    predicted: str
    confidence: float | None
    #: The likeliest labels, as `label 63 %`.
    likely: tuple[str, ...]
    tokens: int
    coverage: float
    #: What went wrong, for the kinds of task where gold and predicted do not say it all.
    remark: str = ""


def wrong(outcome: Outcome) -> bool:
    """Whether an example counts as a mistake; numbers always do, a little."""
    if isinstance(outcome, QuestionOutcome):
        return outcome.f1 <= 0  # half an answer is no mistake to start with
    return not outcome.right


def worst_mistakes(evaluation: Evaluation) -> list[Mistake]:
    """The mistakes that the model was surest of; for numbers, the largest."""
    found = [outcome for outcome in evaluation.outcomes if wrong(outcome)]
    sure = any(isinstance(outcome, TaggedOutcome) and outcome.confidences for outcome in evaluation.outcomes)
    found.sort(key=lambda outcome: (-_weight(outcome, sure), outcome.line))
    return [_shown(outcome) for outcome in found[:MOST]]


def _weight(outcome: Outcome, sure: bool) -> float:
    """How bad a mistake is; of stretches, where the model is never `sure`, by how many are wrong."""
    match outcome:
        case TaggedOutcome():
            worst = _surest(outcome)
            return (worst[0] if worst else 0.0) if sure else float(len(set(outcome.gold) ^ set(outcome.predicted)))
        case TextOutcome(gold=float() | int()):
            gold_number, said = numbers_of(outcome)
            return abs(gold_number - said) if said == said else float("inf")
        case _:
            return outcome.confidence or 0.0


def _shown(outcome: Outcome) -> Mistake:
    match outcome:
        case TaggedOutcome():
            return _tagged(outcome)
        case QuestionOutcome():
            answers = _listed(outcome.answers) or "no answer"
            passages = (
                Passage("question", _plain(outcome.question)),
                Passage("context", _around(outcome.context, (*outcome.answers, outcome.predicted))),
            )
            said = visible(outcome.predicted[:_LABEL]) or "no answer"
            return _mistake(outcome, passages, (answers, said), outcome.confidence)
    both = (("text", outcome.text), ("pair", outcome.pair))
    texts = tuple(Passage(name, _plain(text)) for name, text in both if text is not None)
    likely = tuple(f"{visible(label[:_LABEL])} {percent(share)}" for label, share in outcome.likely)
    return _mistake(outcome, texts, (_said(outcome.gold), _said(outcome.predicted)), outcome.confidence, likely)


def _mistake(
    outcome: Outcome,
    passages: tuple[Passage, ...],
    said: tuple[str, str],
    confidence: float | None,
    likely: tuple[str, ...] = (),
    remark: str = "",
) -> Mistake:
    tokens, coverage = outcome.tokens, outcome.coverage
    named = visible(outcome.id[:_LABEL]) if isinstance(outcome, QuestionOutcome) else ""
    where = f"line\u00a0{outcome.line:,}" if outcome.line else named
    return Mistake(where, passages, *said, confidence, likely, tokens, coverage, remark)


def _tagged(outcome: TaggedOutcome) -> Mistake:
    gold, predicted = set(outcome.gold), set(outcome.predicted)
    missed, invented = sorted(gold - predicted), sorted(predicted - gold)
    worst = _surest(outcome)
    chosen = worst[1] if worst else min((*missed, *invented))
    start = max(0, chosen.start - _AROUND)
    end = min(max(chosen.end + _AROUND, start + 2 * _AROUND), start + 2 * _EXCERPT)
    passages = tuple(
        Passage(name, _marked(outcome.text, entities, gold & predicted, (start, end)))
        for name, entities in (("in the file", outcome.gold), ("said by the model", outcome.predicted))
    )
    remark = f"{len(missed)} missed, {len(invented)} wrongly found"
    return _mistake(outcome, passages, ("", ""), worst[0] if worst else None, remark=remark)


def _surest(outcome: TaggedOutcome) -> tuple[float, Entity] | None:
    """The wrong stretch that the model was surest of, after its confidence."""
    gold = set(outcome.gold)
    pairs = zip(outcome.predicted, outcome.confidences, strict=False)
    return max(((confidence, entity) for entity, confidence in pairs if entity not in gold), default=None)


def _marked(text: str, entities: Iterable[Entity], right: set[Entity], window: tuple[int, int]) -> tuple[Piece, ...]:
    """A part of a text with its stretches marked; one that begins inside another is left out."""
    start, end = window
    pieces = [Piece("…")] if start else []
    at = start
    for entity in sorted(entities):
        if entity.start < at or entity.end > min(end, len(text)) or entity.end <= entity.start:
            continue
        pieces.append(Piece(visible(text[at : entity.start])))
        style = "good" if entity in right else "bad"
        pieces.append(Piece(visible(text[entity.start : entity.end]), style, visible(entity.type[:_LABEL])))
        at = entity.end
    pieces.append(Piece(visible(text[at:end]) + ("…" if end < len(text) else "")))
    return tuple(piece for piece in pieces if piece.text)


def _around(context: str, answers: Sequence[str]) -> tuple[Piece, ...]:
    """The part of a context where the first of the answers stands."""
    places = [place for answer in answers if answer and (place := context.find(answer)) >= 0]
    start = max(0, min(places, default=0) - 120)
    pieces = _plain(context[start:])
    return (Piece("…"), *pieces) if start else pieces


def _plain(text: str) -> tuple[Piece, ...]:
    left = len(text) - _EXCERPT
    if left <= 0:
        return (Piece(visible(text)),)
    return (Piece(visible(text[:_EXCERPT]) + "…"), Piece(f" {left:,} more characters", "more"))


def _said(value: str | tuple[str, ...] | float | None) -> str:
    if isinstance(value, tuple):
        return _listed(value) or "no label"
    if isinstance(value, float | int):
        return f"{value:.4g}"
    return visible(str(value)[:_LABEL]) if value is not None else "–"


def _listed(values: Sequence[str]) -> str:
    few = ", ".join(visible(value[:_LABEL]) for value in values[:6])
    return few + (f" and {len(values) - 6} more" if len(values) > 6 else "")
