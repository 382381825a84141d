"""BERT's vectors of a word against CBOW's: does the same word get different vectors for different senses?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.bundle import load
from unmask.lab.baselines import Cbow
from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.daily import CLS, SEP, SPECIAL, VOCAB, daily, windows
from unmask.lab.kit.effects import Effect, named, sided
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.gaps import LENGTH, bert_guesses, cloze, gaps, guesses, summed
from unmask.lab.kit.mlm import MlmRun, pretrained
from unmask.lab.kit.pairing import conclude_arm
from unmask.lab.kit.senses import Use, across_compounds, chinese, distances, english, layers_of, same_sense, separation
from unmask.lab.pictures import Lines, Point, Series
from unmask.lab.words import Text, both
from unmask.models.bert import Bert
from unmask.nn.batch import Batch

MODELS = ("mini-zh", "minilm")
RATE = 2e-3
Module = TypeVar("Module", bound=nn.Module)


def separated(name: str, most: int) -> Record:
    """For each word and layer of a published BERT, how well senses are told apart."""
    uses = list(chinese(most)) if name == "mini-zh" else english()
    layers = layers_of(load(name), uses)
    return {"words": {word: _of_word(word, uses, layers) for word in dict.fromkeys(use.word for use in uses)}}


def _of_word(word: str, uses: list[Use], layers: list[Tensor]) -> Record:
    numbers = [number for number, use in enumerate(uses) if use.word == word]
    own = [uses[number] for number in numbers]
    apart = [distances(vectors[numbers]) for vectors in layers]
    compounds = {use.compound for use in own}
    return {
        "uses": len(own),
        "compounds": {name: sum(use.compound == name for use in own) for name in sorted(compounds)},
        "auc": [separation(one, own, same_sense) for one in apart],
        "across": [separation(one, own, across_compounds) for one in apart],
        "largest": [float(one.max()) for one in apart],
    }


def cbow(how: Fit, seed: int) -> Cbow:
    """CBOW, each character guessed from five on either side."""
    seeded(seed)
    model, rng = Cbow(VOCAB, 128, window=5), np.random.default_rng(seed)

    def loss(_: int) -> Tensor:
        texts = windows(daily().learned, LENGTH, 64, rng)
        batch = Batch.of([[CLS, *text.tolist(), SEP] for text in texts])
        return F.cross_entropy(model(batch), batch.ids.where(batch.ids >= SPECIAL, -100))

    fit(model, loss, how)
    return model


def bert(how: Fit, seed: int) -> Bert:
    """A BERT of two layers of the same width."""
    return pretrained(MlmRun(how, length=LENGTH, batch=64), seed)[0]


def timed(train: Callable[[Fit, int], Module], seconds: float, seed: int) -> tuple[Module, Record]:
    """A model trained for so many seconds, as far as a short trial can tell how many updates these are."""
    train(Fit(1, RATE), seed)
    began = time.perf_counter()
    train(Fit(5, RATE), seed)
    updates = max(5, round(5 * seconds / (time.perf_counter() - began)))
    began = time.perf_counter()
    model = train(Fit(updates, RATE), seed)
    return model, {"updates": updates, "train_seconds": round(time.perf_counter() - began, 1)}


def cbow_trial(seconds: float, most: int, count: int, seed: int) -> Record:
    """CBOW: its guesses, and the distances between the vectors it has for the uses of a word."""
    model, how = timed(cbow, seconds, seed)

    def logits(batch: Batch, rows: Tensor) -> Tensor:
        return model(batch).index_select(0, rows)

    uses, known = list(chinese(most)), daily()
    vectors = model.embedding.weight.detach().double()[[known.ids(use.word)[0] for use in uses]]
    words = [_of_word(word, uses, [vectors]) for word in dict.fromkeys(use.word for use in uses)]
    return {
        **how,
        "gaps": count,
        **summed("gap", guesses(logits, [cloze(gap) for gap in gaps(count)])),
        "auc": sorted({one["auc"][0] for one in words}),
        "largest": max(one["largest"][0] for one in words),
    }


def bert_trial(seconds: float, count: int, seed: int) -> Record:
    """BERT for as long: its guesses."""
    model, how = timed(bert, seconds, seed)
    return {**how, "gaps": count, **summed("gap", bert_guesses(model, [cloze(gap) for gap in gaps(count)]))}


def _trials(plan: Plan) -> list[Trial]:
    most, seconds, count = plan.at(4, 20), plan.at(1, 60), plan.at(64, 2000)
    trials = [Trial(name, partial(separated, name, most), {"model": name, "most": most}) for name in MODELS]
    for seed in range(plan.seeds):
        told = {"seconds": seconds, "gaps": count, "seed": seed}
        trials.append(Trial(named("CBOW", seed), partial(cbow_trial, seconds, most, count, seed), told))
        trials.append(Trial(named("BERT", seed), partial(bert_trial, seconds, count, seed), told))
    return trials


def conclude_senses(records: Mapping[str, Record]) -> Conclusion:
    """Senses must be told apart in both models, and in Chinese across compounds too."""
    found = {
        ("minilm", "auc"): conclude_words(records["minilm"], "auc"),
        ("mini-zh", "auc"): conclude_words(records["mini-zh"], "auc"),
        ("mini-zh", "across"): conclude_words(records["mini-zh"], "across"),
    }
    tables = [record for name, record in records.items() if name.startswith("CBOW")]
    largest = max(record["largest"] for record in tables)
    one_vector = largest == 0 and all(record["auc"] == [0.5] for record in tables)
    verdict = conclude_verdict({key: last[-1] for key, last in found.items()}) if one_vector else Verdict.NOT_SUPPORTED
    last = {key: values[-1] for key, values in found.items()}
    right = {arm: conclude_arm(records, arm, "gap_right", 0.01) for arm in ("CBOW", "BERT")}
    count = tables[0]["gaps"]
    seconds = max(record["train_seconds"] for name, record in records.items() if "seed" in name)
    says = Text(
        f"In the last layer two uses of one sense lie closer than two of different senses with probability "
        f"{last['mini-zh', 'auc']} in mini-zh and {last['minilm', 'auc']} in minilm (0.5 is chance; 95 % bootstrap "
        f"intervals over words); across different compounds {last['mini-zh', 'across']} in mini-zh. CBOW's distances "
        f"are at most {largest:g}{', so its probability is exactly 0.5' if one_vector else ', which must be 0'}. "
        f"Trained for {seconds:.0f} s, CBOW guesses {right['CBOW'].mean:.1f} % of {count} hidden characters, a 2-layer "
        f"BERT {right['BERT'].mean:.1f} %.",
        f"在最后一层，同义的两次出现比异义的两次更近的概率：mini-zh 为 {last['mini-zh', 'auc']}，minilm 为 "
        f"{last['minilm', 'auc']}（0.5 为随机；按词自助抽样的 95 % 区间）；只比较不同的词时，mini-zh 为 "
        f"{last['mini-zh', 'across']}。CBOW 的距离最大为 {largest:g}"
        f"{'，所以概率恰为 0.5' if one_vector else '，而它应当为 0'}。训练 {seconds:.0f} 秒后，"
        f"CBOW 猜对 {count} 个被遮字中的 {right['CBOW'].mean:.1f} %，2 层 BERT 猜对 {right['BERT'].mean:.1f} %。",
    )
    return Conclusion(verdict, says, (conclude_layers(found),), conclude_table(records))


def conclude_words(record: Record, value: str) -> list[Effect]:
    """For each layer the mean over words, with its 95 % bootstrap interval."""
    rng, words = np.random.default_rng(0), np.array([one[value] for one in record["words"].values()])  # (words, layers)
    drawn = words[rng.integers(len(words), size=(10_000, len(words)))].mean(1)
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    return [Effect(*map(float, one)) for one in zip(words.mean(0), low, high, strict=True)]


def conclude_verdict(last: Mapping[tuple[str, str], Effect]) -> Verdict:
    """By the method's rule."""
    sides = {key: sided(effect, 0.5) for key, effect in last.items()}
    models = {sides["minilm", "auc"], sides["mini-zh", "auc"]}
    if len(models) > 1:
        return Verdict.DEPENDS
    if models == {Verdict.SUPPORTED} and sides["mini-zh", "across"] != Verdict.SUPPORTED:
        return Verdict.DEPENDS
    return models.pop()


def conclude_layers(found: Mapping[tuple[str, str], list[Effect]]) -> Lines:
    """Separation layer by layer."""
    names = {
        ("mini-zh", "auc"): both("mini-zh"),
        ("mini-zh", "across"): Text("mini-zh, across compounds", "mini-zh，跨词"),
        ("minilm", "auc"): both("minilm"),
    }
    series = [
        Series(name, tuple(effect.point(layer) for layer, effect in enumerate(found[key])))
        for key, name in names.items()
    ]
    longest = max(map(len, found.values())) - 1
    series.append(Series(both("CBOW"), (Point(0, 0.5), Point(longest, 0.5))))
    return Lines(
        Text("How well a word's vectors tell its senses apart", "词向量能把词义分得多开"),
        Text("layer (0: embeddings)", "层（0 为嵌入）"),
        Text("P(same sense is closer)", "同义更近的概率"),
        tuple(series),
        Text(
            "CBOW stays at 0.5, which is chance: one vector a word.", "CBOW 停在 0.5，即随机水平：每个词只有一个向量。"
        ),
    )


def conclude_table(records: Mapping[str, Record]) -> Table:
    """Word by word, in the last layer."""
    columns = (
        Text("model", "模型"),
        Text("word", "词"),
        Text("uses", "出现次数"),
        Text("P(same sense is closer)", "同义更近的概率"),
        Text("across compounds", "跨词"),
    )
    rows = [
        (name, word, str(one["uses"]), f"{one['auc'][-1]:.3f}", f"{one['across'][-1]:.3f}")
        for name in MODELS
        for word, one in records[name]["words"].items()
    ]
    return Table(columns, tuple(rows))


PARTS = (Part("two-senses", _trials, conclude_senses),)
