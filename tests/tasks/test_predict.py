"""A fine-tuned model in use: from lists, files and streams, in order, in little memory, and as it is to be used."""

from __future__ import annotations

import gc
import io
import json
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import finetune_toy as toy
import unmask
from unmask.bundle import Bundle
from unmask.data.examples import QuestionExample, TaggedExample, TextExample
from unmask.errors import DataError, ModelError, TaskError
from unmask.models.init import build_model
from unmask.models.settings import ClassifySettings, MaskedTokenSettings, SpanSettings, TagSettings
from unmask.tasks.predict import Predictor, record
from unmask.tasks.usage import USAGE, Usage, read_usage, write_usage


def loaded(task: str) -> Bundle:
    return unmask.load(toy.learned(task) / "model")


# What is given


def test_lists_of_texts_and_pairs() -> None:
    single = loaded("single")
    assert [one.label for one in single.predict(["the good", "the bad"])] == ["pos", "neg"]
    assert [one.label for one in single.predict("the good")] == ["pos"]
    assert single.predict([]) == []
    pair = loaded("pair")
    assert [one.label for one in pair.predict(["the red", "a blue"], ["the blue", "a green"])] == ["blue", "green"]
    assert [one.label for one in pair.predict("the red", "the blue")] == ["blue"]
    assert [one.answer for one in loaded("qa").predict("who was it ?", "the ada was")] == ["ada"]


@pytest.mark.parametrize(
    ("task", "texts", "pairs", "words"),
    [
        ("single", ["a"], ["b"], "trained on single texts"),
        ("pair", ["a"], None, "trained on pairs"),
        ("pair", ["a", "b"], ["c"], "one list is longer"),
        ("pair", ["a"], ["b", "c"], "one list is longer"),
        ("words", ["a"], ["b"], "tags single texts"),
        ("qa", ["a"], None, "answers questions"),
    ],
)
def test_what_does_not_fit_the_task(task: str, texts: list[str], pairs: list[str] | None, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        loaded(task).predict(texts, pairs)


def test_files_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = loaded("single").predictor
    texts = ["the good", "", 'the bad, "very" bad']
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text('id,text\n1,the good\n2,\n3,"the bad, ""very"" bad"\n', encoding="utf-8")
    (tmp_path / "c.tsv").write_text('text\tx\nthe good\t1\n\t2\nthe bad, "very" bad\t3\n', encoding="utf-8")
    toy.write_rows(tmp_path / "d.jsonl", [{"text": text} for text in texts])
    (tmp_path / "e.json").write_text(json.dumps([{"text": text} for text in texts]), encoding="utf-8")
    (tmp_path / "f.txt").write_bytes("\r\n".join(texts).encode())
    for file in sorted(tmp_path.iterdir()):
        assert [example.text for example in predictor.read(str(file))] == texts, file
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the good\n")))
    assert [example.text for example in predictor.read("-")] == ["the good"]
    gb = tmp_path / "gb.txt"
    gb.write_bytes("的是\n".encode("gb18030"))
    assert [example.text for example in predictor.read(str(gb), encoding="gb18030")] == ["的是"]


def test_columns_are_named_where_they_must_be(tmp_path: Path) -> None:
    predictor = loaded("single").predictor
    file = toy.write_rows(tmp_path / "a.jsonl", [{"text_a": "the good", "text_b": "the bad"}])
    with pytest.raises(DataError, match="two texts a row but the model was trained on single texts"):
        list(predictor.read(str(file)))
    assert [example.text for example in predictor.read(str(file), "text=text_b")] == ["the bad"]
    pair = loaded("pair").predictor
    assert [(example.text, example.pair) for example in pair.read(str(file))] == [("the good", "the bad")]
    with pytest.raises(DataError, match="one text a row but the model was trained on pairs"):
        list(pair.read(str(file), "text=text_b"))


def test_tagged_files_keep_their_words(tmp_path: Path) -> None:
    predictor = loaded("words").predictor
    (tmp_path / "a.conll").write_text("ada B-PER\nwas O\n\nyork-x O\n", encoding="utf-8")
    (tmp_path / "b.conll").write_text("ada\nwas\n\nyork-x\n", encoding="utf-8")
    toy.write_rows(tmp_path / "c.jsonl", [{"tokens": ["ada", "was"], "tags": ["O", "O"]}])
    for name in ("a.conll", "b.conll", "c.jsonl"):
        first, *rest = predictor.run(predictor.read(str(tmp_path / name)))
        assert [word[:2] for word in first.words] == [(0, 3), (4, 7)]
        assert [entity[:3] for entity in first.entities] == [(0, 3, "PER")]
        for one in rest:
            assert [word[:2] for word in one.words] == [(0, 6)]
    (tmp_path / "d.csv").write_text("text,label\nada was,x\n", encoding="utf-8")
    assert [type(example) for example in predictor.read(str(tmp_path / "d.csv"))] == [TaggedExample]


# Memory


def stream(count: int) -> Iterator[str]:
    for number in range(count):
        yield f"{'good' if number % 2 else 'bad'} {number % 7}"


def peak(bundle: Bundle, count: int) -> int:
    """Bytes of Python's own at most while so many texts go through; nothing of what is said is kept."""
    gc.collect()
    gc.freeze()  # what is there already need not be looked at again and again
    tracemalloc.start()
    try:
        labels = [0, 0]
        for number, said in enumerate(bundle.predict_stream(stream(count))):
            labels[said.label == "pos"] += 1
            if number % 500 == 0:
                gc.collect()  # what nobody can reach any more is not what grows
        assert labels == [count // 2, count // 2]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.unfreeze()


def test_twenty_thousand_texts_take_no_more_memory_than_two_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = loaded("single")
    monkeypatch.setattr("unmask.tasks.windows.CHUNK_TEXTS", 500)
    few = peak(bundle, 1000)
    assert peak(bundle, 20_000) < 1.5 * few


def test_the_first_answer_comes_before_the_last_text() -> None:
    bundle, taken = loaded("words"), 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for _ in range(100_000):
            taken += 1
            yield "ada was"

    assert next(iter(bundle.predict_stream(texts()))).entities
    assert taken < 5000


# How it is to be used


def test_what_a_folder_says_is_kept(tmp_path: Path) -> None:
    for task in ("single", "pair", "crf", "qa2"):
        bundle = loaded(task)
        bundle.save(tmp_path / task)
        again = unmask.load(tmp_path / task)
        assert again.predictor.usage == bundle.predictor.usage
        rows = toy.dev_rows(task)[:5]
        texts = [row.get("text") or row.get("text_a") or row.get("question") or " ".join(row["tokens"]) for row in rows]
        pairs = [row.get("text_b") or row.get("context") for row in rows]
        given = pairs if pairs[0] else None
        assert again.predict(texts, given) == bundle.predict(texts, given)


def made(head: object) -> Bundle:
    return Bundle(build_model(toy.settings().replace(heads=(head,)), seed=0), toy.tokenizer())


@pytest.mark.parametrize(
    ("head", "usage"),
    [
        (ClassifySettings(labels=("a", "b")), Usage(task="classify")),
        (TagSettings(labels=("O", "B-X", "I-X")), Usage(task="tag", scheme="BIO")),
        (TagSettings(labels=("I-X", "O")), Usage(task="tag", scheme="BIO")),
        (TagSettings(labels=("O", "B-X", "I-X", "E-X", "S-X")), Usage(task="tag", scheme="BIOES")),
        (TagSettings(labels=("NOUN", "VERB")), Usage(task="tag", scheme=None)),
        (SpanSettings(), Usage(task="qa")),
    ],
)
def test_folders_of_others_are_used_as_their_heads_suggest(head: object, usage: Usage, tmp_path: Path) -> None:
    bundle = made(head)
    bundle.save(tmp_path / "model")
    assert not (tmp_path / "model" / USAGE).exists()
    again = unmask.load(tmp_path / "model")
    assert again.predictor.usage == usage
    if usage.task == "classify":  # nobody says whether of pairs
        assert len(again.predict(["a"])) == len(again.predict(["a"], ["b"])) == 1


def test_a_bioes_model_of_others_finds_whole_stretches() -> None:
    bundle = made(TagSettings(labels=("O", "B-X", "I-X", "E-X", "S-X"), dropout=0.0))
    with torch.no_grad():
        dense = bundle.model.heads["tag"].dense
        dense.weight.zero_()
        dense.bias.copy_(torch.tensor([0.0, 0, 0, 0, 9.0]))
    (said,) = bundle.predict("ada was")
    assert [entity[:3] for entity in said.entities] == [(0, 3, "X"), (4, 7, "X")]


def test_a_folder_whose_usage_is_wrong(tmp_path: Path) -> None:
    loaded("single").save(tmp_path / "model")
    path = tmp_path / "model" / USAGE
    for content in ("{", '{"task": "sing"}', '{"task": "classify", "treshold": 0.5}', "[]", '{"threshold": 2}'):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ModelError, match=USAGE):
            unmask.load(tmp_path / "model").predict(["a"])


def test_usage_is_written_and_read(tmp_path: Path) -> None:
    bundle = loaded("qa2")
    usage = Usage(task="qa", no_answer=-1.25, max_answer=7, metric="cmrc", pair=True)
    write_usage(tmp_path, usage)
    assert read_usage(tmp_path, bundle.model) == usage


def test_a_model_without_a_head_is_told() -> None:
    bare = Bundle(build_model(toy.settings(), seed=0), toy.tokenizer())
    with pytest.raises(ModelError, match="no head at all"):
        bare.predict(["a"])
    with pytest.raises(ModelError, match="has mlm, and can neither"):
        made(MaskedTokenSettings()).predict(["a"])


def test_records_are_plain_data() -> None:
    for task in toy.TASKS:
        predictor = loaded(task).predictor
        rows = toy.dev_rows(task)[:3]
        kinds = {"classify": TextExample, "tag": TaggedExample}
        if predictor.usage.task == "qa":
            examples = [QuestionExample(row["id"], row["question"], row["context"], line=7) for row in rows]
        else:
            kind = kinds[predictor.usage.task]
            texts = [row.get("text") or row.get("text_a") or " ".join(row["tokens"]) for row in rows]
            examples = [kind(text, line=7) for text in texts]
            if task == "pair":
                examples = [TextExample(row["text_a"], row["text_b"], line=7) for row in rows]
        for example, said in zip(examples, predictor.run(examples), strict=True):
            found = record(example, said, predictor.usage)
            assert json.loads(json.dumps(found, allow_nan=False)) == found
            assert found["line"] == 7
            assert found["coverage"] == 1
            for one in found.get("entities", found.get("words", [])):
                assert one["text"] == example.text[one["start"] : one["end"]]
            if "answer" in found:
                assert found["answer"] == example.context[found["start"] : found["end"]]
    assert isinstance(predictor, Predictor)


def test_a_text_file_with_tabs_is_the_table_it_was_trained_on(tmp_path: Path) -> None:
    predictor = loaded("single").predictor
    path = tmp_path / "a.txt"
    path.write_text("the good\tpos\nthe bad\tneg\n" * 4, encoding="utf-8")
    assert [example.text for example in predictor.read(str(path), "text=1,label=2")] == ["the good", "the bad"] * 4
    assert [example.text for example in predictor.read(str(path))] == ["the good", "the bad"] * 4
    path.write_text("the good\tand more\nthe bad\n", encoding="utf-8")
    assert [example.text for example in predictor.read(str(path))] == ["the good\tand more", "the bad"]


def test_one_text_is_not_its_letters() -> None:
    assert [one.label for one in loaded("single").predict_stream("the good")] == ["pos"]
