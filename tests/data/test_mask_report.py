from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from unmask.data import mask_report as module
from unmask.data import masking, pretraining
from unmask.data.corpus.build import build_corpus
from unmask.data.corpus.store import Corpus
from unmask.data.mask_report import MaskReport, mask_report
from unmask.data.masking import Masked, MaskingSettings
from unmask.data.pairs import PairSettings
from unmask.data.pretraining import Examples, ExampleSettings
from unmask.text import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder, draw = tmp_path_factory.mktemp("corpus"), Random(0)
    words = ["ab", "abcd", "a", "bbb", "cda", "我", "爱", "北京", "。", "龘"]  # the last is unknown
    documents = [
        "\n".join(" ".join(draw.choices(words, k=draw.randint(1, 20))) for _ in range(draw.randint(1, 12)))
        for _ in range(300)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    vocab = [*SPECIAL, *"abcd我爱北京。", *(f"##{letter}" for letter in "abcd")]
    return build_corpus([folder / "text.txt"], Tokenizer.from_vocab(vocab), folder / "corpus", workers=1)


def report(corpus: Corpus, batches: int = 30, **changes: Any) -> MaskReport:
    return mask_report(Examples(corpus, ExampleSettings(length=64).replace(**changes)), batches)


def shares(found: MaskReport) -> dict[str, tuple[float, bool]]:
    return {check.name.removeprefix("of the chosen: "): (check.found, check.ok) for check in found.checks}


@pytest.mark.parametrize("unit", ["token", "word", "span"])
@pytest.mark.parametrize("objective", ["nsp", "sop", "none"])
def test_all_is_well(corpus: Corpus, unit: str, objective: str) -> None:
    found = report(corpus, masking=MaskingSettings(unit=unit), pairs=PairSettings(objective=objective))
    assert found.ok, found.rows()
    names = shares(found)
    assert ("words chosen in part" in names) == (unit != "token")
    assert ("pairs that do not follow" in names) == (objective == "nsp")
    assert ("pairs that are swapped" in names) == (objective == "sop")
    assert names["special tokens chosen, or put in"] == (0.0, True)
    assert names["changed but not asked about"] == (0.0, True)
    # What looks like a kept token may be a random one: of 13 ordinary tokens that is often.
    other, kept = (next(c for c in found.checks if c.name.endswith(end)) for end in ("another token", "as it was"))
    assert other.expected == pytest.approx(0.1 * 12 / 13)
    assert kept.expected == pytest.approx(0.1 + 0.1 / 13)


def test_it_follows_the_settings(corpus: Corpus) -> None:
    settings = MaskingSettings(rate=0.3, mask=0.5, random=0.2, keep=0.3)
    found = report(corpus, masking=settings, pairs=PairSettings(unrelated=0.2, short=0.7))
    assert found.ok, found.rows()
    assert [round(check.expected, 4) for check in found.checks] == [0.3, 0.5, 0.1846, 0.3154, 0.0, 0.0, 0.2, 0.7]


def test_the_counts_are_those_of_the_batches(corpus: Corpus) -> None:
    examples = Examples(corpus, ExampleSettings(length=64))
    batches = [examples[number] for number in range(3)]
    found = mask_report(examples, 3)
    assert found.batches == 3
    assert found.examples == sum(len(batch.batch) for batch in batches)
    assert found.tokens == sum(batch.num_tokens for batch in batches)
    assert found.mean_length == pytest.approx(found.tokens / found.examples)
    labels = sum(int(batch.pair_labels.sum()) for batch in batches if batch.pair_labels is not None)
    assert shares(found)["pairs that do not follow"][0] == pytest.approx(labels / found.examples)


def test_it_can_be_shown_and_saved(corpus: Corpus) -> None:
    found = report(corpus, masking=MaskingSettings(unit="span"))
    rows = found.rows()
    assert all(len(row) == 5 and all(isinstance(cell, str) for cell in row) for row in rows)
    assert [row[0] for row in rows[:4]] == ["batches", "examples", "tokens", "tokens of an example, mean"]
    chosen = next(row for row in rows if row[0].startswith("chosen"))
    assert "allows for choices of" in chosen[0]
    assert chosen[2] == "15.000%"
    assert chosen[4] == "yes"
    data = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert data["ok"] is True
    assert data["confidence"] == 0.99
    assert data["checks"][0]["expected"] == 0.15
    low, high = data["checks"][0]["interval"]
    assert low < data["checks"][0]["found"] < high


def broken(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    real = masking.mask_tokens

    def wrong(*given: Any) -> Masked:
        return change(real(*given), *given)

    monkeypatch.setattr(pretraining, "mask_tokens", wrong)


def fewer(found: Masked, *_: Any) -> Masked:
    return Masked(found.ids, found.places[1:], found.targets[1:])


def always_masked(found: Masked, *_: Any) -> Masked:
    ids = found.ids.copy()
    ids[found.places] = 4
    return Masked(ids, found.places, found.targets)


def never_random(found: Masked, original: Any, *_: Any) -> Masked:
    return Masked(np.where(found.ids == 4, 4, original), found.places, found.targets)


def specials(found: Masked, original: Any, *_: Any) -> Masked:
    return Masked(found.ids, np.append(found.places, len(original) - 1), np.append(found.targets, 3))


def secretly(found: Masked, *_: Any) -> Masked:
    return Masked(np.where(np.arange(len(found.ids)) == 2, 7, found.ids), found.places, found.targets)


def in_part(found: Masked, *_: Any) -> Masked:
    keep = np.arange(len(found.places)) % 3 > 0
    return Masked(found.ids, found.places[keep], found.targets[keep])


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (fewer, {"chosen, of ordinary tokens", "changed but not asked about"}),
        (always_masked, {"masked", "another token", "as it was"}),
        (never_random, {"another token", "as it was"}),
        (specials, {"special tokens chosen, or put in"}),
        (secretly, {"changed but not asked about"}),
        (in_part, {"words chosen in part", "chosen, of ordinary tokens"}),
    ],
)
def test_it_notices(corpus: Corpus, monkeypatch: pytest.MonkeyPatch, change: Any, wrong: set[str]) -> None:
    broken(monkeypatch, change)
    found = report(corpus, masking=MaskingSettings(unit="word" if change is in_part else "token"))
    assert not found.ok
    assert wrong <= {name for name, (_, ok) in shares(found).items() if not ok}
    assert "NO" in {row[4] for row in found.rows()}
    assert found.as_json()["ok"] is False


def test_it_notices_wrong_pairs(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    real = pretraining.examples_of

    def wrong(document: Any, length: int, settings: PairSettings, elsewhere: Any, rng: Any) -> Any:
        return real(document, length, settings.replace(unrelated=0.4, short=0.2), elsewhere, rng)

    monkeypatch.setattr(pretraining, "examples_of", wrong)
    bad = {name for name, (_, ok) in shares(report(corpus)).items() if not ok}
    assert bad == {"pairs that do not follow", "examples to be short"}


@pytest.mark.slow
def test_the_intervals_hold_99_times_in_a_hundred(corpus: Corpus) -> None:
    """Of many seeds, about one in a hundred values lies outside, and never many more."""
    outside: dict[str, int] = {}
    for seed in range(80):
        examples = Examples(corpus, ExampleSettings(length=64, seed=seed, masking=MaskingSettings(unit="span")))
        for check in mask_report(examples, 2).checks:
            outside[check.name] = outside.get(check.name, 0) + (not check.ok)
    assert max(outside.values()) <= 4, outside
    assert outside["chosen, of ordinary tokens"] <= 3


def test_too_little_to_count(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("龘\n\n龘 龘", encoding="utf-8")
    tiny = build_corpus([tmp_path / "a.txt"], Tokenizer.from_vocab([*SPECIAL, "a"]), tmp_path / "c", workers=1)
    found = mask_report(Examples(tiny, ExampleSettings(held_out=0)), 1)
    assert found.ok
    assert sum(check.note == "nothing to count" for check in found.checks) >= 4
    assert dataclasses.is_dataclass(found)
    assert module.CONFIDENCE == 0.99
