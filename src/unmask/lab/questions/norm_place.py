"""Where published models have their norms, and what the place does to a training."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.by_hand import difference, plain_attention, plain_ffn, plain_norm
from unmask.lab.kit.daily import daily, windows
from unmask.lab.kit.effects import Effect, by_seed, named, paired, spread
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.newspaper import LeftToRight, loss_of, transformer, trial
from unmask.lab.pictures import Bars, Lines, Point, Series
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.folder import load_model
from unmask.nn.batch import Batch
from unmask.nn.block import EncoderBlock
from unmask.nn.norm import AddNorm
from unmask.text import Tokenizer

SENTENCES = {
    "minilm": (
        "The film is slow, but its last ten minutes are worth the wait.",
        "Queries come from the decoder, keys and values from the encoder.",
        "Nobody knows why the bridge was built here.",
    ),
    "mini-zh": (
        "这部电影节奏很慢，但最后十分钟值得等待。",
        "今年粮食产量比去年增长了百分之三。",
        "谁也不知道这座桥为什么建在这里。",
    ),
}
#: The readings: what stands around the two sub-layers.
READINGS = {
    "post": Text("LN(x + f(x)), twice a block (S3-5.3)", "LN(x + f(x))，每块两处（S3-5.3）"),
    "pre": Text("x + f(LN(x))", "x + f(LN(x))"),
    "once": Text("a norm after attention only (S2-16)", "只在注意力之后归一化（S2-16）"),
}
TOLERANCE = 1e-8
PLACES, DEPTHS, WARM = ("post", "pre"), (2, 8), (0, 40)
MARGIN = 0.05


def by_reading(block: EncoderBlock, x: Tensor, reading: str) -> Tensor:
    """A block's output from its weights, as one of the readings has it."""
    first, second = block.around_attention, block.around_ffn
    assert isinstance(second, AddNorm)
    if reading == "pre":
        seen = plain_norm(first.norm, x)
        x = x + plain_attention(block.self_attention, seen, seen)
        return x + plain_ffn(block.ffn, plain_norm(second.norm, x))
    x = plain_norm(first.norm, x + plain_attention(block.self_attention, x, x))
    out = x + plain_ffn(block.ffn, x)
    return out if reading == "once" else plain_norm(second.norm, out)


@torch.no_grad()
def place(name: str) -> Record:
    """How far each reading is from what each block of a published model gives."""
    model, _ = load_model(fetch(name))
    assert isinstance(model, Bert)
    model.double().eval()
    tokenizer = Tokenizer.from_folder(fetch(name))
    given: list[tuple[Tensor, Tensor]] = []
    blocks = [block for block in model.encoder.stack.blocks if isinstance(block, EncoderBlock)]
    for block in blocks:
        block.register_forward_hook(lambda _, args, out: given.append((args[0], out)))
    found: dict[str, list[float]] = {reading: [0.0] * len(blocks) for reading in READINGS}
    for sentence in SENTENCES[name]:
        given.clear()
        model(Batch.of([tokenizer.encode(sentence).ids]))
        for layer, (block, (x, out)) in enumerate(zip(blocks, given, strict=True)):
            for reading, most in found.items():
                most[layer] = max(most[layer], difference(by_reading(block, x, reading), out))
    return {"apart": found, "layers": len(blocks), "activation": model.settings.activation}


def train(where: str, layers: int, warm: int, updates: int, seed: int) -> Record:
    """A run, and the gradient of each layer before its first update."""
    changes: dict[str, Any] = {"norm_place": where, "final_norm": where == "pre", "num_layers": layers}
    run = LeftToRight(Fit(updates, 3e-3, warmup=warm / 150), changes)  # the same share of a shorter run
    return {**trial(run, seed), "gradients": first_gradients(changes, seed)}


def first_gradients(changes: Mapping[str, Any], seed: int) -> list[float]:
    """The norm of the gradient of each layer's own parameters, before anything was learned."""
    model = transformer(changes, seed)
    loss_of(model, windows(daily().learned, 64, 32, np.random.default_rng(seed))).backward()
    found = []
    for block in model.stack.blocks:
        squares = [one.grad.square().sum() for one in block.parameters() if one.grad is not None]
        found.append(float(torch.stack(squares).sum().sqrt()))
    return found


def _place_trials(plan: Plan) -> list[Trial]:
    return [Trial(name, partial(place, name), {"model": name}) for name in SENTENCES]


def _train_trials(plan: Plan) -> list[Trial]:
    updates = plan.at(6, 150)
    return [
        Trial(named(_arm(*arm), seed), partial(train, *arm, updates, seed), {"updates": updates})
        for seed in range(plan.seeds)
        for arm in product(PLACES, DEPTHS, WARM)
    ]


def _arm(where: str, layers: int, warm: int) -> str:
    return f"{where}, {layers} layers, {'warm-up' if warm else 'no warm-up'}"


def conclude_place(records: Mapping[str, Record]) -> Conclusion:
    """Which reading is what published models compute, in every layer."""
    worst = {one: max(max(record["apart"][one]) for record in records.values()) for one in READINGS}
    least = {one: min(min(record["apart"][one]) for record in records.values()) for one in READINGS}
    right = worst["post"] <= TOLERANCE and min(least["pre"], least["once"]) > TOLERANCE
    layers = sum(record["layers"] for record in records.values())
    models = " and ".join(records), "和 ".join(f"{name} " for name in records)
    says = Text(
        f"In all {layers} blocks of {models[0]}, LN(x + f(x)) after both sub-layers gives the block's output to within "
        f"{worst['post']:.0e}: post-norm, two norms a block, as S3-5.3 says. x + f(LN(x)) is off by at least "
        f"{least['pre']:.2g}, a norm after attention only (S2-16) by at least {least['once']:.2g}."
        if right
        else f"LN(x + f(x)) is off by up to {worst['post']:.1e} in the blocks of {models[0]}, x + f(LN(x)) by "
        f"{least['pre']:.1e} or more, a norm after attention only by {least['once']:.1e} or more: the place is not "
        "what S3-5.3 says.",
        f"在 {models[1]}的全部 {layers} 个块里，两个子层之后都做 LN(x + f(x))，与块的输出相差不超过 "
        f"{worst['post']:.0e}："
        f"这就是 post-norm，每块两处，如 S3-5.3 所说。x + f(LN(x)) 至少相差 {least['pre']:.2g}，"
        f"只在注意力之后归一化（S2-16）至少相差 {least['once']:.2g}。"
        if right
        else f"在 {models[1]}的块里，LN(x + f(x)) 最多相差 {worst['post']:.1e}，x + f(LN(x)) 至少相差 "
        f"{least['pre']:.1e}，只在注意力之后归一化至少相差 {least['once']:.1e}：位置并不是 S3-5.3 所说的那样。",
    )
    columns = (Text("reading", "说法"), *(Text(f"{name}, largest", f"{name} 最大差") for name in records))
    rows = tuple(
        (reading, *(f"{max(record['apart'][reading]):.1e}" for record in records.values())) for reading in READINGS
    )
    return Conclusion(Verdict.SUPPORTED if right else Verdict.NOT_SUPPORTED, says, (), Table(columns, rows))


def conclude_train(records: Mapping[str, Record]) -> Conclusion:
    """Post minus pre in each cell, and what warm-up is worth to each at 8 layers."""
    loss = {arm: by_seed(records, _arm(*arm), "loss") for arm in product(PLACES, DEPTHS, WARM)}
    cells = {cell: paired(loss["post", *cell], loss["pre", *cell]) for cell in product(DEPTHS, WARM)}
    cost = {where: paired(loss[where, 8, 0], loss[where, 8, 40]) for where in PLACES}
    more = paired(*([a - b for a, b in zip(loss[where, 8, 0], loss[where, 8, 40], strict=True)] for where in PLACES))
    failed = sum(bool(record["failed"]) for record in records.values())
    verdict = Verdict.NOT_VISIBLE if failed == len(records) else verdict_of(cells, more)
    english = {
        Verdict.SUPPORTED: "The place matters here.",
        Verdict.DEPENDS: "Post-norm is better in some cases and worse in others.",
        Verdict.NOT_SUPPORTED: "The place makes no difference beyond 0.05 here.",
        Verdict.NOT_VISIBLE: "These runs do not tell whether the place matters.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "位置在这里有影响。",
        Verdict.DEPENDS: "post-norm 有的情况更好，有的更差。",
        Verdict.NOT_SUPPORTED: "位置在这里没有超过 0.05 的差别。",
        Verdict.NOT_VISIBLE: "这些训练看不出位置有没有影响。",
    }[verdict]
    shown = "; ".join(f"{n} layers, warm-up {warm}: {effect.signed()}" for (n, warm), effect in cells.items())
    says = Text(
        f"{english} Held-out loss of post minus pre: {shown}. Without warm-up, post loses {cost['post'].signed()} at 8 "
        f"layers and pre {cost['pre'].signed()}; the difference is {more.signed()}. Runs that failed: {failed} of "
        f"{len(records)}.",
        f"{chinese}留出损失 post 减 pre：{shown.replace(' layers, warm-up ', ' 层、预热 ')}。8 层时去掉预热，post 损失 "
        f"{cost['post'].signed()}，pre 损失 {cost['pre'].signed()}，相差 {more.signed()}。失败的训练："
        f"{len(records)} 次中 "
        f"{failed} 次。",
    )
    return Conclusion(verdict, says, (_bars(loss), _gradients(records)))


def verdict_of(cells: Mapping[tuple[int, int], Effect], more: Effect) -> Verdict:
    """By the method's rule."""
    signs = {effect.mean > 0 for effect in cells.values() if effect.low > 0 or effect.high < 0}
    deep = [effect for (layers, _), effect in cells.items() if layers == 8]
    if len(signs) > 1:
        return Verdict.DEPENDS
    if all(effect.low >= -MARGIN and effect.high <= MARGIN for effect in [*cells.values(), more]):
        return Verdict.NOT_SUPPORTED
    if more.low > 0 or any(effect.low > 0 or effect.high < 0 for effect in deep):
        return Verdict.SUPPORTED
    return Verdict.NOT_VISIBLE


def _bars(loss: Mapping[tuple[str, int, int], list[float]]) -> Bars:
    cells = list(product(DEPTHS, WARM))
    names = tuple(Text(f"{n} layers, warm-up {warm}", f"{n} 层，预热 {warm}") for n, warm in cells)
    series = tuple(
        Series(
            Text(f"{where}-norm", f"{where}-norm"),
            tuple(spread(loss[where, *cell]).point(number) for number, cell in enumerate(cells)),
        )
        for where in PLACES
    )
    return Bars(
        Text("Loss after training", "训练后的损失"),
        Text("held-out loss a character", "留出集每字损失"),
        names,
        series,
        Text(
            "Bars of a pair that differ by more than their intervals show that the place matters there.",
            "同组两根柱子的差距超过区间，说明位置在那里有影响。",
        ),
    )


def _gradients(records: Mapping[str, Record]) -> Lines:
    series = []
    for where in PLACES:
        found = records[named(_arm(where, 8, 0), 0)]["gradients"]
        points = tuple(Point(layer + 1, value) for layer, value in enumerate(found) if value > 0)
        series.append(Series(Text(f"{where}-norm", f"{where}-norm"), points))
    return Lines(
        Text("Gradient of each layer at the first update, 8 layers", "第一次更新时各层的梯度，8 层"),
        Text("layer", "层"),
        Text("gradient norm", "梯度范数"),
        tuple(series),
        Text(
            "A level line means that all layers begin to learn alike.",
            "线越平，各层开始学习的快慢越接近。",
        ),
        log_y=True,
    )


PARTS = (
    Part("place", _place_trials, conclude_place),
    Part("depth-and-warm-up", _train_trials, conclude_train),
)
