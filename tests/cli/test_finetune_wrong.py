"""What is wrong with files, flags and models: one sentence, exit code 2, soon, and nothing left behind."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import finetune_toy as toy
from unmask.cli.main import run as unmask

Captured = pytest.CaptureFixture[str]
SECONDS = 10  # far more than it takes: a busy machine is no reason to fail, a training would be


def _broken_files() -> Any:
    """The files that the readers are tested with."""
    path = Path(__file__).parents[1] / "data" / "test_broken_files.py"
    spec = importlib.util.spec_from_file_location("broken_files", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BROKEN = _broken_files()


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write_start(tmp_path_factory.mktemp("start") / "model")


def refused(arguments: list[object], folder: Path, capsys: Captured) -> str:
    """The sentence that a call ends in; the folder is as it was."""
    before = snapshot(folder)
    began = time.perf_counter()
    assert unmask([*map(str, arguments)]) == 2
    assert time.perf_counter() - began < SECONDS
    out, err = capsys.readouterr()
    assert out == ""
    *said, last = err.splitlines()
    assert last.startswith("unmask: ")
    assert not any(line.startswith("unmask: ") for line in said)
    assert "Traceback" not in err
    assert "Warning" not in err
    assert "  " not in last.replace(str(folder), "")
    assert len(last) < 700 + 2 * len(str(folder))
    assert snapshot(folder) == before
    return last


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def write(path: Path, content: bytes | str | None) -> Path:
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    elif path.name == "a.csv":
        path.mkdir()
    return path


def command_of(read: Callable[[Path], object]) -> str:
    return {BROKEN.read_tagged: "tag", BROKEN.read_questions: "qa"}.get(read, "classify")


@pytest.mark.parametrize("case", BROKEN.CASES, ids=lambda case: case[0])
def test_every_broken_file_is_told_by_every_command(
    case: tuple[str, str, bytes | str | None, Any, int | None, str], tmp_path: Path, start: Path, capsys: Captured
) -> None:
    _, name, content, read, line, words = case
    path = write(tmp_path / name, content)
    models = {"tag": "words", "qa": "qa2", "classify": "single"}
    command = command_of(read)
    train = ["train", command, "--model", start, "--out", tmp_path / "run", "--threads", 1]
    more = ["--problem", "regression"] if read is BROKEN.regression else []
    told = []
    if read is BROKEN.unreadable_dev:
        good = write(tmp_path / "good.csv", BROKEN.OK)
        told.append(refused([*train, "--train", good, "--dev", path], tmp_path, capsys))
    elif read is BROKEN.iter_texts:
        told.append(refused(["predict", toy.learned("single"), path, "--out", tmp_path / "said"], tmp_path, capsys))
    else:
        told.append(refused([*train, "--train", path, *more], tmp_path, capsys))
        if read is not BROKEN.trainable:  # a file of one class can well be measured on
            model = toy.learned("regression" if more else "multi" if "labels is empty" in words else models[command])
            told.append(refused(["evaluate", model, path, "--out", tmp_path / "measured"], tmp_path, capsys))
    for sentence in told:
        assert words in sentence
        assert name in sentence
        if line is not None:
            assert f"line {line}" in sentence or f"item {line}" in sentence  # of a list on one line


# Calls

GOOD = json.dumps({"text": "the good", "label": "pos"}) + "\n" + json.dumps({"text": "a bad", "label": "neg"}) + "\n"
WORDS = '{"tokens": ["ada", "was"], "tags": ["B-PER", "O"]}\n' * 4
PLAIN = '{"tokens": ["ada", "was"], "tags": ["NOUN", "VERB"]}\n' * 4
ASKED = '{"id": "%d", "question": "who ?", "context": "ada was", "answers": [{"text": "ada", "answer_start": 0}]}\n'
QUESTIONS = "".join(ASKED % number for number in range(4))
FILES = {
    "good.jsonl": GOOD * 4,
    "pair.jsonl": '{"text_a": "red", "text_b": "blue", "label": "pos"}\n' * 2
    + '{"text_a": "red", "text_b": "blue", "label": "neg"}\n',
    "other.jsonl": GOOD + '{"text": "so so", "label": "meh"}\n',
    "numbers.jsonl": '{"text": "a b", "label": 0.5}\n{"text": "c d", "label": 1.25}\n{"text": "e f", "label": 2.75}\n',
    "multi.jsonl": '{"text": "a b", "label": ["x", "y"]}\n{"text": "c d", "label": ["y"]}\n{"text": "e", "label": []}',
    "words.jsonl": WORDS,
    "plain.jsonl": PLAIN,
    "onetag.jsonl": '{"tokens": ["ada", "was"], "tags": ["NOUN", "NOUN"]}\n' * 4,
    "outside.jsonl": '{"tokens": ["ada", "was"], "tags": ["O", "O"]}\n' * 4,
    "places.jsonl": WORDS + '{"tokens": ["rome"], "tags": ["B-LOC"]}\n',
    "halftags.jsonl": WORDS + '{"tokens": ["rome"]}\n',
    "halfplain.jsonl": PLAIN + '{"text": "rome", "entities": [[0, 4, "LOC"]]}\n',
    "invisible.jsonl": '{"tokens": ["\u200b"], "tags": ["B-X"]}\n' * 4,
    "asked.jsonl": QUESTIONS,
    "unasked.jsonl": '{"id": "1", "question": "who ?", "context": "ada was"}\n' * 1,
    "nowhere.jsonl": QUESTIONS.replace('"text": "ada"', '"text": "zoe"'),
    "twice.jsonl": QUESTIONS + ASKED % 0,
    "texts.txt": "the good\na bad\n",
    "bad.toml": "epochs = [",
    "unknown.toml": "epoch = 3\n",
    "list.json": "[1]",
}

#: What stands after `unmask train`; words of the sentence. {name} is a file above, or a model.
TRAIN = [
    ("classify --train good.jsonl --model {start} --epochs 0", "epochs"),
    ("classify --train good.jsonl --model {start} --epochs -1", "epochs"),
    ("classify --train good.jsonl --model {start} --epochs nan", "epochs"),
    ("classify --train good.jsonl --model {start} --batch-size 0", "batch_size"),
    ("classify --train good.jsonl --model {start} --learning-rate -1", "learning_rate"),
    ("classify --train good.jsonl --model {start} --max-length 65", "more than the 64 tokens"),
    ("classify --train good.jsonl --model {start} --max-length 2", "at least 3 are needed"),
    ("classify --train good.jsonl --model {start} --long-text sideways", "long_text.strategy"),
    ("classify --train good.jsonl --model {start} --join sum", "long_text.join"),
    ("classify --train good.jsonl --model {start} --pooling min", "pooling"),
    ("classify --train good.jsonl --model {start} --problem maybe", "problem"),
    ("classify --train good.jsonl --model {start} --layers 3", "3 were asked for"),
    ("classify --train good.jsonl --model {start} --layers 0", "layers"),
    ("classify --train good.jsonl --model {start} --freeze 5", "5"),
    ("classify --train good.jsonl --model {start} --smoothing 1", "smoothing"),
    ("classify --train good.jsonl --model {start} --class-weights heavy", "class_weights"),
    ("classify --train good.jsonl --model {start} --fgm 1 --freeze 1", "frozen"),
    ("classify --train good.jsonl --model {start} --set train.precision=fp16", "fp16"),
    ("classify --train good.jsonl --model {start} --set train.accumulate=9", "accumulate: 9 micro-batches cannot"),
    ("classify --train good.jsonl --model {start} --set epoch=3", "did you mean epochs?"),
    ("classify --train good.jsonl --model {start} --set epochs", "does not say what to set"),
    ("classify --train good.jsonl --model {start} --set dev_share=1", "dev_share"),
    ("classify --train good.jsonl --model {start} --set dev_share=0.99", "too few to set some apart"),
    ("classify --train good.jsonl --model {start} --config bad.toml", "bad.toml"),
    ("classify --train good.jsonl --model {start} --config unknown.toml", "did you mean epochs?"),
    ("classify --train good.jsonl --model {start} --config list.json", "expected a table of settings"),
    ("classify --train good.jsonl --model {start} --config none.toml", "no such file"),
    ("classify --train good.jsonl --model {start} --columns text=txt", "no column 'txt'"),
    ("classify --train good.jsonl --model {start} --columns text", "names no column"),
    ("classify --train good.jsonl --model {start} --encoding latin-1", "utf-8 or gb18030"),
    ("classify --train good.jsonl --model {start} --grid --seeds 2", "--grid or --seeds"),
    ("classify --train good.jsonl --model {start} --dev other.jsonl", "line 3: the label 'meh' is unknown"),
    ("classify --train good.jsonl --model {start} --dev pair.jsonl", "two texts a row"),
    ("classify --train pair.jsonl --model {start} --dev good.jsonl", "one text a row"),
    ("classify --train good.jsonl --model {start} --dev none.jsonl", "no such file"),
    ("classify --train good.jsonl --model {start} --dev numbers.jsonl", "is unknown"),
    ("classify --train numbers.jsonl --model {start} --problem regression --dev good.jsonl", "must be a number"),
    ("classify --train numbers.jsonl --model {start} --problem regression --smoothing 0.1", "is for one label"),
    ("classify --train multi.jsonl --model {start} --class-weights auto", "is for one label"),
    ("classify --train multi.jsonl --model {start} --r-drop 1", "is for one label"),
    ("classify --train none.jsonl --model {start}", "no such file"),
    ("classify --train good.jsonl --model .", "no tokenizer in it"),
    ("classify --train words.jsonl --model {start}", "words.jsonl"),
    ("tag --train good.jsonl --model {start}", "good.jsonl"),
    ("tag --train words.jsonl --model {start} --dev plain.jsonl", "mark no stretches"),
    ("tag --train plain.jsonl --model {start} --dev words.jsonl", "mark stretches"),
    ("tag --train words.jsonl --model {start} --dev places.jsonl", "line 5: the label 'LOC' is unknown"),
    ("tag --train halftags.jsonl --model {start}", "line 5: has no tags"),
    ("tag --train halfplain.jsonl --model {start}", "line 5: has no tag for each word"),
    ("tag --train words.jsonl --model {start} --dev halftags.jsonl", "line 5"),
    ("tag --train onetag.jsonl --model {start}", "only the tag 'NOUN'"),
    ("tag --train outside.jsonl --model {start}", "nothing to learn"),
    ("tag --train invisible.jsonl --model {start}", "has no word"),
    ("tag --train words.jsonl --model {start} --scheme IOB3", "scheme"),
    ("tag --train words.jsonl --model {start} --crf --r-drop 1", "crf: goes without"),
    ("tag --train words.jsonl --model {start} --crf --class-weights auto", "crf: goes without"),
    ("tag --train words.jsonl --model {start} --crf --smoothing 0.1", "crf: goes without"),
    ("tag --train words.jsonl --model {start} --set long_text.strategy=parts", "use windows"),
    ("qa --train good.jsonl --model {start}", "context"),
    ("qa --train unasked.jsonl --model {start}", "the question 1 has no answers"),
    ("qa --train asked.jsonl --model {start} --dev unasked.jsonl", "the question 1 has no answers"),
    ("qa --train nowhere.jsonl --model {start}", "nothing to learn"),
    ("qa --train twice.jsonl --model {start}", "given twice"),
    ("qa --train asked.jsonl --model {start} --max-answer 0", "max_answer"),
    ("qa --train asked.jsonl --model {start} --overlap 64", "overlap"),
    ("qa --train asked.jsonl --model {start} --set r_drop=1", "r_drop"),
    ("qa --train asked.jsonl --model {start} --set loss.class_weights=auto", "class_weights"),
]

USE = [
    ("predict {start} --text a", "has no head at all"),
    ("predict mini-zh --text a", "can neither classify, tag nor answer"),
    ("predict none --text a", "none"),
    ("predict {single}", "give a FILE"),
    ("predict {single} texts.txt --text a", "give a FILE"),
    ("predict {single} texts.txt --pair a", "--pair goes with --text"),
    ("predict {single} --text a --columns text=a", "--columns goes with a FILE"),
    ("predict {single} --text a --pair b", "trained on single texts"),
    ("predict {single} pair.jsonl --out said", "two texts a row"),
    ("predict {single} good.jsonl --columns text=txt --out said", "no column 'txt'"),
    ("predict {single} none.txt --out said", "no such file"),
    ("predict {single} . --out said", "is a folder"),
    ("predict {single} good.jsonl --out texts.txt", "exists already"),
    ("predict {single} good.jsonl --out none/said", "there is no folder"),
    ("predict {single} texts.txt --encoding latin-1 --out said", "utf-8 or gb18030"),
    ("predict {pair} --text a", "trained on pairs"),
    ("predict {pair} texts.txt --out said", "trained on pairs"),
    ("predict {pair} good.jsonl --out said", "one text a row"),
    ("predict {pair} --text a --text b --pair c", "one list is longer"),
    ("predict {words} --text a --pair b", "tags single texts"),
    ("predict {qa2} texts.txt --out said", "answers questions"),
    ("predict {qa2} --text a", "answers questions"),
    ("predict {qa2} good.jsonl --out said", "context"),
    ("evaluate {single} texts.txt --out report", "texts.txt"),
    ("evaluate {single} other.jsonl --out report", "line 3: the label 'meh' is unknown"),
    ("evaluate {single} pair.jsonl --out report", "two texts a row"),
    ("evaluate {pair} good.jsonl --out report", "one text a row"),
    ("evaluate {words} plain.jsonl --out report", "another kind"),
    ("evaluate {plain} words.jsonl --out report", "another kind"),
    ("evaluate {words} halftags.jsonl --out report", "line 5"),
    ("evaluate {words} good.jsonl --out report", "good.jsonl"),
    ("evaluate {qa2} unasked.jsonl --out report", "has no answers"),
    ("evaluate {start} good.jsonl --out report", "has no head at all"),
    ("evaluate {single} good.jsonl --out texts.txt", "is a file"),
    ("compare {single} {pair}", "different examples"),
    ("compare {single} {words}", "do different things"),
    ("compare {single} {start}", "nothing was measured"),
    ("compare {single} {pair} --data good.jsonl", "one text a row"),
    ("compare {single} {single} --data none.jsonl", "no such file"),
    ("compare {single} texts.txt", "not a stored evaluation"),
]


def filled(call: str, folder: Path, start: Path) -> list[object]:
    """The words of a call, with real paths."""
    found: list[object] = []
    for word in call.split():
        if word.startswith("{"):
            found.append(start if word == "{start}" else toy.learned(word[1:-1]))
        elif word in FILES or word.split(".")[0] in ("none", "") or word in ("said", "report", "none/said"):
            found.append(folder / word)
        else:
            found.append(word)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        write(tmp_path / name, content)
    return tmp_path


@pytest.mark.parametrize(("call", "words"), TRAIN, ids=[call.replace("--model {start} ", "") for call, _ in TRAIN])
def test_training_is_refused(call: str, words: str, folder: Path, start: Path, capsys: Captured) -> None:
    arguments = ["train", *filled(call, folder, start), "--out", folder / "run", "--threads", 1]
    assert words in refused(arguments, folder, capsys)


@pytest.mark.parametrize(("call", "words"), USE, ids=[call for call, _ in USE])
def test_use_is_refused(call: str, words: str, folder: Path, start: Path, capsys: Captured) -> None:
    assert words in refused(filled(call, folder, start), folder, capsys)


def test_what_the_library_of_flags_refuses_has_the_same_code(capsys: Captured) -> None:
    for call in ("train classify", "train classify --train a.csv", "train tag --seeds 0 --train a --out b", "predict"):
        assert unmask(call.split()) == 2
        assert "Traceback" not in capsys.readouterr().err
