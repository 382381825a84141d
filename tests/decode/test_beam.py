"""Beam search over a toy whose every probability is known: against all sequences there are, and a slow search."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from unmask.decode.hypothesis import Hypothesis, best_possible, length_divisor, score
from unmask.decode.search import decode
from unmask.decode.sentence import Sentence
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import TargetIds
from unmask.errors import DataError, TaskError
from unmask.nn.batch import Batch

START, END, UNKNOWN = 0, 1, 2
IDS = TargetIds(START, END, UNKNOWN)
SOURCES = [[3], [5, 4], [], [3, 3, 3], [9, 8, 7, 6, 5], [4]]


@dataclass
class ToyState:
    """The whole past of each row, in plain lists."""

    sources: list[list[int]]
    rows: list[list[int]]

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> ToyState:
        kept = self.sources if sources is None else [self.sources[number] for number in sources.tolist()]
        return ToyState(kept, [self.rows[row] for row in rows.tolist()])


class Toy:
    """The next token depends, at random but for ever the same, on the source and on all tokens before."""

    def __init__(self, seed: int, vocab_size: int = 4, *, whole: bool = False, limit: int | None = None) -> None:
        self.seed, self.vocab_size, self.whole, self.target_limit = seed, vocab_size, whole, limit
        self.steps = 0
        self.logits = cache(self._logits)

    def log_probs(self, source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        logits = self.logits(source, history)
        return logits - logits.exp().sum().log()  # where tokens tie, log_softmax may break it in the last bit

    def _logits(self, source: tuple[int, ...], history: tuple[int, ...]) -> Tensor:
        draw = random.Random(f"{self.seed} {source} {history}")
        # Whole numbers make many ties.
        logits = [float(draw.randint(0, 1)) if self.whole else draw.gauss(0, 1.5) for _ in range(self.vocab_size)]
        return torch.tensor(logits, dtype=torch.float64)

    def encode(self, source: Batch) -> list[list[int]]:
        return [ids.tolist() for ids in source.layout.split(source.ids)]

    def start(self, memory: list[list[int]]) -> ToyState:
        return ToyState(memory, [[] for _ in memory])

    def step(self, ids: Tensor, state: ToyState) -> tuple[Tensor, ToyState]:
        return self.step_some(ids, state, None)

    def step_some(self, ids: Tensor, state: ToyState, some: Tensor | None) -> tuple[Tensor, ToyState]:
        wanted = range(len(ids)) if some is None else some.tolist()
        self.steps += len(wanted)
        rows = [[*row, token] for row, token in zip(state.rows, ids.tolist(), strict=True)]
        width = len(rows) // len(state.sources)
        assert width * len(state.sources) == len(rows)
        assert len(wanted) >= 16
        found = [self.logits(tuple(state.sources[n // width]), tuple(rows[n][1:])) for n in wanted]
        assert all(row[0] == START for row in rows)
        return torch.stack(found), ToyState(state.sources, rows)


def every_output(toy: Toy, source: list[int], settings: DecodeSettings) -> list[Hypothesis]:
    """All finished sequences, ranked by formulas written anew."""
    found = []
    tokens = [token for token in range(toy.vocab_size) if token != END]
    for length in range(settings.min_length, settings.max_length):
        for ids in itertools.product(tokens, repeat=length):
            total = sum(float(toy.log_probs(tuple(source), ids[:t])[ids[t]]) for t in range(length))
            total += float(toy.log_probs(tuple(source), ids)[END])
            base = (6 + length) / 6 if settings.length_formula == "gnmt" else length + 1
            found.append(Hypothesis(list(ids), total, total / base**settings.length_penalty))
    return sorted(found, key=lambda one: (-one.score, one.ids))


def slow(toy: Toy, source: list[int], settings: DecodeSettings) -> list[Hypothesis]:
    """Beam search as one would explain it, one sentence and one token at a time, always to the very end."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    found = []
    for _ in range(settings.limit(len(source))):
        candidates = []
        for place, (total, ids) in enumerate(beams):
            for token, value in enumerate(toy.log_probs(tuple(source), tuple(ids)).tolist()):
                if token != END or len(ids) >= settings.min_length:
                    candidates.append((-(total + value), place, token))
        following = []
        for total, place, token in sorted(candidates)[: settings.beam]:
            ids = beams[place][1]
            if token == END:
                found.append(Hypothesis(ids, -total, score(-total, len(ids) + 1, settings)))
            else:
                following.append((-total, [*ids, token]))
        beams = following
    found += [Hypothesis(ids, total, score(total, len(ids), settings), finished=False) for total, ids in beams]
    return sorted(found, key=lambda one: one.rank)[: settings.num_best]


def same(found: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> None:
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert [one.finished for one in found] == [one.finished for one in expected]
    for name in ("score", "log_probability"):
        mine, theirs = [getattr(one, name) for one in found], [getattr(one, name) for one in expected]
        assert mine == pytest.approx(theirs, abs=1e-9)


PENALTIES = [("gnmt", 0.0), ("gnmt", 0.6), ("gnmt", 2.0), ("plain", 0.5), ("plain", 1.0), ("plain", 3.0)]


@pytest.mark.parametrize(("formula", "alpha"), PENALTIES)
def test_a_wide_beam_finds_the_best_of_all_sequences(formula: str, alpha: float) -> None:
    settings = DecodeSettings(
        beam=120, num_best=7, max_length=5, max_ratio=None, length_formula=formula, length_penalty=alpha
    )
    for seed in range(4):
        toy = Toy(seed)
        for source, found in zip(SOURCES, decode(toy, SOURCES, IDS, settings), strict=True):
            if source:
                same(found, every_output(toy, source, settings)[:7])


def test_penalties_prefer_different_outputs() -> None:
    """Or the test above would say little."""
    best = set()
    for formula, alpha in PENALTIES:
        settings = DecodeSettings(beam=120, max_length=5, max_ratio=None, length_formula=formula, length_penalty=alpha)
        best.add(str([found[0].ids for found in decode(Toy(1), SOURCES, IDS, settings)]))
    assert len(best) > 3


@given(
    seed=st.integers(0, 10**6),
    beam=st.integers(1, 6),
    penalty=st.sampled_from(PENALTIES),
    limits=st.sampled_from([(0, 1), (0, 4), (2, 7), (3, 4)]),
    vocab_size=st.integers(3, 6),
    whole=st.booleans(),
)
@examples(max_examples=60, deadline=None)
def test_equals_a_slow_search_that_never_stops_early(
    seed: int, beam: int, penalty: tuple[str, float], limits: tuple[int, int], vocab_size: int, whole: bool
) -> None:
    formula, alpha = penalty
    settings = DecodeSettings(
        beam=beam,
        num_best=min(beam, 1 + seed % 3),
        length_formula=formula,
        length_penalty=alpha,
        min_length=limits[0],
        max_length=limits[1],
        max_ratio=None if seed % 2 else 0.5,
        max_extra=5,
    )
    toy = Toy(seed, vocab_size, whole=whole)
    for source, found in zip(SOURCES, decode(toy, SOURCES, IDS, settings, batch_size=4), strict=True):
        if source:
            same(found, slow(toy, source, settings))


@pytest.mark.parametrize(("formula", "alpha"), PENALTIES)
def test_stopping_early_saves_steps_and_loses_nothing(
    formula: str, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DecodeSettings(
        beam=3, num_best=2, max_length=12, max_ratio=None, length_formula=formula, length_penalty=alpha
    )
    sources = [[number, 3] for number in range(30)]
    early, late = Toy(7, 5), Toy(7, 5)
    found = decode(early, sources, IDS, settings)
    monkeypatch.setattr(Sentence, "to_beat", lambda *_: -math.inf)
    for one, two in zip(found, decode(late, sources, IDS, settings), strict=True):
        same(one, two)
    assert early.steps < late.steps or (formula, alpha) == ("plain", 3.0)


@given(
    log_probability=st.floats(-50, 0),
    more=st.lists(st.floats(-5, 0), max_size=6),
    length=st.integers(1, 9),
    penalty=st.sampled_from(PENALTIES),
)
def test_nothing_beats_what_is_possible(
    log_probability: float, more: list[float], length: int, penalty: tuple[str, float]
) -> None:
    settings = DecodeSettings(length_formula=penalty[0], length_penalty=penalty[1])
    bound = best_possible(log_probability, length + 6, settings)
    final = score(log_probability + math.fsum(more), length + len(more), settings)
    assert final <= bound + 1e-12
    # And the bound is reached where every further token is certain.
    assert score(log_probability, length + 6, settings) == bound
    assert length_divisor(length, settings) <= length_divisor(length + 1, settings)


def test_a_beam_of_one_is_greedy() -> None:
    settings = DecodeSettings(beam=1, max_length=9, max_ratio=None)
    for seed in range(10):
        toy = Toy(seed)
        for source, (found,) in zip(SOURCES, decode(toy, SOURCES, IDS, settings), strict=True):
            ids: list[int] = []
            while source and len(ids) < 9:
                best = int(toy.log_probs(tuple(source), tuple(ids)).argmax())
                if best == END:
                    break
                ids.append(best)
            assert found.ids == ids
            assert found.finished == (len(ids) < 9)


def test_lengths_are_kept() -> None:
    toy = Toy(3)
    for low, high, ratio in [(0, 1, None), (4, 5, None), (0, 50, 1.0), (6, 50, 0.0)]:
        settings = DecodeSettings(beam=4, num_best=4, min_length=low, max_length=high, max_ratio=ratio, max_extra=3)
        for source, found in zip(SOURCES, decode(toy, SOURCES, IDS, settings), strict=True):
            limit = high if ratio is None else min(high, max(int(ratio * len(source)) + 3, low + 1))
            for one in found if source else []:
                assert len(one.ids) + one.finished <= limit
                assert len(one.ids) >= low or not one.finished
    steps = [len(one.ids) for (one,) in decode(Toy(3, limit=2), [[3]] * 3, IDS, DecodeSettings(beam=1, min_length=9))]
    assert steps == [2, 2, 2]  # the model can do no more


def test_finished_outputs_come_before_those_cut_off() -> None:
    found = decode(Toy(5), SOURCES, IDS, DecodeSettings(beam=5, num_best=5, max_length=4, max_ratio=None))
    assert {one.finished for outputs in found for one in outputs} == {True, False}
    for outputs in found:
        assert outputs == sorted(outputs, key=lambda one: one.rank)


def test_all_finish_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Toy(0)
    certain = torch.tensor([-100.0, 0.0, -100.0, -100.0])
    monkeypatch.setattr(toy, "logits", lambda source, history: certain)
    found = decode(toy, SOURCES, IDS, DecodeSettings(beam=3))
    assert [outputs[0].ids for outputs in found] == [[]] * 6
    assert toy.steps == 16  # one step, filled up to sixteen rows


def test_an_empty_source_has_an_empty_output_and_nothing_else_may() -> None:
    found = decode(Toy(0), [[], []], IDS, DecodeSettings(), prefixes=[[], [3]])
    assert [[one.ids for one in outputs] for outputs in found] == [[[]], [[3]]]
    assert decode(Toy(0), [], IDS) == []


def test_prefixes_are_kept_and_their_probability_counts() -> None:
    toy, settings = Toy(2), DecodeSettings(beam=200, num_best=3, max_length=5, max_ratio=None)
    prefixes = [[3, 3], [], [], [2], [0, 3, 2], [END + 1]]
    for source, prefix, found in zip(
        SOURCES, prefixes, decode(toy, SOURCES, IDS, settings, prefixes=prefixes), strict=True
    ):
        if source:
            fitting = [one for one in every_output(toy, source, settings) if one.ids[: len(prefix)] == prefix]
            same(found, fitting[: len(found)])


def test_wrong_prefixes_are_refused_with_their_number() -> None:
    with pytest.raises(DataError, match="prefix of sentence 2 .* 4 tokens.* limit of 4"):
        decode(Toy(0), [[3], [4]], IDS, DecodeSettings(max_length=4), prefixes=[[3], [3, 3, 3, 3]])
    with pytest.raises(DataError, match="prefix of sentence 1 contains the end token 1"):
        decode(Toy(0), [[3]], IDS, prefixes=[[3, 1]])
    with pytest.raises(ValueError, match="2 sources but 1 prefixes"):
        decode(Toy(0), [[3], [4]], IDS, prefixes=[[3]])


def test_a_short_limit_by_the_source_makes_room_for_a_long_prefix() -> None:
    settings = DecodeSettings(beam=2, max_ratio=0.0, max_extra=2)
    (found,) = decode(Toy(4), [[3]], IDS, settings, prefixes=[[3, 2, 3, 2, 3]])
    assert found[0].ids[:5] == [3, 2, 3, 2, 3]
    assert len(found[0].ids) <= 6


def test_forbidden_tokens_never_come() -> None:
    toy, settings = Toy(6), DecodeSettings(beam=4, num_best=4, max_length=8)
    wild = decode(toy, SOURCES, IDS, settings)
    assert any(UNKNOWN in one.ids and START in one.ids for outputs in wild for one in outputs)
    ids = TargetIds(START, END, UNKNOWN, never=(START,))
    tame = decode(toy, SOURCES, ids, settings.replace(forbid_unknown=True))
    assert {token for outputs in tame for one in outputs for token in one.ids} <= {3}
    assert not any(START in one.ids for outputs in decode(toy, SOURCES, ids, settings) for one in outputs)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_tokens_in_a_row_come_twice(size: int) -> None:
    settings = DecodeSettings(beam=3, num_best=3, min_length=11, max_length=14, max_ratio=None)
    for seed in range(5):
        toy = Toy(seed, 5)
        for blocked in (False, True):
            chosen = settings.replace(no_repeat_ngram=size if blocked else None)
            pieces = [
                list(zip(*(one.ids[shift:] for shift in range(size)), strict=False))
                for outputs in decode(toy, SOURCES, IDS, chosen)
                for one in outputs
            ]
            assert any(len(set(found)) < len(found) for found in pieces) != blocked


def test_where_no_token_is_allowed_the_output_is_cut() -> None:
    settings = DecodeSettings(beam=2, min_length=9, max_length=14, no_repeat_ngram=1)
    (found,) = decode(Toy(0), [[3]], IDS, settings)
    assert sorted(found[0].ids) == [0, 2, 3]
    assert not found[0].finished


def test_no_numbers_are_an_error() -> None:
    toy = Toy(0)
    toy.logits = lambda source, history: torch.full((4,), math.nan)
    for beam in (1, 3):
        with pytest.raises(TaskError, match="not a number"):
            decode(toy, [[3]], IDS, DecodeSettings(beam=beam))
