"""Questions that are asked of English and French pairs: small models on made-up pairs, and every verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from unmask.errors import FetchError
from unmask.lab.catalogue import entry_of, parts_of
from unmask.lab.draw import draw
from unmask.lab.entry import Conclusion, Plan, Record, Verdict
from unmask.lab.kit import french as kit
from unmask.lab.kit.effects import named
from unmask.lab.questions import positions_learned, vs_seq2seq
from unmask.models.bert import num_parameters
from unmask.models.init import build_model

SUPPORTED, NOT, DEPENDS, HIDDEN = Verdict.SUPPORTED, Verdict.NOT_SUPPORTED, Verdict.DEPENDS, Verdict.NOT_VISIBLE
#: Differences over three seeds: surely above zero, surely below, neither; and surely next to nothing.
UP, DOWN, ZERO, NOTHING = (3.0, 3.1, 3.2), (-3.0, -3.1, -3.2), (-3.0, 0.0, 3.0), (0.001, 0.0, -0.001)
Values = tuple[float, ...]
WORDS = {"one": "un", "two": "deux", "red": "rouge", "blue": "bleu", "cat": "chat", "dog": "chien", "eats": "mange"}


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[kit.French]:
    """Sentences of a few words, translated word by word."""
    rng = np.random.default_rng(0)
    drawn = [rng.choice(list(WORDS), rng.integers(1, 15)).tolist() for _ in range(600)]
    (tmp_path / "pairs.en").write_text("".join(" ".join(one) + "\n" for one in drawn))
    (tmp_path / "pairs.fr").write_text("".join(" ".join(WORDS[word] for word in one) + "\n" for one in drawn))
    monkeypatch.setattr(kit, "fetch", lambda _: tmp_path)
    monkeypatch.setattr(kit, "HELD_OUT", 150)
    monkeypatch.setattr(kit, "UPDATE", 256)
    kit.french.cache_clear()
    yield kit.french()
    kit.french.cache_clear()


def checked(conclusion: Conclusion) -> Conclusion:
    assert len(conclusion.says.en) > 80
    assert len(conclusion.says.zh) > 40
    assert not any("nan" in text for text in conclusion.says)
    for picture in conclusion.pictures:
        assert "<svg" in draw(picture, "en")
        assert "<svg" in draw(picture, "zh")
    if conclusion.table is not None:
        assert all(len(row) == len(conclusion.table.columns) for row in conclusion.table.rows)
    return conclusion


def first_small(question: str) -> dict[str, Record]:
    """One small trial really run, its record under the names of all: every effect is then exactly zero."""
    trials = parts_of(entry_of(question))["translate"].trials(Plan("small", 3))
    record = trials[0].job()
    return {trial.name: record for trial in trials}


# the kit --------------------------------------------------------------------------------------------------------------


def test_held_out_sentences_are_not_learned_from(pairs: kit.French) -> None:
    assert len(pairs.asked) + len(pairs.learned) == 600
    tokenizer = pairs.languages.source
    learned = {tuple(pairs.learned.sources[number].tolist()) for number in range(len(pairs.learned))}
    asked = {tuple(tokenizer.encode(pair.source, special_tokens=False).ids) for pair in pairs.asked}
    assert not learned & asked
    lengths = [len(pair.source) for pair in pairs.asked]
    assert lengths != sorted(lengths)


def test_arms_have_equal_parameters() -> None:
    models = [build_model(kit.translator(arch).build(3000, 3000)) for arch in vs_seq2seq.ARCHES.values()]
    sizes = [num_parameters(model) for model in models]
    assert max(sizes) / min(sizes) < 1.03


def test_losses_and_shares_are_those_of_the_formula(pairs: kit.French) -> None:
    model, asked = kit.new_model(kit.translator("transformer"), 0).eval(), pairs.asked[:9]
    batch = kit.encoded(pairs.languages, asked).batch(range(9))
    with torch.no_grad():
        logits = model(batch.source, batch.target)
    assert kit.pairs_loss(model, asked) == pytest.approx(float(F.cross_entropy(logits, batch.labels)), rel=1e-5)
    assert kit.right_tokens(model, asked, size=4) == float((logits.argmax(-1) == batch.labels).double().mean())


def test_who_knows_frequencies_alone_has_their_entropy(pairs: kit.French) -> None:
    found = kit.single_tokens_loss(pairs.asked)
    words = [word for pair in pairs.asked for word in [*pair.target.split(), "end"]]
    counts = {word: words.count(word) for word in set(words)}
    entropy = -sum(count / len(words) * math.log(count / len(words)) for count in counts.values())
    assert entropy < found < entropy + 0.05, "a word is a token here, and both parts have words alike"


def test_a_translator_learns_and_the_same_seed_gives_the_same(pairs: kit.French) -> None:
    def run() -> tuple[list[float], float]:
        model = kit.new_model(kit.translator("transformer"), 0)
        return kit.taught(model, 30, 0), kit.pairs_loss(model, pairs.asked)

    losses, after = run()
    assert losses[-1] < losses[0] - 1
    assert after < kit.single_tokens_loss(pairs.asked) + 1
    assert run() == (losses, after)


@pytest.mark.slow
@pytest.mark.network
def test_the_real_pairs_are_enough() -> None:
    kit.french.cache_clear()
    try:
        found = kit.french()
    except FetchError as error:
        pytest.skip(f"eng-fra is not cached and cannot be fetched: {error}")
    assert found.languages.source.vocab_size == 3000
    for fewest, most in vs_seq2seq.LENGTHS.values():
        assert sum(fewest <= len(pair.source.split()) <= most for pair in found.asked) >= vs_seq2seq.TESTED
    for encoded in (found.learned, kit.encoded(found.languages, found.asked)):
        assert max(encoded.sources.lengths.max(), encoded.targets.lengths.max()) < 127


# vs-seq2seq -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "above", "verdict"),
    [
        (UP, UP, SUPPORTED),
        (DOWN, UP, NOT),
        (UP, DOWN, NOT),
        (UP, ZERO, DEPENDS),
        (ZERO, UP, DEPENDS),
        (ZERO, ZERO, HIDDEN),
    ],
)
def test_translations(more: Values, above: Values, verdict: Verdict) -> None:
    records = {}
    for seed in range(3):
        long = {"lstm": 10.0, "attention": 12 + more[seed], "transformer": 10 + above[seed]}
        for arm in vs_seq2seq.ARMS:
            short = {"lstm": 20.0, "attention": 22.0, "transformer": 25.0}[arm]
            bleu = {"bleu, short": short, "bleu, middle": 15.0, "bleu, long": long[arm]}
            rest = {f"{what}, {name}": 0.5 for what in ("words", "accuracy") for name in vs_seq2seq.LENGTHS}
            records[named(arm, seed)] = {**bleu, **rest, "seconds": 50.0, "parameters": 425_000}
    assert checked(vs_seq2seq.conclude_translate(records)).verdict == verdict


def test_a_small_trial_of_translating(pairs: kit.French) -> None:
    records = first_small("vs-seq2seq")
    assert records["lstm, seed 0"]["words, short"] <= 5 < 10 <= records["lstm, seed 0"]["words, long"]
    assert checked(vs_seq2seq.conclude_translate(records)).verdict == HIDDEN


def test_a_run_that_broke_off_translates_nothing(pairs: kit.French, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vs_seq2seq, "taught", lambda *_: [math.nan])
    record = vs_seq2seq.translate("transformer", 1, 4, 0)
    assert all(record[f"{what}, {name}"] == 0 for what in ("bleu", "accuracy") for name in vs_seq2seq.LENGTHS)


# positions-learned ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "last", "best", "verdict"),
    [
        (UP, NOTHING, 5.0, SUPPORTED),
        (UP, UP, 2.0, NOT),
        (DOWN, UP, 2.0, DEPENDS),
        (ZERO, ZERO, 5.0, HIDDEN),
        (UP, UP, 6.4, HIDDEN),
    ],
)
def test_positions_of_a_translator(first: Values, last: Values, best: float, verdict: Verdict) -> None:
    records = {}
    for arm in positions_learned.PAIR:
        for seed in range(3):
            by = (first[seed], last[seed]) if arm == "random table" else (0.0, 0.0)
            losses = {"loss_0": 6 + by[0], "loss_1": 6.0, "loss_2": best + by[1]}
            records[named(arm, seed)] = {**losses, "moments": [75, 150, 300], "frequencies": 6.45}
    found = checked(positions_learned.conclude_translate(records))
    assert found.verdict == verdict
    assert "starts as sinusoids" not in found.says.en


def test_a_small_trial_of_positions(pairs: kit.French) -> None:
    records = first_small("positions-learned")
    record = records["random table, seed 0"]
    assert record["moments"] == [1, 2, 4]
    assert record["loss_0"] > record["loss_2"]
    assert checked(positions_learned.conclude_translate(records)).verdict in (SUPPORTED, HIDDEN)


def test_only_the_table_differs(pairs: kit.French) -> None:
    kinds = {"random table": "learned", "fixed": "sinusoidal"}
    names = {}
    for arm, kind in kinds.items():
        model = kit.new_model(kit.translator("transformer", {"positions": {"kind": kind}}), 0)
        names[arm] = {name for name, _ in model.named_parameters()}
    more = names["random table"] - names["fixed"]
    assert names["fixed"] <= names["random table"]
    assert more == {f"{side}_embeddings.positions.table.weight" for side in ("source", "target")}


def test_a_run_that_broke_off_stays_where_it_was() -> None:
    losses = iter([7.0, math.nan])
    watched = positions_learned.Watched(8, lambda: next(losses))
    for number in range(3):
        watched.before(number)
    assert watched.ended() == {"loss_0": 7.0, "loss_1": 20.0, "loss_2": 20.0, "moments": [2, 4, 8]}
