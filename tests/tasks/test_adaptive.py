"""Runs with an adaptive output: learned in both tasks, the order from the text, resumed to the same bits."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import unmask
from unmask.data.corpus.store import Corpus
from unmask.decode.settings import DecodeSettings
from unmask.errors import SettingsError
from unmask.tasks.pretrain_run import Inputs, PretrainListener, pretrain
from unmask.tasks.pretrain_settings import PretrainSettings, read_pretrain_settings
from unmask.tasks.translate_settings import Texts, TranslateSettings, read_translate_settings
from unmask.tasks.translate_train import train_translation
from unmask.train.progress import Listener

OUTPUT = '{"kind": "adaptive", "cutoffs": [8, 16], "div_value": 2}'


class Enough(Exception):
    """What stops a run."""


def letters(path: Path, count: int) -> Path:
    """Lines of letters, some frequent and some rare, and the same backwards."""
    draw = random.Random(0)
    kinds = "abcdefghijklmnop"
    weights = [1 / (place + 1) for place in range(len(kinds))]
    lines = [draw.choices(kinds[::-1], weights, k=draw.randint(3, 6)) for _ in range(count)]
    rows = [" ".join(one) + "\t" + " ".join(reversed(one)) for one in lines]
    path.write_text("source\ttarget\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def translating(*changes: str) -> TranslateSettings:
    output = ["model.tie=none", f"model.other.output={OUTPUT}", "vocabulary.size=60"]
    return read_translate_settings("reverse", [*output, "model.layers=1", "decode.beam=1", *changes])


def repeating(path: Path) -> Path:
    """Paragraphs of one word again and again: what is hidden can be told from its neighbours."""
    draw = random.Random(0)
    words = [f"{one}{two}" for one in "bdfgklmn" for two in ("ab", "ek", "il")]
    chosen = draw.choices(words, [1 / (place + 1) for place in range(len(words))], k=250)
    path.write_text("\n\n".join("\n".join([" ".join([word] * 7) + " ."] * 3) for word in chosen), encoding="utf-8")
    return path


def pretraining(updates: int, *changes: str) -> PretrainSettings:
    small = ["stages.0.length=32", f"stages.0.updates={updates}", "stages.0.batch_tokens=400", "vocabulary.size=90"]
    quick = ["train.schedule.warmup=5", "train.evaluate_every=50", "train.save_every=10", "evaluation_tokens=2000"]
    more = ["pairs.objective=none", "model.other.num_layers=1", f"model.output={OUTPUT}"]
    return read_pretrain_settings("bert-tiny-demo", [*small, *quick, *more, *changes])


class Heard(PretrainListener):
    def __init__(self, stop: int | None = None) -> None:
        self.said: list[str] = []
        self.stop = stop

    def say(self, text: str) -> None:
        self.said.append(text)

    def update(self, progress: Any) -> None:
        if progress.update == self.stop:
            raise Enough


class Stops(Listener):
    def update(self, progress: Any) -> None:
        if progress.update == 13:
            raise Enough


def test_translation_is_learned_and_goes_on_from_its_folder(tmp_path: Path) -> None:
    texts = Texts(train=(str(letters(tmp_path / "letters.tsv", 3000)),))
    found = train_translation(translating("train.updates=300", "batch_tokens=512"), texts, tmp_path / "run", Listener())
    assert found["bleu"] > 90.0
    bundle = unmask.load(tmp_path / "run" / "model")
    assert bundle.translate(["p o n m a"])[0].text == "a m n o p"
    lines = ["p o n m a", "p p", "o n p l k p", "m", "n o p m o"]
    for beam in (1, 4):
        said = bundle.translate(lines, DecodeSettings(beam=beam))
        alone = [bundle.translate([line], DecodeSettings(beam=beam))[0] for line in lines]
        assert [one.outputs for one in said] == [one.outputs for one in alone]  # scores too, to the last bit
    ranks = bundle.model.adaptive.rank_of  # type: ignore[union-attr]
    assert bundle.languages is not None
    target = bundle.languages.target
    # The end token is in every pair; the last letters are the frequent ones.
    assert ranks[bundle.languages.frame.end] < 3
    often, seldom = (target.encode(letter, special_tokens=False).ids[0] for letter in "pa")
    assert ranks[often] < 8 <= ranks[seldom]


def test_a_masked_language_model_is_learned_with_the_order_of_its_corpus(tmp_path: Path) -> None:
    listener = Heard()
    inputs = Inputs(text=(str(repeating(tmp_path / "text.txt")),))
    found = pretrain(pretraining(150), inputs, tmp_path / "run", listener)
    assert found["mlm_accuracy"] > 0.8  # the most frequent token alone: 0.2
    assert found["mlm_loss"] < 0.5
    assert any("parameters" in said for said in listener.said)
    bundle = unmask.load(tmp_path / "run" / "model")
    corpus = Corpus.open(tmp_path / "run" / "data" / "corpus")
    counted = Counter(int(id) for number in range(corpus.num_sentences) for id in corpus.sentence(number))
    assert corpus.token_counts().tolist() == [counted[id] for id in range(corpus.vocab_size)]
    ranks = bundle.model.heads["mlm"].adaptive.rank_of.tolist()  # type: ignore[union-attr]
    by_rank = [counted[id] for id in sorted(range(len(ranks)), key=ranks.__getitem__)]
    assert by_rank == sorted(counted.values(), reverse=True) + [0] * (len(ranks) - len(counted))
    word = "kab"
    assert bundle.fill_mask(f"{word} {word} [MASK] {word} {word} {word} {word} .")[0][0].token == word
    # Going on: only with the same output, which keeps its order.
    start = Inputs(text=inputs.text, start=str(tmp_path / "run" / "model"))
    with pytest.raises(SettingsError, match=r"model.output = \{cutoffs = \[8, 16\], div_value = 2\}"):
        pretrain(pretraining(2, "model.output=null"), start, tmp_path / "other", Heard())
    pretrain(pretraining(2), start, tmp_path / "on", Heard())
    assert unmask.load(tmp_path / "on" / "model").model.heads["mlm"].adaptive.rank_of.tolist() == ranks  # type: ignore[union-attr]


@pytest.mark.slow  # the loop is the same as without
def test_resumed_runs_equal_unbroken_ones(tmp_path: Path) -> None:
    text = Inputs(text=(str(repeating(tmp_path / "text.txt")),))
    pretrain(pretraining(20), text, tmp_path / "whole", Heard())
    with pytest.raises(Enough):
        pretrain(pretraining(20), text, tmp_path / "broken", Heard(stop=13))
    pretrain(pretraining(20), text, tmp_path / "broken", Heard(), resume=True)
    pairs = Texts(train=(str(letters(tmp_path / "letters.tsv", 200)),))
    settings = translating("train.updates=20", "train.save_every=10", "train.evaluate_every=10", "batch_tokens=200")
    train_translation(settings, pairs, tmp_path / "whole-pairs", Listener())
    with pytest.raises(Enough):
        train_translation(settings, pairs, tmp_path / "broken-pairs", Stops())
    train_translation(settings, pairs, tmp_path / "broken-pairs", Listener(), resume=True)
    for kind in ("", "-pairs"):
        whole, broken = (tmp_path / f"{name}{kind}" / "model" / "model.safetensors" for name in ("whole", "broken"))
        assert whole.read_bytes() == broken.read_bytes()


def test_what_the_settings_refuse(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="set smoothing to 0"):
        translating("smoothing=0.1")
    texts = Texts(train=(str(letters(tmp_path / "letters.tsv", 200)),))
    settings = translating('model.other.output={"kind": "adaptive", "cutoffs": [5000]}')
    with pytest.raises(SettingsError, match="leaves nothing of a vocabulary"):
        train_translation(settings, texts, tmp_path / "run", Listener())
    with pytest.raises(SettingsError, match="set tie to 'none'"):
        train_translation(translating("model.tie=all"), texts, tmp_path / "run", Listener())
    inputs = Inputs(text=(str(repeating(tmp_path / "text.txt")),))
    with pytest.raises(SettingsError, match="leaves nothing of a vocabulary"):
        pretrain(pretraining(2, 'model.output={"cutoffs": [5000]}'), inputs, tmp_path / "pre", Heard())
    assert not (tmp_path / "run").exists()
