"""A dot product against a small network: speed, memory, and what the width does to both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean

import torch
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.associative import recall_trial
from unmask.lab.kit.costs import one_thread
from unmask.lab.kit.effects import Effect, by_seed, named, paired, sided, spread
from unmask.lab.kit.telling import conclude_compared, conclude_lost
from unmask.lab.kit.timing import exponent, interleaved
from unmask.lab.pictures import Lines, Point, Series
from unmask.lab.words import Text, both
from unmask.nn.attend import Attend
from unmask.nn.positions import NoPositions
from unmask.nn.scores import Additive, ScaledDot, Score

BATCH, HEADS = 4, 4
LENGTHS, AT_WIDTH = (32, 64, 128, 256), 32
SIZES = (*((n, AT_WIDTH) for n in LENGTHS), (128, 16), (128, 64), (128, 128))
KINDS: dict[str, Callable[[int], Score]] = {"dot": ScaledDot, "additive": Additive}
WIDTHS = (8, 64, 256)
SCORES = {"dot": "dot", "scaled": "scaled_dot", "additive": "additive"}
LABELS = {
    "dot": Text("dot product", "点积"),
    "scaled": Text("scaled dot product", "缩放点积"),
    "additive": Text("additive", "加法"),
}


class _Timed:
    """One attention, forward and backward."""

    def __init__(self, kind: str, tokens: int, width: int) -> None:
        torch.manual_seed(0)
        self.attend = Attend(KINDS[kind](width), NoPositions())
        self.attend.backend = "reference"
        shape = (BATCH, HEADS, tokens, width)
        self.inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]

    def forward(self) -> Tensor:
        q, k, v = self.inputs
        return self.attend(self.attend.prepare_queries(q), self.attend.prepare_keys(k), v).sum()

    def __call__(self) -> None:
        self.forward().backward()

    def kept(self) -> int:
        """Bytes that the backward pass needs, each stretch of memory once."""
        seen: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = self.forward()
        del loss
        return sum(seen.values())


def speed(rounds: int) -> Record:
    """Seconds of both at all sizes, in turn, and the bytes they keep."""
    with one_thread():
        runs = {f"{kind} {n} × {width}": _Timed(kind, n, width) for n, width in SIZES for kind in KINDS}
        return {"seconds": interleaved(runs, rounds), "bytes": {name: run.kept() for name, run in runs.items()}}


def _speed_trials(plan: Plan) -> list[Trial]:
    rounds = plan.at(2, 7)
    return [Trial("times", partial(speed, rounds), {"rounds": rounds})]


def _width_trials(plan: Plan) -> list[Trial]:
    updates = plan.at(8, 300)
    return [
        Trial(
            named(_arm(name, width), seed),
            partial(recall_trial, score, width, updates, seed),
            {"score": score, "d_k": width, "updates": updates, "seed": seed},
        )
        for width in WIDTHS
        for name, score in SCORES.items()
        for seed in range(plan.seeds)
    ]


def _arm(name: str, width: int) -> str:
    return f"{name}, d_k {width}"


def conclude_speed(records: Mapping[str, Record]) -> Conclusion:
    """Ratio of times at every size, and exponents in the length."""
    found, kept = records["times"]["seconds"], records["times"]["bytes"]
    ratios: dict[tuple[int, int], Effect] = {}
    for n, width in SIZES:
        dot, additive = (found[f"{kind} {n} × {width}"] for kind in KINDS)
        ratios[n, width] = spread(slow / fast for slow, fast in zip(additive, dot, strict=True))
    above = [ratio.low > 1 for ratio in ratios.values()]
    below = [ratio.high < 1 for ratio in ratios.values()]
    verdict = Verdict.SUPPORTED if all(above) else Verdict.DEPENDS
    if sum(below) > len(SIZES) / 2:
        verdict = Verdict.NOT_SUPPORTED
    powers = {kind: exponent(LENGTHS, [found[f"{kind} {n} × {AT_WIDTH}"] for n in LENGTHS]) for kind in KINDS}
    apart = powers["additive"][0] - powers["dot"][0]
    low, high = (pick(ratios, key=lambda size: ratios[size].mean) for pick in (min, max))
    most = max(SIZES, key=lambda size: kept[f"additive {size[0]} × {size[1]}"])
    memory = [kept[f"{kind} {most[0]} × {most[1]}"] / 2**20 for kind in KINDS]
    says = Text(
        f"Forward and backward, addition takes {ratios[low].mean:.1f} times as long as the dot product at n = "
        f"{low[0]}, "
        f"d_k = {low[1]}, and {ratios[high].mean:.1f} times at n = {high[0]}, d_k = {high[1]}; at {sum(above)} of "
        f"{len(SIZES)} sizes the interval lies wholly above 1. In the length, time grows as n^{powers['dot'][0]:.2f} "
        "for the "
        f"dot product and n^{powers['additive'][0]:.2f} for addition: "
        f"{'alike' if abs(apart) <= 0.3 else 'not alike'}, within "
        f"{abs(apart):.2f}. For the backward pass {memory[1]:.0f} MiB are kept instead of {memory[0]:.0f} at n = "
        f"{most[0]}, "
        f"d_k = {most[1]}.",
        f"前向加反向，加法打分的用时在 n = {low[0]}、d_k = {low[1]} 时是点积的 {ratios[low].mean:.1f} 倍，在 n = "
        f"{high[0]}、"
        f"d_k = {high[1]} 时是 {ratios[high].mean:.1f} 倍；{len(SIZES)} 个尺寸中有 {sum(above)} 个的区间完全大于 1。"
        "随长度增长：点积 "
        f"n^{powers['dot'][0]:.2f}，加法 n^{powers['additive'][0]:.2f}，指数相差 {abs(apart):.2f}，"
        f"{'可以说相当' if abs(apart) <= 0.3 else '并不相当'}。n = {most[0]}、d_k = {most[1]} 时，为反向传播保留 "
        f"{memory[1]:.0f} MiB，"
        f"点积为 {memory[0]:.0f} MiB。",
    )
    picture, table = conclude_sizes(found, kept, ratios)
    return Conclusion(verdict, says, (picture,), table)


def conclude_sizes(
    found: Mapping[str, list[float]], kept: Mapping[str, int], ratios: Mapping[tuple[int, int], Effect]
) -> tuple[Lines, Table]:
    """Times and bytes at every size."""
    series = tuple(
        Series(LABELS["scaled" if kind == "dot" else kind], tuple(conclude_time_of(found, kind, n) for n in LENGTHS))
        for kind in KINDS
    )
    picture = Lines(
        Text(f"Forward and backward, d_k = {AT_WIDTH}", f"前向加反向，d_k = {AT_WIDTH}"),
        Text("tokens n", "词数 n"),
        Text("milliseconds, best round", "毫秒（最快的一轮）"),
        series,
        Text("Lines of one slope have one order; their distance is the price.", "斜率相同即量级相同，间距就是代价。"),
        log_x=True,
        log_y=True,
    )
    rows = tuple(
        (
            f"{n} × {width}",
            *(f"{1e3 * min(found[f'{kind} {n} × {width}']):.2f}" for kind in KINDS),
            f"{ratio.mean:.2f} ({ratio.low:.2f} – {ratio.high:.2f})",
            *(f"{kept[f'{kind} {n} × {width}'] / 2**20:.1f}" for kind in KINDS),
        )
        for (n, width), ratio in ratios.items()
    )
    columns = (
        both("n × d_k"),
        Text("dot, ms", "点积，毫秒"),
        Text("additive, ms", "加法，毫秒"),
        Text("ratio (95 %)", "之比（95 %）"),
        Text("dot, MiB kept", "点积，保留 MiB"),
        Text("additive, MiB kept", "加法，保留 MiB"),
    )
    return picture, Table(columns, rows)


def conclude_time_of(found: Mapping[str, list[float]], kind: str, tokens: int) -> Point:
    """The best round of a length."""
    return Point(tokens, 1e3 * min(found[f"{kind} {tokens} × {AT_WIDTH}"]))


def conclude_width(records: Mapping[str, Record]) -> Conclusion:
    """Whether addition gains on an unscaled dot product as heads grow wide."""

    def scores(name: str, width: int) -> list[float]:
        return by_seed(records, _arm(name, width), "score")

    def gaps(name: str, width: int) -> list[float]:
        return [a - b for a, b in zip(scores(name, width), scores("additive", width), strict=True)]

    effects = {width: spread(gaps("dot", width)) for width in WIDTHS}
    growth = paired(gaps("dot", 256), gaps("dot", 8))
    scaled = spread(gaps("scaled", 256))
    at, more = sided(effects[256]), sided(growth)
    verdict = at if at in (more, Verdict.NOT_SUPPORTED) else Verdict.DEPENDS
    lost = conclude_lost(records)
    accuracy = {name: fmean(by_seed(records, _arm(name, 256), "accuracy")) for name in SCORES}
    says = Text(
        "Mean training loss of the unscaled dot product against addition: at d_k = 8 "
        f"{conclude_compared(effects[8]).en}, at 64 "
        f"{conclude_compared(effects[64]).en}, at 256 {conclude_compared(effects[256]).en} nats; from 8 to 256 the "
        "gap is "
        f"{conclude_compared(growth).en}. With scaling the dot product at 256 is {conclude_compared(scaled).en}. "
        "Accuracy at 256: "
        f"dot {accuracy['dot']:.2f}, scaled {accuracy['scaled']:.2f}, additive {accuracy['additive']:.2f}.{lost.en}",
        f"不缩放的点积与加法相比，平均训练损失：d_k = 8 时{conclude_compared(effects[8]).zh}，64 "
        f"时{conclude_compared(effects[64]).zh}，"
        f"256 时{conclude_compared(effects[256]).zh} nat；从 8 到 256，差距{conclude_compared(growth).zh}。"
        "缩放后的点积在 256 时"
        f"{conclude_compared(scaled).zh}。256 时的准确率：点积 {accuracy['dot']:.2f}，缩放点积 "
        f"{accuracy['scaled']:.2f}，加法 "
        f"{accuracy['additive']:.2f}。{lost.zh}",
    )
    series = tuple(
        Series(LABELS[name], tuple(spread(scores(name, width)).point(width) for width in WIDTHS)) for name in SCORES
    )
    picture = Lines(
        Text("Associative recall over the width of a head", "联想回忆随头宽的变化"),
        both("d_k"),
        Text("mean training loss, nats", "平均训练损失（nat）"),
        series,
        Text(
            "Lower is learned faster; whiskers are 95 % intervals over seeds.",
            "越低学得越快；须线为各种子的 95 % 区间。",
        ),
        log_x=True,
    )
    return Conclusion(verdict, says, (picture,))


PARTS = (Part("speed", _speed_trials, conclude_speed), Part("width", _width_trials, conclude_width))
