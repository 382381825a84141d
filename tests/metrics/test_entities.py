from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import classification_report
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import BILOU, IOB1, IOB2, IOBES, Entities

from unmask.errors import DataError
from unmask.metrics import EntityScores, entities_of, entity_counts, entity_scores, f1_of, macro_f1_of
from unmask.metrics.entities import Entity, Scheme

TYPES = ["PER", "LOC", "GPE.NAM"]
THEIRS = {"BIO": IOB2, "IOB1": IOB1, "BIOES": IOBES, "BILOU": BILOU}


def tags(letters: str) -> st.SearchStrategy[list[str]]:
    """Any order of tags, as an untrained model gives them."""
    tag = st.sampled_from([f"{letter}-{kind}" for letter in letters for kind in TYPES] + ["O", "O"])
    return st.lists(tag, min_size=1, max_size=14)


def pairs(letters: str) -> st.SearchStrategy[list[tuple[list[str], list[str]]]]:
    """Documents with two taggings of the same length."""
    pair = tags(letters).flatmap(lambda gold: tags(letters).map(lambda other: (gold, (other * len(gold))[: len(gold)])))
    return st.lists(pair, min_size=1, max_size=5)


def lenient(tagging: list[str]) -> list[Entity]:
    return [(start, end + 1, kind) for kind, start, end in get_entities(tagging)]


@given(tags("BIES"))
@settings(max_examples=500)
def test_the_lenient_reading_is_that_of_seqeval(tagging: list[str]) -> None:
    assert entities_of(tagging) == lenient(tagging)
    as_bmes = [tag.replace("I-", "M-", 1) if tag[0] == "I" else tag for tag in tagging]
    assert entities_of(as_bmes) == lenient(tagging)


@pytest.mark.parametrize("letters", ["B", "BI", "I"])
def test_tags_without_a_type(letters: str) -> None:
    draw = np.random.default_rng(0)
    for _ in range(100):
        tagging = [str(tag) for tag in draw.choice([*letters, "O"], size=6)]
        assert entities_of(tagging) == lenient(tagging)


@pytest.mark.parametrize(("scheme", "letters"), [("BIO", "BI"), ("IOB1", "BI"), ("BIOES", "BIES"), ("BILOU", "BILU")])
def test_the_strict_reading_is_that_of_seqeval(scheme: Scheme, letters: str) -> None:
    @given(tags(letters))
    @settings(max_examples=500)
    def check(tagging: list[str]) -> None:
        theirs = Entities([tagging], THEIRS[scheme]).entities[0]
        assert entities_of(tagging, scheme) == [(entity.start, entity.end, entity.tag) for entity in theirs]

    check()


@given(tags("BIES"))
def test_bmes_is_bioes_with_another_letter(tagging: list[str]) -> None:
    as_bmes = [tag.replace("I-", "M-", 1) if tag[0] == "I" else tag for tag in tagging]
    assert entities_of(as_bmes, "BMES") == entities_of(tagging, "BIOES")


def same_report(found: EntityScores, report: dict[str, Any]) -> None:
    names = {"micro avg": found.micro, "macro avg": found.macro, "weighted avg": found.table.weighted, **found.by_type}
    assert set(report) == set(names)
    for name, score in names.items():
        row = report[name]
        assert (score.precision, score.recall, score.f1) == pytest.approx(
            (row["precision"], row["recall"], row["f1-score"]), abs=1e-12
        )
        assert score.support == row["support"]


@pytest.mark.parametrize("scheme", [None, "BIO", "BIOES"])
def test_scores_are_those_of_seqeval(scheme: Scheme | None) -> None:
    @given(pairs("BI" if scheme == "BIO" else "BIES"))
    @settings(max_examples=200)
    def check(documents: list[tuple[list[str], list[str]]]) -> None:
        gold, predicted = ([list(document[side]) for document in documents] for side in (0, 1))
        read = [[entities_of(tagging, scheme) for tagging in side] for side in (gold, predicted)]
        found = entity_scores(*read)
        if not found.types:
            assert found.micro.f1 == found.macro.f1 == 0.0
            return
        chosen: dict[str, Any] = {} if scheme is None else {"mode": "strict", "scheme": THEIRS[scheme]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numpy, about what seqeval does
            report = classification_report(gold, predicted, output_dict=True, zero_division=0, **chosen)
        same_report(found, report)

    check()


def test_by_hand() -> None:
    gold = [[(0, 2, "PER"), (4, 5, "LOC")], [], [(1, 3, "PER")]]
    predicted = [[(0, 2, "PER"), (4, 5, "PER")], [(0, 1, "ORG")], [(1, 3, "PER"), (1, 3, "PER")]]
    found = entity_scores(gold, predicted)
    assert found.types == ("LOC", "ORG", "PER")
    assert (found.micro.precision, found.micro.recall, found.micro.f1) == (2 / 4, 2 / 3, 4 / 7)
    assert found.by_type["PER"].f1 == 4 / 5
    assert found.by_type["ORG"].support == 0
    assert found.macro.f1 == pytest.approx(0.8 / 3)
    assert json.loads(json.dumps(found.as_json()))["types"]["LOC"]["recall"] == 0.0


def test_counts_of_documents_add_up_to_the_scores() -> None:
    draw = np.random.default_rng(0)
    sides = [
        [entities_of([str(tag) for tag in draw.choice(["O", "B-A", "I-A", "B-B", "I-B"], 12)]) for _ in range(40)]
        for _ in range(2)
    ]
    types, counts = entity_counts(*sides)
    found = entity_scores(*sides)
    assert counts.shape == (40, len(types), 3)
    assert float(f1_of(counts.sum(axis=(0, 1)))) == pytest.approx(found.micro.f1)
    assert float(macro_f1_of(counts.reshape(40, -1).sum(axis=0))) == pytest.approx(found.macro.f1)


@pytest.mark.parametrize("part", ["dev", "test", "train"])
def test_real_tags_of_weibo(data_folder: Path, part: str) -> None:
    lines = (data_folder / "weibo_ner" / f"{part}.all.bmes").read_text(encoding="utf-8").split("\n\n")
    gold = [[line.split()[-1] for line in block.splitlines()] for block in lines if block.strip()]
    draw = np.random.default_rng(0)
    known = sorted({tag for tagging in gold for tag in tagging})
    # A tagger that is wrong about one token in ten.
    predicted = [[str(draw.choice(known)) if draw.random() < 0.1 else tag for tag in tagging] for tagging in gold]
    found = entity_scores([entities_of(t) for t in gold], [entities_of(t) for t in predicted])
    as_iobes = [[[f"I{tag[1:]}" if tag[0] == "M" else tag for tag in t] for t in side] for side in (gold, predicted)]
    same_report(found, classification_report(*as_iobes, output_dict=True, zero_division=0))
    strict = entity_scores(*([entities_of(t, "BMES") for t in side] for side in (gold, predicted)))
    report = classification_report(*as_iobes, output_dict=True, zero_division=0, mode="strict", scheme=IOBES)
    same_report(strict, report)
    assert 0.2 < found.micro.f1 < 0.9


def test_real_entities_of_cluener(data_folder: Path) -> None:
    """Spans become BIO tags and spans again; none is lost, for none overlap but where one lies on another."""
    lines = (data_folder / "cluener2020" / "dev.json").read_text(encoding="utf-8").splitlines()
    gold, predicted, written, read = [], [], [], []
    draw = np.random.default_rng(0)
    for line in lines:
        example = json.loads(line)
        spans = sorted(
            (start, end + 1, kind)
            for kind, names in example["label"].items()
            for places in names.values()
            for start, end in places
        )
        spans = [span for number, span in enumerate(spans) if not number or span[0] >= spans[number - 1][1]]
        tagging = ["O"] * len(example["text"])
        for start, end, kind in spans:
            tagging[start:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - start - 1)
        guessed = [f"I-{tag[2:]}" if tag[0] == "B" and draw.random() < 0.2 else tag for tag in tagging]
        guessed = ["O" if draw.random() < 0.03 else tag for tag in guessed]
        assert entities_of(tagging) == entities_of(tagging, "BIO") == spans
        gold.append(tagging)
        predicted.append(guessed)
        written.append(spans)
        read.append(entities_of(guessed))
    report = classification_report(gold, predicted, output_dict=True, zero_division=0)
    same_report(entity_scores(written, read), report)
    assert len(report) == 10 + 3


def test_what_cannot_be_read() -> None:
    with pytest.raises(DataError, match="tag 'X-PER' of token 2 is neither O nor one of B-…, I-…"):
        entities_of(["O", "X-PER"])
    with pytest.raises(DataError, match="tag 'E-PER' of token 1"):
        entities_of(["E-PER"], "BIO")
    with pytest.raises(DataError, match="tag 'BPER'"):
        entities_of(["BPER"])
    with pytest.raises(DataError, match="tag ''"):
        entities_of([""])
    with pytest.raises(ValueError, match="none of BIO, IOB1, BIOES, BMES, BILOU"):
        entities_of(["O"], "BIOLU")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 documents are gold but 1 are predicted"):
        entity_scores([[], []], [[]])
    with pytest.raises(DataError, match="nothing to score"):
        entity_scores([], [])
