"""What the tests of fine-tuning share: a tiny BERT, tasks that it must learn in seconds, and runs that are made once.

Every task has a rule that words alone decide, in texts whose other words say nothing.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from unmask.bundle import Bundle
from unmask.cli.main import run as unmask
from unmask.models.folder import save_model, stored_names
from unmask.models.init import build_model
from unmask.models.settings import BertSettings
from unmask.nn.settings import DropoutSettings
from unmask.text.tokenizer import Tokenizer

FILLER = [
    "the",
    "a",
    "on",
    "under",
    "old",
    "big",
    "small",
    "very",
    "and",
    "then",
    "it",
    "was",
    "there",
    "with",
    "some",
    "more",
]
FILLER += ["of", "one", "two", "by"]
GOOD = ["good", "fine", "lovely", "great"]
BAD = ["bad", "awful", "dull", "poor"]
ANIMALS = ["cat", "dog", "bird", "fish"]
PEOPLE = ["ada", "bob", "eve", "tom"]
PLACES = ["paris", "rome", "oslo", "york"]
ODD = [
    "cafe",
    "ee",
    "n",
    "xyz",
    "b",
    "q",
    "ﬁne",
    "👍🏽",
    "🏳️‍🌈",
    "שלום",
    "مرحبا",
    "𝒜𝒷",
    "ß",
    "12",
    "(",
    ")",
    ",",
    "-",
    "!",
    "?",
    ".",
]
SIGNS = [",", "!", "(", "的", "說", "東", "我", "שלום", "👍🏽"]  # one token each
COLOURS = ["red", "green", "blue"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
HAN = "的是在和了有人这上大来我到說去看張偉李娜王芳北京上海東東臺灣"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
QUESTIONS = {"who": PEOPLE, "where": PLACES}
VOCABULARY = list(
    dict.fromkeys(
        [
            *(*SPECIAL, *FILLER, *GOOD, *BAD, *ANIMALS, *PEOPLE, *PLACES, *COLOURS, *QUESTIONS, *".,?!-"),
            *(*HAN, *LETTERS, *(f"##{letter}" for letter in LETTERS)),
        ]
    )
)

#: Flags with which a tiny model learns each task.
FAST = ["--learning-rate", "3e-3", "--batch-size", "16", "--threads", "1", "--set", "dropout=0.0"]


def tokenizer() -> Tokenizer:
    """BERT's way of cutting, over the toy's words."""
    return Tokenizer.from_vocab(VOCABULARY)


def settings(max_length: int = 64, dropout: float = 0.0) -> BertSettings:
    """A BERT of two layers."""
    return BertSettings(
        vocab_size=len(VOCABULARY),
        num_layers=2,
        hidden_size=32,
        num_heads=2,
        ffn_size=64,
        max_length=max_length,
        init_std=0.1,
        dropout=DropoutSettings(embedding=dropout, residual=dropout, attention=dropout, activation=0.0),
    )


def write_start(folder: Path, max_length: int = 64, dropout: float = 0.0) -> Path:
    """A model folder to start from."""
    Bundle(build_model(settings(max_length, dropout), seed=0), tokenizer()).save(folder)
    return folder


def sentence(draw: random.Random, words: Sequence[str], most: int = 8, filler: Sequence[str] = FILLER) -> str:
    """Filler with these words in it, in any order."""
    filled = [*words, *draw.choices(filler, k=draw.randint(2, most))]
    draw.shuffle(filled)
    return " ".join(filled)


def single_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draw.choice(["pos", "neg"])
        rows.append({"text": sentence(draw, [draw.choice(GOOD if label == "pos" else BAD)]), "label": label})
    return rows


def pair_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The colour of the second text; the first has another."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        other, label = draw.sample(COLOURS, 2)
        rows.append({"text_a": sentence(draw, [other]), "text_b": sentence(draw, [label]), "label": label})
    return rows


def multi_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        chosen = [animal for animal in ANIMALS if draw.random() < 0.4]
        rows.append({"text": sentence(draw, chosen), "label": sorted(chosen)})
    return rows


def number_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """How many good words there are, less the bad ones, and a half."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        words = draw.choices(GOOD + BAD, k=draw.randint(0, 3))
        score = 0.5 + sum(1 if word in GOOD else -1 for word in words)
        rows.append({"text": sentence(draw, words, 4), "label": score})
    return rows


def word_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Words with tags: people, and places of one word or two, the second of which goes on."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        pieces = [([word], ["O"]) for word in draw.choices(FILLER + ODD, k=draw.randint(2, 8))]
        pieces += [([draw.choice(PEOPLE)], ["B-PER"]) for _ in range(draw.randint(0, 2))]
        pieces += [(["york", draw.choice(PLACES[:3])], ["B-LOC", "I-LOC"]) for _ in range(draw.randint(0, 1))]
        draw.shuffle(pieces)
        rows.append({"tokens": [w for p, _ in pieces for w in p], "tags": [t for _, p in pieces for t in p]})
    return rows


def span_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Traditional Chinese with names and places as stretches of characters."""
    draw = random.Random(seed)
    names = {"人名": ["張偉", "李娜", "王芳"], "地名": ["北京", "臺灣"]}
    rows = []
    for _ in range(count):
        text, entities = "", []
        for _ in range(draw.randint(1, 3)):
            text += "".join(draw.choices("的是在和了有人这我說去東，！？（）Ａ１", k=draw.randint(1, 6)))
            type = draw.choice(list(names))
            name = draw.choice(names[type])
            entities.append({"start": len(text), "end": len(text) + len(name), "label": type})
            text += name
        rows.append({"text": text + "了", "entities": entities})
    return rows


def plain_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Words with a tag each that marks no stretch."""
    kinds = {"NAME": PEOPLE, "ANIMAL": ANIMALS, "WORD": FILLER}
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        tags = draw.choices(list(kinds), k=draw.randint(2, 8))
        rows.append({"tokens": [draw.choice(kinds[tag]) for tag in tags], "tags": tags})
    return rows


def question_rows(count: int, seed: int = 0, silent: float = 0.0) -> list[dict[str, Any]]:
    """Who, or where: the one person, or the one place, of the text, if there is one."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        asked = draw.choice(list(QUESTIONS))
        answer = None if draw.random() < silent else draw.choice(QUESTIONS[asked])
        other = draw.choice(QUESTIONS["where" if asked == "who" else "who"])
        context = sentence(draw, [other] if answer is None else [answer, other], 6, FILLER + SIGNS)
        answers = [] if answer is None else [{"text": answer, "answer_start": context.split(" ").index(answer)}]
        for given in answers:  # the place in characters
            given["answer_start"] = len(" ".join([*context.split(" ")[: given["answer_start"]], ""]))
        rows.append({"id": f"q{number}", "question": f"{asked} was it ?", "context": context, "answers": answers})
    return rows


#: For each task: the command, its rows, further flags, and how many epochs it needs.
TASKS: dict[str, tuple[str, Any, list[str]]] = {
    "single": ("classify", single_rows, ["--epochs", "4"]),
    "pair": ("classify", pair_rows, ["--epochs", "8"]),
    "multi": ("classify", multi_rows, ["--epochs", "6", "--problem", "multi"]),
    "regression": ("classify", number_rows, ["--epochs", "8", "--problem", "regression"]),
    "words": ("tag", word_rows, ["--epochs", "4"]),
    "crf": ("tag", word_rows, ["--epochs", "4", "--crf", "--scheme", "BIOES"]),
    "spans": ("tag", span_rows, ["--epochs", "5"]),
    "plain": ("tag", plain_rows, ["--epochs", "4"]),
    "qa": ("qa", question_rows, ["--epochs", "14"]),
    "qa2": ("qa", functools.partial(question_rows, silent=0.4), ["--epochs", "12"]),
}


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def train(task: str, out: Path, *flags: object, files: Path | None = None, count: int = 400) -> int:
    """`unmask train` of a task; its files stand beside the run."""
    command, rows, more = TASKS[task]
    folder = files or out.parent
    folder.mkdir(parents=True, exist_ok=True)
    start = folder / "start"
    if not start.exists():
        write_start(start)
    train_file, dev = folder / f"{task}-train.jsonl", folder / f"{task}-dev.jsonl"
    if not train_file.exists():
        write_rows(train_file, rows(count, seed=1))
    if not dev.exists():
        write_rows(dev, rows(100, seed=2))
    arguments = ["train", command, "--train", train_file, "--dev", dev, "--model", start, "--out", out]
    return unmask([*map(str, arguments), *FAST, *more, *map(str, flags)])


_KEPT = tempfile.TemporaryDirectory(prefix="unmask-finetune-")


@functools.cache
def learned(task: str) -> Path:
    """The folder of a run that has learned a task, made once; its files are beside it."""
    run = Path(_KEPT.name) / task / "run"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        assert train(task, run) == 0, said.getvalue()
    return run


def scores(run: Path) -> dict[str, float]:
    """What a run measured of its best model."""
    found = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    return {name: score[0] for name, score in found["scores"].items()}


def dev_rows(task: str) -> list[dict[str, Any]]:
    """The rows that a task is measured on."""
    return TASKS[task][1](100, seed=2)


def model_with(head: Any, max_length: int = 64) -> Any:
    """A toy BERT with a head, in training, whose gradients are large enough to be compared."""
    return build_model(settings(max_length).replace(heads=(head,)), seed=3).train()


def theirs_of(model: Any, folder: Path, kind: str) -> Any:
    """The same weights in `transformers`, through the folder that we write."""
    import transformers

    save_model(model, folder)
    return getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32).train()


def padded(texts: Sequence[str], pairs: Sequence[str] | None = None) -> dict[str, Any]:
    """What the tokenizer of `transformers` makes of texts: inputs for its models."""
    import transformers

    tokens = {token: number for number, token in enumerate(VOCABULARY)}
    theirs = transformers.BertTokenizer(vocab=tokens, do_lower_case=True)
    return dict(theirs(list(texts), None if pairs is None else list(pairs), return_tensors="pt", padding=True))


def check_gradients(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    """Every gradient of ours is theirs."""
    names, found = stored_names(ours), {name: one.grad for name, one in theirs.named_parameters()}
    largest = max(gradient.abs().max() for gradient in found.values() if gradient is not None)
    compared = 0
    for name, parameter in ours.named_parameters():
        their = found.get(names[name])
        if parameter.grad is None or their is None:  # a pooler that no head reads
            assert parameter.grad is None
            continue
        # Some gradients are zero but for rounding: a key's bias moves all scores of a query alike.
        vanishes = max(parameter.grad.abs().max(), their.abs().max()) < 1e-6 * largest
        assert vanishes or (parameter.grad - their).abs().max() <= tolerance * largest, name
        compared += 1
    assert compared > 30
