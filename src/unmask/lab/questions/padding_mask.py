"""Padding hidden by a large negative number: when is it large enough, and what happens at the edges?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.pictures import Heat
from unmask.lab.words import Text, both
from unmask.nn.attend import Attend
from unmask.nn.masks import Mask
from unmask.nn.positions import NoPositions
from unmask.nn.scores import ScaledDot

REAL, PADDED, ROWS, VALUES = 24, 40, 100, 16
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEVIATIONS = (1, 10, 100)
NUMBERS = {"-10": -1e1, "-100": -1e2, "-1000": -1e3, "-1e4": -1e4, "-1e9": -1e9, "-inf": -math.inf}
WAYS = ("set", "added")
_FLOOR = -50  # of logarithms in the picture


def hidden(scores: Tensor, number: float, way: str) -> Tensor:
    """Scores whose last ones, the padded, are set to a number or lowered by it, in the scores' own format."""
    mask = torch.tensor(number, dtype=torch.float64).to(scores.dtype)  # −1e9 becomes −inf in float16
    scores = scores.clone()
    scores[:, REAL:] = mask if way == "set" else scores[:, REAL:] + mask
    return scores


def leak(name: str, deviation: int) -> Record:
    """Weight on padding, for each number and way, and what it does to the output."""
    generator = torch.Generator().manual_seed(deviation)
    exact = deviation * torch.randn(ROWS, REAL + PADDED, generator=generator, dtype=torch.float64)
    values = torch.randn(REAL + PADDED, VALUES, generator=generator, dtype=torch.float64).to(FORMATS[name])
    scores = exact.to(FORMATS[name])
    without = scores[:, :REAL].softmax(-1) @ values[:REAL]
    found: Record = {}
    for way in WAYS:
        right = hidden(scores, -math.inf, way).softmax(-1) @ values
        for label, number in NUMBERS.items():
            weights = hidden(scores, number, way).softmax(-1)
            output = weights @ values
            theory = hidden(scores.double(), number, way)
            gap = float((theory[:, REAL:].amax(1) - theory[:, :REAL].amax(1)).max())
            found[f"{label} {way}"] = {
                "weight": float(weights[:, REAL:].double().sum(1).max()),
                "as_without": float((output - without).abs().max()),
                "as_infinity": bool(torch.equal(output, right)),
                "theory_log10": None if math.isinf(gap) else gap / math.log(10),
            }
    return found


def edges(name: str) -> Record:
    """Rows without a real key, real scores as low as the mask, two masks, numbers too large for the format."""
    dtype = FORMATS[name]
    scores = torch.randn(1, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    low = {}
    for real in (-950, -1050):
        row = torch.cat([torch.full((1, REAL), float(real)), torch.zeros(1, PADDED)], 1).to(dtype)
        low[str(real)] = {
            label: float(hidden(row, NUMBERS[label], "set").softmax(-1)[:, REAL:].double().sum())
            for label in ("-1000", "-inf")
        }
    alone = {
        "-1000 set": torch.full_like(scores, -1000.0),
        "-1000 added": scores - 1000,
        "-inf": torch.full_like(scores, -math.inf),
    }
    least = torch.finfo(dtype).min
    twice = {
        label: torch.full_like(scores, number) + torch.full_like(scores, number)
        for label, number in (("-1000", -1000.0), ("-40000", -40000.0), ("least", least))
    }
    return {
        "alone": {label: _numbers(row.softmax(-1)) for label, row in alone.items()},
        "low": low,
        "twice": {label: {"finite": bool(row.isfinite().all())} | _row(row) for label, row in twice.items()},
        "large": {"finite": bool(torch.tensor(-1e9).to(dtype).isfinite()), "told": _told(scores)},
        "library": _library(dtype),
    }


def _numbers(weights: Tensor) -> list[float] | None:
    """Weights of a row, or None where they are no numbers."""
    return None if bool(weights.isnan().any()) else [float(weight) for weight in weights[0].double()]


def _row(scores: Tensor) -> Record:
    return {"weights": _numbers(scores.softmax(-1))}


def _told(scores: Tensor) -> str:
    """What torch says to −1e9 in place of scores."""
    try:
        scores.masked_fill(torch.ones_like(scores, dtype=torch.bool), -1e9)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def _library(dtype: torch.dtype) -> Record:
    """A row of padding alone through the library's own attention, both backends."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 3, 8, generator=generator).to(dtype) for _ in range(3))
    allowed = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    allowed[:, :, 1] = False
    found: Record = {}
    for backend in ("reference", "fast"):
        attend = Attend(ScaledDot(8), NoPositions()).eval()
        attend.backend = backend
        answer = attend(q, k, v, Mask(allowed))
        found[backend] = {"nan": bool(answer.isnan().any()), "most": float(answer[:, :, 1].abs().nan_to_num().max())}
    return found


def _leak_trials(plan: Plan) -> list[Trial]:
    arms = [(name, deviation) for name in FORMATS for deviation in DEVIATIONS]
    return [Trial(_arm(*arm), partial(leak, *arm), {"format": arm[0], "deviation": arm[1]}) for arm in arms]


def _edge_trials(plan: Plan) -> list[Trial]:
    return [Trial(name, partial(edges, name), {"format": name}) for name in FORMATS]


def _arm(name: str, deviation: int) -> str:
    return f"{name}, deviation {deviation}"


def conclude_short(name: str, deviation: int) -> str:
    """A case in few letters."""
    return f"{name} σ{deviation}"


def conclude_leak(records: Mapping[str, Record]) -> Conclusion:
    """−1000 will do where nothing leaks and the output is that of −inf to the bit."""

    def leaks(name: str, deviation: int, number: str = "-1000") -> bool:
        cells = [records[_arm(name, deviation)][f"{number} {way}"] for way in WAYS]
        return any(cell["weight"] > 0 or not cell["as_infinity"] for cell in cells)

    by_deviation = {dev: [name for name in FORMATS if leaks(name, dev)] for dev in DEVIATIONS}
    leaking = {dev: names for dev, names in by_deviation.items() if names}
    verdict = Verdict.DEPENDS if leaking else Verdict.SUPPORTED
    if by_deviation[1]:
        verdict = Verdict.NOT_SUPPORTED
    where = ", ".join(f"{dev}: {'/'.join(names)}" for dev, names in leaking.items())
    low = max(records[_arm("float32", 1)][f"-10 {way}"]["weight"] for way in WAYS)
    hundred = [conclude_short(name, dev) for name in FORMATS for dev in DEVIATIONS if leaks(name, dev, "-100")]
    apart = max(records[_arm("float32", dev)][f"-1000 {way}"]["as_without"] for dev in DEVIATIONS for way in WAYS)
    says = Text(
        (
            f"−1000 leaks at deviations and formats {where}. "
            if leaking
            else "With −1000 the weight on padding is exactly 0 in float32, bfloat16 and float16, set or added, for "
            "scores of deviation 1, 10 and 100, and the output equals that of −inf to the bit. "
        )
        + f"In float32 it is within {apart:.0g} of the same row without padded keys. "
        f"−10 is not enough: up to {low:.1e} of a row goes to padding in float32 at deviation 1; −100 leaks in "
        f"{len(hundred)} of {len(records)} cases{' (' + '; '.join(hundred) + ')' if hundred else ''}.",
        (
            f"−1000 在下列标准差和格式下泄漏：{where}。"
            if leaking
            else "用 −1000 时，无论设定还是相加，得分的标准差为 1、10、100，float32、bfloat16、float16 中 padding "
            "的权重都恰好为 0，"
            "输出与 −inf 逐位相同。"
        )
        + f"float32 下与去掉 padding 的同一行相差不超过 {apart:.0g}。−10 不够：标准差为 1 时 float32 一行中最多有 "
        f"{low:.1e} 给了 padding；−100 在 {len(records)} 种情形中有 {len(hundred)} 种泄漏"
        f"{'（' + '；'.join(hundred) + '）' if hundred else ''}。",
    )

    picture = conclude_shades(records)
    return Conclusion(verdict, says, (picture,))


def conclude_shades(records: Mapping[str, Record]) -> Heat:
    """The weight on padding, case by case."""

    def shade(arm: str, number: str) -> float:
        weight = max(records[arm][f"{number} {way}"]["weight"] for way in WAYS)
        return max(float(_FLOOR), math.log10(weight)) if weight > 0 else float(_FLOOR)

    arms = tuple(_arm(name, dev) for name in FORMATS for dev in DEVIATIONS)
    return Heat(
        Text("Weight on padding", "padding 得到的权重"),
        tuple(conclude_short(name, dev) for name in FORMATS for dev in DEVIATIONS),
        tuple(NUMBERS),
        tuple(tuple(shade(arm, number) for number in NUMBERS) for arm in arms),
        Text(
            f"Dark cells leak; the palest ({_FLOOR}) have nothing on padding, or as good as nothing.",
            f"深色表示泄漏；最浅的（{_FLOOR}）表示 padding 上没有或几乎没有权重。",
        ),
        Text("number", "所用的数"),
        Text("format and deviation of scores", "格式与得分的标准差"),
        Text("log10 of the weight", "权重的 log10"),
    )


def conclude_edges(records: Mapping[str, Record]) -> Conclusion:
    """Each case that goes wrong is named; −inf stands in the same table."""
    alone = [name for name, one in records.items() if any(one["alone"]["-1000 set"] or [1.0])]
    low = {
        real: {name: one["low"][real]["-1000"] for name, one in records.items() if one["low"][real]["-1000"] > 0}
        for real in ("-950", "-1050")
    }
    ordered = [name for name, one in records.items() if len(set(one["alone"]["-1000 added"] or [])) > 1]
    broken = [name for name, one in records.items() if one["alone"]["-inf"] is None]
    overflown = {
        label: [name for name, one in records.items() if not one["twice"][label]["finite"]]
        for label in ("-1000", "-40000", "least")
    }
    large = [name for name, one in records.items() if not one["large"]["finite"]]
    safe = all(not back["nan"] and back["most"] == 0 for one in records.values() for back in one["library"].values())
    wrong = bool(alone or low["-950"] or low["-1050"] or overflown["-1000"])
    first = records["float32"]["alone"]["-1000 set"] or [math.nan]
    most = {real: max(found.values(), default=0.0) for real, found in low.items()}
    says = Text(
        f"A row of padding alone: −1000 gives an even mixture of padding ({first[0]:.3f} each) in "
        f"{conclude_list(alone)}, "
        "and if "
        f"added keeps their order in {conclude_list(ordered)}; −inf gives NaN in {conclude_list(broken)}. Real "
        "scores all at −950: "
        "up to "
        f"{most['-950']:.0e} leaks ({conclude_list(low['-950'])}); at −1,050: padding takes up to "
        f"{most['-1050']:.2f}. Two "
        "masks: "
        f"−1000 twice overflows in {conclude_list(overflown['-1000'])}, −40,000 twice in "
        f"{conclude_list(overflown['-40000'])}, the "
        "least "
        f"number twice in {conclude_list(overflown['least'])}; −1e9 is −inf in {conclude_list(large)}. This "
        "library's attention gives "
        f"{'0 and no NaN' if safe else 'something else than 0, which is a fault'} for such a row.",
        f"整行都是 padding：−1000 在 {conclude_list(alone, '、')} 中给出均匀的 padding 混合（各 {first[0]:.3f}），"
        "若是相加则在 "
        f"{conclude_list(ordered, '、')} 中保留次序；−inf 在 {conclude_list(broken, '、')} 中得到 NaN。真实得分全为 "
        "−950：最多泄漏 "
        f"{most['-950']:.0e}（{conclude_list(low['-950'], '、')}）；全为 −1,050：padding 最多占 {most['-1050']:.2f}。"
        "两个 "
        "mask 相加："
        f"−1000 两次溢出的有 {conclude_list(overflown['-1000'], '、')}，−40,000 两次 "
        f"{conclude_list(overflown['-40000'], '、')}，"
        "最小数两次 "
        f"{conclude_list(overflown['least'], '、')}；−1e9 在 {conclude_list(large, '、')} 中就是 −inf。"
        "这样的行经过本库的注意力，得到"
        f"{'0，没有 NaN' if safe else '的不是 0，这是一个错误'}。",
    )
    table = conclude_cases(records)
    return Conclusion(Verdict.DEPENDS if wrong else Verdict.SUPPORTED, says, (), table)


def conclude_cases(records: Mapping[str, Record]) -> Table:
    """Every case in every format."""
    columns = (Text("case", "情况"), *map(both, records))
    cases: dict[str, Callable[[Record], str]] = {
        "padding alone, −1000 set · 全是 padding，设为 −1000": lambda one: conclude_shown(one["alone"]["-1000 set"]),
        "padding alone, −1000 added · 全是 padding，加 −1000": lambda one: conclude_shown(one["alone"]["-1000 added"]),
        "padding alone, −inf · 全是 padding，−inf": lambda one: conclude_shown(one["alone"]["-inf"]),
        "real at −950, −1000 set · 真实得分 −950": lambda one: f"{one['low']['-950']['-1000']:.2g}",
        "real at −1,050, −1000 set · 真实得分 −1,050": lambda one: f"{one['low']['-1050']['-1000']:.2g}",
        "real at −1,050, −inf set · 真实得分 −1,050，−inf": lambda one: f"{one['low']['-1050']['-inf']:.2g}",
        "−1000 twice, all padding · −1000 两次": lambda one: conclude_shown(one["twice"]["-1000"]["weights"]),
        "−40,000 twice, all padding · −40,000 两次": lambda one: conclude_shown(one["twice"]["-40000"]["weights"]),
        "least number twice, all padding · 最小数两次": lambda one: conclude_shown(one["twice"]["least"]["weights"]),
        "−1e9 in this format · 写入 −1e9": lambda one: (
            "finite" if one["large"]["finite"] else one["large"]["told"] or "−inf"
        ),
    }
    rows = tuple((case, *(show(one) for one in records.values())) for case, show in cases.items())
    return Table(columns, rows)


def conclude_list(names: Iterable[str], comma: str = ", ") -> str:
    """Formats, or that there is none."""
    return comma.join(names) or ("no format" if comma == ", " else "无")


def conclude_shown(weights: list[float] | None) -> str:
    """The least and the largest weight."""
    return "NaN" if weights is None else f"{min(weights):.3g} … {max(weights):.3g}"


PARTS = (Part("leak", _leak_trials, conclude_leak), Part("edges", _edge_trials, conclude_edges))
