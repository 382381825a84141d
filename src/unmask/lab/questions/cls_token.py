"""[CLS]: how evenly it looks, and how well it serves as the vector of a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from statistics import fmean

from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.effects import Effect, by_seed, named, paired
from unmask.lab.kit.looking import MODELS, bert_of, bundle_of, interval, labelled_texts, weights_of
from unmask.lab.kit.telling import conclude_bars, conclude_compared, conclude_table
from unmask.lab.kit.tuning import Marked, Tuning, headlines, tuned
from unmask.lab.pictures import Bars, Lines, Point, Series
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.models.init import build_model, start_as_sinusoids
from unmask.models.settings import BertSettings

FIGURES = ("cls_even", "word_even", "cls_self", "word_self", "into_cls")
ARMS = {
    "cls": Text("[CLS]", "[CLS]"),
    "mean": Text("mean", "均值"),
    "max": Text("maximum", "最大值"),
    "first": Text("first character", "第一个字"),
}
STARTS = {
    "mini-zh": Text("from mini-zh", "从 mini-zh 起步"),
    "new": Text("from a new model", "从新模型起步"),
}
POINT = 0.01


def look(name: str, count: int) -> Record:
    """Evenness, weight on itself and weight received, of [CLS] and of ordinary tokens, layer by layer."""
    texts = labelled_texts("movie-reviews" if name == "minilm" else "thucnews-10k", count)
    layers: list[list[dict[str, float]]] = [
        [_figures(one) for one in found] for found in weights_of(bundle_of(name), bert_of(name), texts)
    ]
    found: Record = {"texts": len(texts), "layers": len(layers[0])}
    for figure in FIGURES:
        found[figure] = [interval([text[layer][figure] for text in layers]) for layer in range(len(layers[0]))]
    for gap in ("even", "self"):
        values = [fmean(layer[f"cls_{gap}"] - layer[f"word_{gap}"] for layer in text) for text in layers]
        found[f"{gap}_gap"] = interval(values)
    found["received"] = interval([fmean(layer["into_cls"] for layer in text) for text in layers])
    return found


def _figures(weights: Tensor) -> dict[str, float]:
    """Of one layer's heads (N, T, T) on one text; the first token is [CLS], the last is [SEP]."""
    tokens = weights.shape[-1]
    even = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean(0) / math.log(tokens)  # (T,)
    own = weights.diagonal(dim1=1, dim2=2).mean(0)
    return {
        "cls_even": float(even[0]),
        "word_even": float(even[1:-1].mean()),
        "cls_self": float(own[0]),
        "word_self": float(own[1:-1].mean()),
        "into_cls": float(weights[:, :, 0].mean()) * tokens,
    }


def pooled(start: str, arm: str, count: int, seed: int) -> Record:
    """Accuracy on headlines after fine-tuning, with a text read in one way."""
    bundle = bundle_of("mini-zh")
    parts: list[Marked] = []
    for part, number in (("train", count), ("test", count)):
        texts, labels = headlines(part, number)
        ids = [encoding.ids[arm == "first" :] for encoding in bundle.tokenizer.encode_batch(texts)]
        parts.append(Marked(ids, [[0] * len(one) for one in ids], labels))
    pooling = "cls" if arm == "first" else arm
    model, how = bert_of("mini-zh"), Tuning(2, 3e-4, pooling=pooling)
    if start == "new":
        model, how = fresh(bundle.tokenizer.vocab_size, seed), Tuning(4, 1e-3, pooling=pooling)
    return {"score": tuned(model, parts[0], parts[1], how, seed), "learned": count}


def fresh(vocab: int, seed: int) -> Bert:
    """A small model that has learned nothing."""
    sizes = {"vocab_size": vocab, "hidden_size": 128, "num_layers": 2, "num_heads": 4, "ffn_size": 512}
    dropout = {"embedding": 0.0, "residual": 0.0, "attention": 0.0}
    model = build_model(BertSettings.parse({**sizes, "max_length": 128, "dropout": dropout}), seed=seed)
    assert isinstance(model, Bert)
    start_as_sinusoids(model)
    return model


def _attention_trials(plan: Plan) -> list[Trial]:
    count = plan.at(10, 200)
    return [Trial(name, partial(look, name, count), {"model": name, "texts": count}) for name in MODELS]


def _pooling_trials(plan: Plan) -> list[Trial]:
    count = plan.at(96, 2000)
    return [
        Trial(
            named(f"{start}, {arm}", seed),
            partial(pooled, start, arm, count, seed),
            {"start": start, "pooling": arm, "texts": count, "seed": seed},
        )
        for start in STARTS
        for arm in ARMS
        for seed in range(plan.seeds)
    ]


def conclude_attention(records: Mapping[str, Record]) -> Conclusion:
    """Fairer: more even than ordinary tokens, and with less weight on itself."""
    even = {name: records[name]["even_gap"][0] > 0 for name in MODELS}
    less = {name: records[name]["self_gap"][0] < 0 for name in MODELS}
    if all(even.values()) and all(less.values()):
        verdict = Verdict.SUPPORTED
    else:
        verdict = Verdict.DEPENDS if any(even.values()) else Verdict.NOT_SUPPORTED

    def told(name: str) -> Text:
        one = records[name]
        gap, own = ("{:+.3f} ({:+.3f} – {:+.3f})".format(*one[what]) for what in ("even_gap", "self_gap"))
        took = "{:.1f}".format(one["received"][0])
        return Text(
            f"in {name} the row of [CLS] is {'more' if even[name] else 'less'} even than that of an ordinary token "
            f"({gap}), "
            f"it gives itself {'less' if less[name] else 'more'} weight ({own}), and it receives {took} times an "
            "even share",
            f"{name} 中 [CLS] 一行比普通词{'更' if even[name] else '更不'}均匀（{gap}），"
            f"给自己的权重更{'小' if less[name] else '大'}（{own}），"
            f"得到的权重是平均份额的 {took} 倍",
        )

    first, second = (told(name) for name in MODELS)
    says = Text(
        f"Averaged over layers and heads, {first.en}; {second.en}. Evenness is entropy over log n, from 0 to 1.",
        f"按层和头平均，{first.zh}；{second.zh}。均匀程度为熵除以 log n，从 0 到 1。",
    )
    pictures = tuple(
        Lines(
            Text(f"How evenly tokens look: {name}", f"看得有多均匀：{name}"),
            Text("layer", "层"),
            Text("entropy / log n", "熵 / log n"),
            tuple(
                Series(label, tuple(Point(n + 1, *values) for n, values in enumerate(records[name][figure])))
                for figure, label in (
                    ("cls_even", Text("[CLS]", "[CLS]")),
                    ("word_even", Text("ordinary tokens", "普通词")),
                )
            ),
            Text("1 is perfectly even; whiskers are intervals over texts.", "1 表示完全均匀；须线为对文本的区间。"),
        )
        for name in MODELS
    )
    return Conclusion(verdict, says, pictures)


def conclude_pooling(records: Mapping[str, Record]) -> Conclusion:
    """[CLS] against the first character, and against the mean."""
    effects: dict[str, tuple[Effect, Effect]] = {}
    for start in STARTS:
        own = by_seed(records, f"{start}, cls", "score")
        effects[start] = (
            paired(own, by_seed(records, f"{start}, first", "score")),
            paired(own, by_seed(records, f"{start}, mean", "score")),
        )
    good = [first.low > 0 and not mean.high < -POINT for first, mean in effects.values()]
    bad = [first.high < 0 or mean.high < -POINT for first, mean in effects.values()]
    hidden = all(effect.low <= 0 <= effect.high for pair in effects.values() for effect in pair)
    if all(good):
        verdict = Verdict.SUPPORTED
    elif all(bad):
        verdict = Verdict.NOT_SUPPORTED
    else:
        verdict = Verdict.NOT_VISIBLE if hidden else Verdict.DEPENDS
    told = {start: [conclude_compared(effect) for effect in pair] for start, pair in effects.items()}
    says = Text(
        "; ".join(
            f"{STARTS[start].en}: accuracy with [CLS] is {first.en} than with the first character, and {mean.en} "
            "than with the "
            f"mean"
            for start, (first, mean) in told.items()
        )
        + ". Figures are shares of right answers.",
        "；".join(
            f"{STARTS[start].zh}：[CLS] 的准确率比取第一个字{first.zh}，比均值{mean.zh}"
            for start, (first, mean) in told.items()
        )
        + "。数值为正确率。",
    )
    pictures = conclude_accuracies(records)
    arms = {
        f"{start}, {arm}": Text(f"{STARTS[start].en}: {label.en}", f"{STARTS[start].zh}：{label.zh}")
        for start in STARTS
        for arm, label in ARMS.items()
    }
    table = conclude_table(records, arms, "mini-zh, cls", {"score": Text("accuracy", "准确率")})
    return Conclusion(verdict, says, pictures, table)


def conclude_accuracies(records: Mapping[str, Record]) -> tuple[Bars, ...]:
    """A picture for each start."""
    return tuple(
        conclude_bars(
            records,
            {f"{start}, {arm}": label for arm, label in ARMS.items()},
            "score",
            Text(f"Headlines, {STARTS[start].en}", f"新闻标题，{STARTS[start].zh}"),
            Text("accuracy", "准确率"),
            Text("Higher is better; whiskers are 95 % intervals over seeds.", "越高越好；须线为各种子的 95 % 区间。"),
        )
        for start in STARTS
    )


PARTS = (Part("attention", _attention_trials, conclude_attention), Part("pooling", _pooling_trials, conclude_pooling))
