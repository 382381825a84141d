"""What characters outside the vocabulary cost, what a fallback to bytes saves, and what whole-word masking gives."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.data.masking import MaskingSettings, MaskVocabulary, mask_tokens
from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.classify import Examples, accuracy, batches_of, logits
from unmask.lab.kit.daily import CLS, MASK, SEP, SPECIAL, UNK, VOCAB, Hidden, daily, windows
from unmask.lab.kit.effects import Effect, by_seed, named, paired, sided, spread
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.mlm import mlm_loss, settings_of
from unmask.lab.kit.shown import conclude_points
from unmask.lab.kit.timing import interleaved
from unmask.lab.pictures import Bars, Point, Series
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.init import build_model, start_as_sinusoids
from unmask.models.settings import ClassifySettings
from unmask.nn.batch import Batch
from unmask.text import Tokenizer
from unmask.text.scripts import HAN
from unmask.text.training import VocabularySettings, train_tokenizer
from unmask.text.words import segment

TEXTS = ("People's Daily", "thucnews-10k", "zh-reviews")
KINDS = {"mini-zh": "mini-zh, 8,000", "plain": "4,000", "fallback": "4,000 + bytes"}
UNITS = ("token", "word")
#: A character's id and whether it begins a word, in one number.
_BEGINS = 1 << 16


@cache
def halves() -> tuple[list[str], list[str]]:
    """People's Daily in two halves, line by line."""
    lines = [one for one in (fetch("people-daily") / "text.txt").read_text(encoding="utf-8").split("\n") if one]
    return lines[: len(lines) // 2], lines[len(lines) // 2 :]


@cache
def vocabulary(name: str) -> Tokenizer:
    """mini-zh's, or one learned from the first half: plain, or with a fallback to bytes."""
    if name == "mini-zh":
        return Tokenizer.from_folder(fetch("mini-zh"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "half.txt"
        path.write_text("\n".join(halves()[0]), encoding="utf-8")
        # WordPiece would give each character a second token, with ##, that Chinese text never uses.
        settings = VocabularySettings(kind="bpe", size=4000, character_share=0.95, byte_fallback=name == "fallback")
        return train_tokenizer([path], settings)


def some_texts(name: str) -> list[str]:
    """The second half, or all texts of a labelled set."""
    if name == TEXTS[0]:
        return halves()[1]
    found = []
    for part in ("train", "dev", "test"):
        with open(fetch(name) / f"{part}.csv", encoding="utf-8", newline="") as file:
            found += [row["text"] for row in csv.DictReader(file)]
    return found


def unknown(name: str, rounds: int) -> Record:
    """What three vocabularies make of texts, and how long two of them take."""
    texts = some_texts(name)
    record: Record = {"texts": len(texts), "characters": sum(len("".join(text.split())) for text in texts)}
    for kind in KINDS:
        tokenizer = vocabulary(kind)
        found = {"tokens": 0, "unknown": 0, "lost": 0, "texts_with": 0, "not_restored": 0}
        for text, one in zip(texts, tokenizer.encode_batch(texts, special_tokens=False, offsets=True), strict=True):
            gone = [
                end - start for id, (start, end) in zip(one.ids, one.offsets, strict=True) if id == tokenizer.unk_id
            ]
            found["tokens"] += len(one)
            found["unknown"] += len(gone)
            found["lost"] += sum(gone)
            found["texts_with"] += bool(gone)
            if kind == "fallback":
                back = tokenizer.decode(one.ids)
                found["not_restored"] += "".join(back.split()) != "".join(tokenizer.normalize(text).split())
        record[kind] = found
    runs = {kind: partial(vocabulary(kind).encode_batch, texts) for kind in ("plain", "fallback")}
    return {**record, "seconds": interleaved(runs, rounds)}


def words_of(texts: Sequence[str]) -> set[str]:
    """The different words with a Chinese character."""
    return {text[start:end] for text in texts for start, end in segment(text) if HAN.search(text[start:end])}


def unseen_words() -> Record:
    """Words of the second half that the first has not: how many hold a character without a token?"""
    first, second = halves()
    words = sorted(words_of(second) - words_of(first))
    record: Record = {"words": len(words)}
    for kind in KINDS:
        tokenizer = vocabulary(kind)
        coded = tokenizer.encode_batch(words, special_tokens=False)
        record[kind] = sum(tokenizer.unk_id in one.ids for one in coded)
    held = [
        word
        for word, one in zip(words, vocabulary("plain").encode_batch(words), strict=True)
        if vocabulary("plain").unk_id in one.ids
    ]
    return {**record, "examples": held[:: max(1, len(held) // 8)][:8]}


@cache
def marked(part: str) -> tuple[np.ndarray, ...]:
    """The articles as ids that also say where words begin."""
    found = []
    for article in getattr(daily(), part):
        text = "".join("□" if id == UNK else daily().characters[id] for id in article)
        begins = np.ones(len(text), dtype=np.int64)
        for start, end in segment(text):
            begins[start + 1 : end] = 0
        found.append(article + _BEGINS * begins)
    return tuple(found)


def hidden(texts: Sequence[np.ndarray], settings: MaskingSettings, rng: np.random.Generator) -> Hidden:
    """Hide characters, or whole words, of marked texts."""
    known = MaskVocabulary.of(VOCAB, MASK, range(SPECIAL))
    sequences, rows, targets, first = [], [], [], 0
    for text in texts:
        ids = np.concatenate([[CLS], text % _BEGINS, [SEP]]).astype(np.int64)
        begins = np.concatenate([[True], text >= _BEGINS, [True]])
        masked = mask_tokens(ids, ids >= SPECIAL, begins, known, settings, rng)
        sequences.append(masked.ids.tolist())
        rows.append(masked.places + first)
        targets.append(masked.targets)
        first += len(ids)
    where, what = torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(targets))
    return Hidden(Batch.of(sequences), where, what)


@torch.inference_mode()
def guessed(model: Bert, unit: str, batches: int) -> float:
    """The share of hidden characters that a model guesses, always the same ones."""
    rng, right, total = np.random.default_rng(12345), 0, 0
    settings = MaskingSettings.parse({"unit": unit})
    for _ in range(batches):
        batch = hidden(windows(marked("held_out"), 32, 64, rng), settings, rng)
        found = model.masked_token_logits(model(batch.batch).sequence.index_select(0, batch.rows))
        right, total = right + int((found.argmax(-1) == batch.targets).sum()), total + len(batch.targets)
    return right / total


@cache
def headlines(part: str) -> tuple[Examples, tuple[str, ...]]:
    """thucnews in the newspaper's characters."""
    with open(fetch("thucnews-10k") / f"{part}.csv", encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    labels = tuple(sorted({label for _, label in rows}))
    sequences = [[CLS, *daily().ids("".join(text.split()))[:38], SEP] for text, _ in rows]
    return Examples(sequences, [labels.index(label) for _, label in rows]), labels


def masked_by(unit: str, updates: int, texts: int, seed: int) -> Record:
    """Pre-train with single characters or whole words hidden, measure both ways, fine-tune on headlines."""
    generator, rng = seeded(seed), np.random.default_rng(seed)
    model, how = build_model(settings_of({}), seed=seed), MaskingSettings.parse({"unit": unit})
    assert isinstance(model, Bert)
    start_as_sinusoids(model)

    def loss(_: int) -> Tensor:
        return mlm_loss(model, hidden(windows(marked("learned"), 32, 64, rng), how, rng))

    fit(model, loss, Fit(updates, rate=2e-3))
    record: Record = {f"guessed_{one}": guessed(model, one, max(1, updates // 100)) for one in UNITS}
    train, labels = headlines("train")
    head = ClassifySettings(labels=labels, pooling="cls", dropout=0.0)
    classifier = build_model(model.settings.replace(heads=(head,)), seed=seed)
    assert isinstance(classifier, Bert)
    classifier.encoder.load_state_dict(model.encoder.state_dict())
    draw = batches_of(train.some(list(range(texts))), 32)

    def task_loss(number: int) -> Tensor:
        some = draw(number, generator)
        return F.cross_entropy(logits(classifier, some), torch.tensor(some.labels))

    fit(classifier, task_loss, Fit(3 * texts // 32))
    return {**record, "headlines": accuracy(classifier, headlines("test")[0])}


def _unknown_trials(plan: Plan) -> list[Trial]:
    rounds = plan.at(1, 5)
    found = [Trial(name, partial(unknown, name, rounds), {"rounds": rounds}) for name in TEXTS]
    return [*found, Trial("unseen words", partial(unseen_words))]


def _masking_trials(plan: Plan) -> list[Trial]:
    updates, texts = plan.at(4, 800), plan.at(64, 2000)
    return [
        Trial(named(unit, seed), partial(masked_by, unit, updates, texts, seed), {"updates": updates, "texts": texts})
        for seed in range(plan.seeds)
        for unit in UNITS
    ]


def conclude_unknown(records: Mapping[str, Record]) -> Conclusion:
    """Rare words, rare characters, and what bytes cost."""
    words = records["unseen words"]
    share = words["plain"] / max(1, words["words"])
    verdict = Verdict.SUPPORTED if share > 0.5 else Verdict.NOT_SUPPORTED if share < 0.1 else Verdict.DEPENDS
    head = {
        Verdict.SUPPORTED: Text("Most rare words become [UNK]", "多数生僻词会变成 [UNK]"),
        Verdict.NOT_SUPPORTED: Text("Rare words do not become [UNK]", "生僻词并不会变成 [UNK]"),
    }.get(verdict, Text("Some rare words become [UNK]", "一部分生僻词会变成 [UNK]"))
    rates = {name: 1000 * records[name]["plain"]["unknown"] / records[name]["plain"]["tokens"] for name in TEXTS}
    more = {name: records[name]["fallback"]["tokens"] / records[name]["plain"]["tokens"] - 1 for name in TEXTS}
    slower = {}
    for name in TEXTS:
        seconds = records[name]["seconds"]
        slower[name] = spread(a / b for a, b in zip(seconds["fallback"], seconds["plain"], strict=True))
    broken = sum(records[name]["fallback"]["not_restored"] + records[name]["fallback"]["lost"] for name in TEXTS)
    kept = (
        Text("With a fallback to bytes not one character is lost", "用字节回退，一个字也不丢")
        if broken == 0
        else Text(f"The fallback to bytes does NOT restore {broken} texts", f"字节回退有 {broken} 处没有还原")
    )
    english = ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
    chinese = "，".join(f"{name} {rate:.1f}" for name, rate in rates.items())
    cost = ", ".join(f"{100 * value:+.1f} %" for value in more.values())
    times = ", ".join(f"{one.mean:.2f}" for one in slower.values())
    says = Text(
        f"{head.en}: of {words['words']:,} words that only the second half has, {words['plain']:,} ({share:.1%}) hold "
        f"a character without a token ({words['mini-zh'] / max(1, words['words']):.1%} with mini-zh's vocabulary). "
        f"[UNK] per 1,000 tokens: {english}. {kept.en}, for {cost} tokens and {times} times the time to encode.",
        f"{head.zh}：只在后一半出现的 {words['words']:,} 个词中，{words['plain']:,} 个（{share:.1%}）含有词表外的字"
        f"（mini-zh 的词表为 {words['mini-zh'] / max(1, words['words']):.1%}）。"
        f"每千个词元中的 [UNK]：{chinese}。{kept.zh}，词元数 {cost}，编码用时为 {times} 倍。",
    )
    columns = [Text("texts", "文本"), Text("vocabulary", "词表"), Text("tokens", "词元"), Text("[UNK]", "[UNK]")]
    columns += [Text("characters lost", "丢失的字"), Text("texts with one", "含 [UNK] 的文本")]
    rows = tuple(
        (
            *(name, KINDS[kind], f"{records[name][kind]['tokens']:,}", f"{records[name][kind]['unknown']:,}"),
            f"{records[name][kind]['lost']:,}",
            f"{records[name][kind]['texts_with'] / max(1, records[name]['texts']):.1%}",
        )
        for name in TEXTS
        for kind in KINDS
    )
    return Conclusion(verdict, says, (conclude_rates(records),), Table(tuple(columns), rows))


def conclude_rates(records: Mapping[str, Record]) -> Bars:
    """Unknown tokens by texts and vocabularies."""
    return Bars(
        Text("Unknown tokens", "未知词元"),
        Text("[UNK] per 1,000 tokens", "每千个词元中的 [UNK]"),
        (Text("People's Daily, second half", "人民日报后一半"), Text("headlines", "标题"), Text("reviews", "评论")),
        tuple(
            Series(
                Text(name, name.replace("bytes", "字节")),
                tuple(
                    Point(place, 1000 * records[text][kind]["unknown"] / records[text][kind]["tokens"])
                    for place, text in enumerate(TEXTS)
                ),
            )
            for kind, name in KINDS.items()
        ),
        Text(
            "With a fallback to bytes there is no unknown token by construction.", "有字节回退时，按定义没有未知词元。"
        ),
    )


def conclude_head(verdict: Verdict) -> Text:
    """What the verdict means, in words."""
    return {
        Verdict.SUPPORTED: Text("Hiding whole words helps the task", "遮全词对任务有帮助"),
        Verdict.NOT_SUPPORTED: Text("Hiding whole words hurts the task", "遮全词对任务有害"),
        Verdict.DEPENDS: Text(
            "Each way of hiding is best at what it was trained for, and the task shows nothing",
            "两种遮法各自擅长自己训练的那套题，任务上看不出差别",
        ),
    }.get(verdict, Text("The task shows no difference", "任务上看不出差别"))


def conclude_masking(records: Mapping[str, Record]) -> Conclusion:
    """Whole words minus single characters, on the task; then on both masked sets."""
    effects = {
        name: paired(by_seed(records, "word", name), by_seed(records, "token", name))
        for name in ("headlines", "guessed_token", "guessed_word")
    }
    verdict = sided(effects["headlines"])
    own = sided(effects["guessed_word"]) == Verdict.SUPPORTED and effects["guessed_token"].high < 0
    if verdict == Verdict.NOT_VISIBLE and own:
        verdict = Verdict.DEPENDS
    head = conclude_head(verdict)
    said = {name: conclude_points(one) for name, one in effects.items()}
    says = Text(
        f"{head.en}: headline accuracy with whole words minus single characters is {said['headlines'].en}. In "
        f"guessing hidden single characters the difference is {said['guessed_token'].en}, in guessing hidden whole "
        f"words {said['guessed_word'].en}.",
        f"{head.zh}：标题准确率，全词减单字为{said['headlines'].zh}。猜被遮的单字，两者相差"
        f"{said['guessed_token'].zh}；猜被遮的全词，相差{said['guessed_word'].zh}。",
    )
    names = {
        "guessed_token": Text("guess single characters", "猜单字"),
        "guessed_word": Text("guess whole words", "猜全词"),
        "headlines": Text("headlines", "标题分类"),
    }
    arms = {"token": Text("single characters hidden", "按单字遮"), "word": Text("whole words hidden", "按全词遮")}
    picture = Bars(
        Text("Two ways of hiding", "两种遮法"),
        Text("accuracy, %", "准确率，%"),
        tuple(names.values()),
        tuple(
            Series(
                name,
                tuple(
                    Effect(*(100 * value for value in spread(by_seed(records, arm, score)))).point(place)
                    for place, score in enumerate(names)
                ),
            )
            for arm, name in arms.items()
        ),
        Text(
            "Beside a hidden single character the rest of its word may be seen; of a hidden word nothing is.",
            "单字被遮时，同词的其余字可能看得见；全词被遮时一个字也看不见。",
        ),
    )
    return Conclusion(verdict, says, (picture,))


PARTS = (
    Part("unknown-characters", _unknown_trials, conclude_unknown),
    Part("whole-word-masking", _masking_trials, conclude_masking),
)
