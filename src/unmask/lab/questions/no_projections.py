"""Attention without W_Q, W_K and W_V: does every token look at itself, and what does it cost?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.daily import CLS, SEP, daily, windows
from unmask.lab.kit.effects import by_seed, named, paired, sided
from unmask.lab.kit.looking import MODELS, bert_of, bundle_of, interval, labelled_texts, stretches
from unmask.lab.kit.short_mlm import LENGTH, short_run, short_trial
from unmask.lab.kit.telling import conclude_compared, conclude_gaps, conclude_lost, conclude_table, conclude_together
from unmask.lab.pictures import Lines, Point, Series
from unmask.lab.words import Text, both
from unmask.models.bert import Bert
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.batch import Batch
from unmask.nn.record import record_attention

WAYS = {
    "trained": Text("trained matrices", "训练好的矩阵"),
    "slices": Text("q = k = x, slices of d/m", "q = k = x，d/m 维切片"),
    "full": Text("q = k = x, full width", "q = k = x，完整宽度"),
}
ARMS: dict[str, dict[str, Any]] = {
    "separate": {},
    "none": {"projections": "none"},
    "none, wider": {"projections": "none", "ffn_size": 704},
}
LABELS = {
    "separate": Text("separate matrices", "独立矩阵"),
    "none": Text("none", "没有矩阵"),
    "none, wider": Text("none, feed-forward 704", "没有矩阵，前馈 704"),
}


@torch.inference_mode()
def diagonal(name: str, count: int) -> Record:
    """The weight that tokens give to themselves, layer by layer, in a real model and without its matrices."""
    bundle, model = bundle_of(name), bert_of(name)
    texts = labelled_texts("movie-reviews", count) if name == "minilm" else stretches(count, 64)
    heads = model.settings.num_heads
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    even = []
    for text in texts:
        batch = bundle.batch([text])
        entered: list[Tensor] = []
        hooks = [module.register_forward_pre_hook(partial(_keep, entered)) for module in _attentions(model)]
        with record_attention(model.encoder) as trace:
            model.encoder(batch)
        for hook in hooks:
            hook.remove()
        found["trained"].append([_mass(record.weights[0]) for record in trace.attention.values()])
        found["slices"].append([_bare(x.unflatten(1, (heads, -1)).transpose(0, 1)) for x in entered])
        found["full"].append([_bare(x[None]) for x in entered])
        even.append(1 / batch.layout.max_length)
    return {
        **{way: [fmean(layer) for layer in zip(*rows, strict=True)] for way, rows in found.items()},
        **{f"{way} mean": interval([fmean(row) for row in rows]) for way, rows in found.items()},
        "even": fmean(even),
        "texts": len(texts),
    }


def _attentions(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]


def _keep(entered: list[Tensor], module: nn.Module, args: tuple[Tensor, ...]) -> None:
    entered.append(args[0])


def _mass(weights: Tensor) -> float:
    return float(weights.diagonal(dim1=-2, dim2=-1).mean())


def _bare(x: Tensor) -> float:
    """Of vectors (N, T, D) that are their own queries and keys."""
    return _mass((x @ x.mT / math.sqrt(x.shape[-1])).softmax(-1))


@torch.inference_mode()
def _own_mass(model: Bert) -> Record:
    """The diagonal mass of a small model after training."""
    texts = windows(daily().held_out, LENGTH, 64, np.random.default_rng(12345))
    with record_attention(model.encoder) as trace:
        model(Batch.of([[CLS, *text.tolist(), SEP] for text in texts]))
    masses = [_mass(weights) for record in trace.attention.values() for weights in record.weights]
    return {"mass": fmean(masses) if all(map(math.isfinite, masses)) else 0.0}


def _mass_trials(plan: Plan) -> list[Trial]:
    count = plan.at(10, 200)
    return [Trial(name, partial(diagonal, name, count), {"model": name, "texts": count}) for name in MODELS]


def _training_trials(plan: Plan) -> list[Trial]:
    trials = []
    for arm, changes in ARMS.items():
        run = short_run(plan, changes)
        for seed in range(plan.seeds):
            settings = {"model": changes, "updates": run.fit.updates, "seed": seed}
            trials.append(Trial(named(arm, seed), partial(short_trial, run, seed, _own_mass), settings))
    return trials


def conclude_mass(records: Mapping[str, Record]) -> Conclusion:
    """Above one half without matrices, and at least twice what trained matrices give."""
    means = {name: {way: records[name][f"{way} mean"][0] for way in WAYS} for name in MODELS}
    bare = [(one[way], one["trained"]) for one in means.values() for way in ("slices", "full")]
    if all(mass > 0.5 and mass >= 2 * trained for mass, trained in bare):
        verdict = Verdict.SUPPORTED
    elif all(mass < 2 * trained for mass, trained in bare):
        verdict = Verdict.NOT_SUPPORTED
    else:
        verdict = Verdict.DEPENDS
    told = {name: conclude_told(records[name]) for name in MODELS}
    judged = {
        Verdict.SUPPORTED: Text(
            "Without matrices most of the weight stays at home, in both models.",
            "没有矩阵时，两个模型中大部分权重都留给了自己。",
        ),
        Verdict.NOT_SUPPORTED: Text(
            "Without matrices tokens do not look at themselves much more than with them.",
            "没有矩阵时，词看自己并不比有矩阵时多多少。",
        ),
        Verdict.DEPENDS: Text(
            "How much stays at home depends on the model and on the width compared.",
            "有多少权重留给自己，取决于模型和比较所用的宽度。",
        ),
    }[verdict]
    says = Text(
        f"{judged.en} Mean weight of a token on itself: minilm {told['minilm'].en}; mini-zh {told['mini-zh'].en}.",
        f"{judged.zh}词给自己的平均权重：minilm {told['minilm'].zh}；mini-zh {told['mini-zh'].zh}。",
    )
    pictures, table = conclude_layers(records)
    return Conclusion(verdict, says, pictures, table)


def conclude_layers(records: Mapping[str, Record]) -> tuple[tuple[Lines, ...], Table]:
    """Layer by layer."""
    pictures = tuple(
        Lines(
            Text(f"Weight of a token on itself: {name}", f"词给自己的权重：{name}"),
            Text("layer", "层"),
            Text("mean weight", "平均权重"),
            tuple(
                Series(label, tuple(Point(layer + 1, mass) for layer, mass in enumerate(records[name][way])))
                for way, label in WAYS.items()
            ),
            Text(
                f"Even attention would be {records[name]['even']:.3f}.",
                f"均匀的注意力是 {records[name]['even']:.3f}。",
            ),
        )
        for name in MODELS
    )
    rows = tuple(
        (f"{name}, {way}", *(f"{mass:.3f}" for mass in records[name][way][:6]), *("",) * (6 - len(records[name][way])))
        for name in MODELS
        for way in WAYS
    )
    table = Table((Text("model and way", "模型与做法"), *(both(str(layer)) for layer in range(1, 7))), rows)
    return pictures, table


def conclude_told(record: Record) -> Text:
    """The three masses of a model."""
    values = {way: "{:.2f} ({:.2f} – {:.2f})".format(*record[f"{way} mean"]) for way in WAYS}
    return Text(
        f"{values['trained']} with its own matrices, {values['slices']} with none in slices, {values['full']} at "
        "full width",
        f"用自己的矩阵 {values['trained']}，无矩阵切片 {values['slices']}，无矩阵全宽 {values['full']}",
    )


def conclude_training(records: Mapping[str, Record]) -> Conclusion:
    """Both arms without matrices against the one with them."""
    base = by_seed(records, "separate", "score")
    bare, wider = (paired(by_seed(records, arm, "score"), base) for arm in ("none", "none, wider"))
    mass = {arm: fmean(by_seed(records, arm, "mass")) for arm in ARMS}
    lost = conclude_lost(records)
    says = Text(
        f"Without the three matrices the held-out loss is {conclude_compared(bare).en} nats; with a wider "
        "feed-forward network "
        f"in their place it is {conclude_compared(wider).en}. After training a token gives itself {mass['none']:.2f} "
        "of its "
        f"weight without matrices and {mass['separate']:.2f} with them.{lost.en}",
        f"去掉三个矩阵，留出集损失{conclude_compared(bare).zh} nat；用更宽的前馈网络代替，"
        f"{conclude_compared(wider).zh}。训练后，词给自己的权重"
        f"没有矩阵时为 {mass['none']:.2f}，有矩阵时为 {mass['separate']:.2f}。{lost.zh}",
    )
    title = Text("Held-out loss − that with matrices", "留出集损失 − 有矩阵时的损失")
    picture = conclude_gaps({"none": bare, "none, wider": wider}, LABELS, title, Text("nats", "nat"))
    columns = {
        "score": Text("loss", "损失"),
        "mass": Text("weight on itself", "给自己的权重"),
        "parameters": Text("parameters", "参数"),
    }
    verdict = conclude_together([sided(bare), sided(wider)])
    return Conclusion(verdict, says, (picture,), conclude_table(records, LABELS, "separate", columns))


PARTS = (Part("diagonal-mass", _mass_trials, conclude_mass), Part("training", _training_trials, conclude_training))
