"""Many heads against one: operations counted, and seconds measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.costs import attention_of, counted, matrix_parameters, one_thread, operations, rows_of
from unmask.lab.kit.timing import exponent, interleaved
from unmask.lab.pictures import Lines, Point, Series
from unmask.lab.words import Text, both

TOKENS, WIDTH = 128, 768
HEADS = (1, 2, 4, 8, 12, 16, 24, 48)
TIMED_TOKENS, TIMED_HEADS = 512, (1, 2, 4, 8, 12, 16)
KINDS = {
    "products": Text("both products", "两次乘法"),
    "softmax": both("softmax"),
    "whole": Text("whole, by the formula", "整个注意力，按公式"),
    "fused": Text("whole, fused kernel", "整个注意力，融合算子"),
}


def count(heads: int) -> Record:
    """An attention's operations; and those of multiplying all heads' queries with all heads' keys."""
    attention = attention_of(WIDTH, heads)
    size = WIDTH // heads
    generator = torch.Generator().manual_seed(heads)
    q, k = (torch.randn(heads, TOKENS, size, generator=generator, dtype=torch.float64) for _ in range(2))
    every = torch.einsum("mta,lsa->mtls", q, k)
    usual = q @ k.transpose(1, 2)
    own = torch.stack([every[head, :, head] for head in range(heads)])
    return {
        **operations(attention, TOKENS),
        "softmax_numbers": heads * TOKENS**2,
        "parameters": matrix_parameters(attention),
        "contraction": counted(lambda: torch.einsum("mta,lsa->mtls", q, k)),
        "diagonal_apart": float((own - usual).abs().max()),
    }


@torch.no_grad()
def seconds(rounds: int) -> Record:
    """Of products, softmax and whole attentions with different numbers of heads, in turn."""
    with one_thread():
        runs: dict[str, Callable[[], object]] = {}
        rows, plan = rows_of(TIMED_TOKENS, WIDTH)
        for heads in TIMED_HEADS:
            q, k, v, scores = timed_inputs(heads)
            weights = scores.softmax(-1)
            attention, fused = attention_of(WIDTH, heads), attention_of(WIDTH, heads)
            attention.attend.backend = "reference"
            runs[f"products {heads}"] = partial(_products, q, k, v, weights)
            runs[f"softmax {heads}"] = partial(F.softmax, scores, -1)
            runs[f"whole {heads}"] = partial(attention, rows, plan)
            runs[f"fused {heads}"] = partial(fused, rows, plan)
        return {"seconds": interleaved(runs, rounds)}


def timed_inputs(heads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of all heads, and scores.

    Scaled as in use: unscaled scores of wide heads saturate, and weights below 1e-38 multiply many times slower.
    """
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(heads, TIMED_TOKENS, WIDTH // heads, generator=generator) for _ in range(3))
    return q, k, v, q @ k.transpose(1, 2) / (WIDTH // heads) ** 0.5


def _products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, weights: torch.Tensor) -> object:
    return q @ k.transpose(1, 2), weights @ v


def _operation_trials(plan: Plan) -> list[Trial]:
    return [Trial(f"{heads} heads", partial(count, heads), {"heads": heads}) for heads in HEADS]


def _time_trials(plan: Plan) -> list[Trial]:
    rounds = plan.at(3, 7)
    return [Trial("times", partial(seconds, rounds), {"rounds": rounds})]


def conclude_operations(records: Mapping[str, Record]) -> Conclusion:
    """4n²d whatever the number of heads; m times as much only if every head met every other."""
    expected = 4 * TOKENS**2 * WIDTH
    products = {heads: records[f"{heads} heads"]["scores"] + records[f"{heads} heads"]["mean"] for heads in HEADS}
    same = all(found == expected for found in products.values())
    other = all(
        records[f"{heads} heads"]["contraction"] == 2 * heads**2 * TOKENS**2 * (WIDTH // heads) for heads in HEADS
    )
    apart = max(one["diagonal_apart"] for one in records.values())
    parameters = {one["parameters"] for one in records.values()}
    last = records[f"{HEADS[-1]} heads"]
    says = Text(
        (
            f"With 1 to {HEADS[-1]} heads both products take 4n²d = {expected:,} operations, to the unit: S4 is right. "
            if same
            else f"The products are not 4n²d = {expected:,} for every number of heads: {products}. "
        )
        + f"S0's m²n²a {'is' if other else 'is not'} the count of another computation, in which every head's queries "
        "meet "
        f"every head's keys: {last['contraction']:,} with {HEADS[-1]} heads, of whose diagonal the usual scores can be "
        f"read (difference {apart:.0e}). Parameters {'do not depend' if len(parameters) == 1 else 'depend'} on m; "
        "numbers "
        f"in the softmax do: {last['softmax_numbers']:,} instead of {records['1 heads']['softmax_numbers']:,}.",
        (
            f"头数从 1 到 {HEADS[-1]}，两次乘法都恰为 4n²d = {expected:,} 次运算：S4 是对的。"
            if same
            else f"两次乘法并非对所有头数都等于 4n²d = {expected:,}：{products}。"
        )
        + f"S0 的 m²n²a {'正是' if other else '并不是'}另一种计算（每个头的 query 与每个头的 key 都相乘）的次数："
        f"{HEADS[-1]} 头时为 "
        f"{last['contraction']:,}，从其对角部分能读出通常的得分（相差 {apart:.0e}）。参数量与 m "
        f"{'无关' if len(parameters) == 1 else '有关'}；softmax 处理的数随 m 增长：{last['softmax_numbers']:,} "
        "个而不是 "
        f"{records['1 heads']['softmax_numbers']:,} 个。",
    )
    picture, table = conclude_counts(records)
    verdict = Verdict.SUPPORTED if same else Verdict.NOT_SUPPORTED
    return Conclusion(verdict, says, (picture,), table)


def conclude_counts(records: Mapping[str, Record]) -> tuple[Lines, Table]:
    """Operations over the number of heads."""
    picture = Lines(
        Text("Operations over the number of heads", "运算次数随头数的变化"),
        Text("heads m", "头数 m"),
        Text("operations", "运算次数"),
        (
            Series(
                Text("scores, as computed", "实际的得分"),
                conclude_points({h: records[f"{h} heads"]["scores"] for h in HEADS}),
            ),
            Series(
                Text("every head with every other", "所有头两两相乘"),
                conclude_points({h: records[f"{h} heads"]["contraction"] for h in HEADS}),
            ),
        ),
        Text("A level line does not depend on the number of heads.", "水平的线表示与头数无关。"),
        log_x=True,
        log_y=True,
    )
    rows = tuple(
        (
            str(h),
            *(
                f"{records[f'{h} heads'][what]:,}"
                for what in ("scores", "mean", "projections", "softmax_numbers", "contraction")
            ),
        )
        for h in HEADS
    )
    names = (
        Text("heads", "头数"),
        Text("scores", "得分"),
        Text("mean", "加权平均"),
        Text("projections", "投影"),
        Text("numbers in the softmax", "进入 softmax 的数"),
        Text("full contraction", "全部相乘"),
    )
    return picture, Table(names, rows)


def conclude_points(values: Mapping[int, float]) -> tuple[Point, ...]:
    """A point for each number of heads."""
    return tuple(Point(x, y) for x, y in values.items())


def conclude_time(records: Mapping[str, Record]) -> Conclusion:
    """The exponent in m: 0 is S4's law, 1 is S0's."""
    found = records["times"]["seconds"]
    powers = {kind: exponent(TIMED_HEADS, [found[f"{kind} {heads}"] for heads in TIMED_HEADS]) for kind in KINDS}
    p, low, high = powers["products"]
    verdict = Verdict.SUPPORTED if high < 0.3 else Verdict.NOT_SUPPORTED if low > 0.7 else Verdict.DEPENDS
    nearer = (
        Text("S4's law (p = 0)", "S4 的规律（p = 0）") if p < 0.5 else Text("S0's law (p = 1)", "S0 的规律（p = 1）")
    )
    times = {kind: min(found[f"{kind} 12"]) / min(found[f"{kind} 1"]) for kind in KINDS}
    says = Text(
        f"The time of both products grows as m^p with p = {p:.2f} ({low:.2f} – {high:.2f}) from 1 to {TIMED_HEADS[-1]} "
        f"heads at n = {TIMED_TOKENS}, d = {WIDTH}, nearer to {nearer.en}. The softmax grows as "
        f"m^{powers['softmax'][0]:.2f}. "
        f"Twelve heads against one: products {times['products']:.2f} times, softmax {times['softmax']:.1f} times, "
        "whole "
        f"attention {times['whole']:.2f} times by the formula and {times['fused']:.2f} times with the fused kernel.",
        f"n = {TIMED_TOKENS}、d = {WIDTH}，从 1 头到 {TIMED_HEADS[-1]} 头，两次乘法的时间按 m^p 增长，p = {p:.2f}"
        f"（{low:.2f} – {high:.2f}），更接近{nearer.zh}。softmax 按 m^{powers['softmax'][0]:.2f} 增长。12 "
        "头与单头之比：乘法 "
        f"{times['products']:.2f} 倍，softmax {times['softmax']:.1f} 倍，整个注意力按公式 {times['whole']:.2f} 倍、"
        "用融合算子 "
        f"{times['fused']:.2f} 倍。",
    )
    series = tuple(
        Series(label, tuple(Point(heads, 1e3 * min(found[f"{kind} {heads}"])) for heads in TIMED_HEADS))
        for kind, label in KINDS.items()
    )
    picture = Lines(
        Text("Time over the number of heads", "时间随头数的变化"),
        Text("heads m", "头数 m"),
        Text("milliseconds, best round", "毫秒（最快的一轮）"),
        series,
        Text("Level lines do not depend on the number of heads.", "水平的线表示与头数无关。"),
        log_x=True,
        log_y=True,
    )
    return Conclusion(verdict, says, (picture,))


PARTS = (Part("operations", _operation_trials, conclude_operations), Part("time", _time_trials, conclude_time))
