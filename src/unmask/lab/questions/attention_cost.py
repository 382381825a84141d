"""What attention costs: operations counted, and seconds measured step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.costs import attention_of, counted, one_thread, operations, rows_of
from unmask.lab.kit.timing import exponent, interleaved
from unmask.lab.pictures import Lines, Point, Series
from unmask.lab.words import Text, both
from unmask.nn.attend import attention_backend
from unmask.nn.build import build_encoder
from unmask.nn.settings import DropoutSettings, LayerSettings

LENGTHS, WIDTHS = (64, 128, 256, 512), (64, 256, 768)
BLOCK_LENGTHS = (128, 512, 2048)
TIMED_LENGTHS, AT_WIDTH = (256, 512, 1024, 2048), 256
TIMED_WIDTHS, AT_LENGTH = (64, 128, 256, 512, 1024), 1024
STEPS = {
    "scores": Text("scores", "得分"),
    "softmax": Text("softmax", "softmax"),
    "mean": Text("mean", "加权平均"),
}


def count(tokens: int, width: int) -> Record:
    """Operations of one attention with one head."""
    return {**operations(attention_of(width, 1), tokens), "softmax": 5 * tokens**2}


def block(tokens: int) -> Record:
    """Operations of a block of BERT-base; the part that grows with the square of the length, and all products."""
    settings = LayerSettings(hidden_size=768, num_heads=12, ffn_size=3072, dropout=DropoutSettings.everywhere(0.0))
    stack = build_encoder(settings, settings.uniform(1)).eval()
    rows, plan = rows_of(tokens, 768)
    with attention_backend(stack, "reference"):
        total = counted(lambda: stack(rows, plan))
    square = operations(attention_of(768, 12), tokens)
    return {"square": square["scores"] + square["mean"], "total": total}


@torch.no_grad()
def seconds(rounds: int, largest: int) -> Record:
    """Of the three steps and of a whole attention, at many sizes, in turn; no length or width beyond the largest."""
    with one_thread():
        runs: dict[str, Callable[[], object]] = {}
        for tokens, width in _sizes(largest):
            generator = torch.Generator().manual_seed(0)
            q, k, v = (torch.randn(1, tokens, width, generator=generator) for _ in range(3))
            scores = q @ k.transpose(1, 2) / width**0.5
            weights = scores.softmax(-1)
            attention, (rows, plan) = attention_of(width, 1), rows_of(tokens, width)
            attention.attend.backend = "reference"
            name = f"{tokens} × {width}"
            runs[f"scores {name}"] = partial(torch.matmul, q, k.transpose(1, 2))
            runs[f"softmax {name}"] = partial(torch.softmax, scores, -1)
            runs[f"mean {name}"] = partial(torch.matmul, weights, v)
            runs[f"whole {name}"] = partial(attention, rows, plan)
        return {"seconds": interleaved(runs, rounds), "largest": largest}


def _sizes(largest: int) -> list[tuple[int, int]]:
    pairs = [(tokens, AT_WIDTH) for tokens in TIMED_LENGTHS] + [(AT_LENGTH, width) for width in TIMED_WIDTHS]
    return sorted({(min(tokens, largest), width) for tokens, width in pairs})


def _operation_trials(plan: Plan) -> list[Trial]:
    single = [
        Trial(f"{tokens} × {width}", partial(count, tokens, width), {"tokens": tokens, "width": width})
        for tokens in LENGTHS
        for width in WIDTHS
    ]
    return single + [Trial(f"block {tokens}", partial(block, tokens), {"tokens": tokens}) for tokens in BLOCK_LENGTHS]


def _time_trials(plan: Plan) -> list[Trial]:
    rounds, largest = plan.at(3, 7), plan.at(1024, 2048)
    return [Trial("times", partial(seconds, rounds, largest), {"rounds": rounds, "largest": largest})]


def conclude_operations(records: Mapping[str, Record]) -> Conclusion:
    """2n²d for scores, as many for the mean, 8nd² for projections."""
    wrong, projected = [], []
    for tokens in LENGTHS:
        for width in WIDTHS:
            one = records[f"{tokens} × {width}"]
            product = 2 * tokens**2 * width
            if (one["scores"], one["mean"]) != (product, product):
                wrong.append(f"n {tokens}, d {width}")
            if one["projections"] != 8 * tokens * width**2:
                projected.append(f"n {tokens}, d {width}")
    shares = {tokens: records[f"block {tokens}"] for tokens in BLOCK_LENGTHS}
    share = {tokens: one["square"] / one["total"] for tokens, one in shares.items()}
    # square = a·n², the rest = b·n: equal at n = b/a.
    tokens, one = BLOCK_LENGTHS[0], shares[BLOCK_LENGTHS[0]]
    half = (one["total"] - one["square"]) / tokens / (one["square"] / tokens**2)
    big = records["512 × 768"]
    ratio = big["projections"] / (big["scores"] + big["mean"])
    agreed = Text(
        f"At all {len(LENGTHS) * len(WIDTHS)} sizes scores and mean take 2n²d operations each, to the unit.",
        f"在全部 {len(LENGTHS) * len(WIDTHS)} 个尺寸下，得分和加权平均都恰为 2n²d 次运算。",
    )
    if wrong:
        agreed = Text(
            f"Scores or mean are not 2n²d at {'; '.join(wrong)}.", f"下列尺寸不等于 2n²d：{'；'.join(wrong)}。"
        )
    says = Text(
        f"{agreed.en} The four projections, which S0 leaves out, take 8nd² "
        f"({'everywhere' if not projected else 'but not at ' + '; '.join(projected)}): at n = 512, d = 768 that is "
        f"{ratio:.1f} times the two products. In a block of BERT-base the n² part is {share[128]:.1%} of all "
        "products at "
        f"n = 128, {share[512]:.1%} at 512, {share[2048]:.1%} at 2,048; it is one half at n = {half:,.0f}.",
        f"{agreed.zh}S0 没有算的四个投影为 8nd²（{'处处相符' if not projected else '不符：' + '；'.join(projected)}）："
        f"n = 512、d = 768 时是两次乘法的 {ratio:.1f} 倍。BERT-base 的一个 block 中，n² 部分占全部乘法的比例，"
        f"n = 128 时为 {share[128]:.1%}，512 时 {share[512]:.1%}，2,048 时 {share[2048]:.1%}；n = {half:,.0f} "
        "时占一半。",
    )
    picture, table = conclude_share(records, share, half)
    return Conclusion(Verdict.NOT_SUPPORTED if wrong else Verdict.SUPPORTED, says, (picture,), table)


def conclude_share(records: Mapping[str, Record], share: Mapping[int, float], half: float) -> tuple[Lines, Table]:
    """The quadratic part over the length, and all counts."""
    curve = tuple(Point(n, n / (n + half)) for n in (64, 128, 256, 512, 1024, 2048, 4096, 8192))
    picture = Lines(
        Text("The quadratic part of a BERT-base block", "BERT-base 一个 block 中的平方部分"),
        Text("tokens n", "词数 n"),
        Text("share of all products", "占全部乘法的比例"),
        (
            Series(Text("from the count at 128", "由 128 处的计数推得"), curve),
            Series(Text("counted", "计数"), tuple(map(Point, map(float, share), share.values())), line=False),
        ),
        Text(
            f"At BERT's 512 tokens it is {share[512]:.1%}; it leads beyond {half:,.0f}.",
            f"在 BERT 的 512 个词时为 {share[512]:.1%}；超过 {half:,.0f} 才占主要部分。",
        ),
        log_x=True,
    )
    rows = tuple(
        (f"{n} × {d}", *(f"{records[f'{n} × {d}'][what]:,}" for what in ("scores", "mean", "softmax", "projections")))
        for n in LENGTHS
        for d in WIDTHS
    )
    columns = (both("n × d"), *STEPS.values(), Text("projections", "投影"))
    table = Table((columns[0], columns[1], columns[3], columns[2], columns[4]), rows)
    return picture, table


def conclude_time(records: Mapping[str, Record]) -> Conclusion:
    """Exponents in n and in d, step by step."""
    found, largest = records["times"]["seconds"], records["times"]["largest"]
    lengths = [n for n in TIMED_LENGTHS if n <= largest]
    at = min(AT_LENGTH, largest)

    def fitted(step: str) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        return (
            exponent(lengths, [found[f"{step} {n} × {AT_WIDTH}"] for n in lengths]),
            exponent(TIMED_WIDTHS, [found[f"{step} {at} × {d}"] for d in TIMED_WIDTHS]),
        )

    powers = {step: fitted(step) for step in STEPS}
    for name in {name.partition(" ")[2] for name in found}:
        found = {
            **found,
            f"sum {name}": [sum(x) for x in zip(*(found[f"{step} {name}"] for step in STEPS), strict=True)],
        }
    in_n, in_d = fitted("sum")
    whole_n, _ = fitted("whole")
    right = (
        all(1.8 <= powers[step][0][0] <= 2.2 for step in STEPS)
        and all(0.8 <= powers[step][1][0] <= 1.2 for step in ("scores", "mean"))
        and abs(powers["softmax"][1][0]) <= 0.2
    )
    verdict = Verdict.SUPPORTED if right else Verdict.DEPENDS
    if in_n[0] < 1.5 or in_d[0] > 1.5:
        verdict = Verdict.NOT_SUPPORTED
    told = {step: conclude_powers(*powers[step]) for step in STEPS}
    says = Text(
        f"Time grows as n^p and d^p with p = {told['scores'].en} for the scores, {told['softmax'].en} for the softmax, "
        f"{told['mean'].en} for the mean; the three together {conclude_powers(in_n, in_d).en}. A whole attention with "
        f"projections grows as n^{whole_n[0]:.2f} at d = {AT_WIDTH} over n = {lengths[0]} … {lengths[-1]:,}.",
        f"时间按 n^p、d^p 增长：得分 p = {told['scores'].zh}，softmax {told['softmax'].zh}，加权平均 "
        f"{told['mean'].zh}；三步之和 "
        f"{conclude_powers(in_n, in_d).zh}。带投影的整个注意力在 d = {AT_WIDTH}、n = {lengths[0]} … {lengths[-1]:,} "
        "时按 "
        f"n^{whole_n[0]:.2f} 增长。",
    )
    pictures = conclude_times(found, lengths, at)
    return Conclusion(verdict, says, pictures)


def conclude_times(found: Mapping[str, list[float]], lengths: list[int], at: int) -> tuple[Lines, ...]:
    """Times over the length and over the width."""
    labels = {**STEPS, "whole": Text("whole attention", "整个注意力")}
    pictures = []
    for axis, sizes in (("n", lengths), ("d", list(TIMED_WIDTHS))):
        names = [f"{size} × {AT_WIDTH}" if axis == "n" else f"{at} × {size}" for size in sizes]
        series = tuple(
            Series(
                label, tuple(Point(x, 1e3 * min(found[f"{step} {name}"])) for x, name in zip(sizes, names, strict=True))
            )
            for step, label in labels.items()
        )
        what = "tokens n" if axis == "n" else "width d"
        pictures.append(
            Lines(
                Text(f"Time over the {what}", f"时间随{'词数 n' if axis == 'n' else '宽度 d'}的变化"),
                Text(what, "词数 n" if axis == "n" else "宽度 d"),
                Text("milliseconds, best round", "毫秒（最快的一轮）"),
                series,
                Text(
                    "A straight line is a power; its slope is the exponent.",
                    "直线表示幂律，斜率就是指数。",
                ),
                log_x=True,
                log_y=True,
            )
        )
    return tuple(pictures)


def conclude_powers(in_n: tuple[float, float, float], in_d: tuple[float, float, float]) -> Text:
    """Exponents in n and d."""
    n, d = (f"{p:.2f} ({low:.2f} – {high:.2f})" for p, low, high in (in_n, in_d))
    return Text(f"{n} in n and {d} in d", f"对 n 为 {n}、对 d 为 {d}")


PARTS = (Part("operations", _operation_trials, conclude_operations), Part("time", _time_trials, conclude_time))
