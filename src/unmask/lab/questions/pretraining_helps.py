"""The same classifier from pre-trained and from random weights, over the number of labelled examples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.classify import Examples
from unmask.lab.kit.effects import Effect, by_seed, named, paired, sided, spread
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.minizh import Tuning, headlines, scores, tuned
from unmask.lab.kit.shown import conclude_percent, conclude_points
from unmask.lab.pictures import Lines, Point, Series
from unmask.lab.words import Text

SIZES = (100, 300, 1000)
RATES = (1e-4, 3e-4, 1e-3)
#: What the trials with the seed below chose: the rate of each arm.
CHOSEN = {"fine-tuned": 3e-4, "from nothing": 3e-4}
CHOOSING = 1000


def some_headlines(size: int, seed: int) -> Examples:
    """So many headlines: of one seed, the smaller sets lie within the larger."""
    everything = headlines("train")[0]
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed))
    return everything.some(order[:size].tolist())


def run(arm: str, size: int, rate: float, sizes: tuple[int, int, int], seed: int) -> Record:
    """Train and measure."""
    updates, dev, test = sizes
    how = Tuning(Fit(updates, rate=rate), 32, pretrained=arm == "fine-tuned")
    return scores(tuned(some_headlines(size, seed), how, seed), dev, test)


def _trials(plan: Plan) -> list[Trial]:
    sizes = (plan.at(3, 200), plan.at(50, 500), plan.at(50, 2000))
    found = [
        Trial(
            named(f"choose {arm}, rate {rate:.0e}", CHOOSING),
            partial(run, arm, 300, rate, sizes, CHOOSING),
            {"updates": sizes[0], "rate": rate},
        )
        for arm in CHOSEN
        for rate in RATES
    ]
    for arm, rate in CHOSEN.items():
        for size in SIZES:
            for seed in range(plan.seeds):
                job = partial(run, arm, size, rate, sizes, seed)
                found.append(Trial(named(f"{arm}, {size}", seed), job, {"updates": sizes[0], "rate": rate}))
    return found


def conclude_sizes(records: Mapping[str, Record]) -> Conclusion:
    """Better at every size, and with less data?"""
    arms = {(arm, size): by_seed(records, f"{arm}, {size}", "test") for arm in CHOSEN for size in SIZES}
    gains = {size: paired(arms["fine-tuned", size], arms["from nothing", size]) for size in SIZES}
    sides = [sided(gain) for gain in gains.values()]
    if len(set(sides)) == 1:
        verdict = sides[0]
    else:
        verdict = Verdict.DEPENDS
    less = paired(arms["fine-tuned", 300], arms["from nothing", 1000])
    shrinks = paired(
        [a - b for a, b in zip(arms["fine-tuned", 100], arms["from nothing", 100], strict=True)],
        [a - b for a, b in zip(arms["fine-tuned", 1000], arms["from nothing", 1000], strict=True)],
    )
    head = {
        Verdict.SUPPORTED: Text("Pre-training gives better results at every size", "各个规模上预训练都更好"),
        Verdict.NOT_SUPPORTED: Text("Pre-training gives worse results at every size", "各个规模上预训练都更差"),
        Verdict.DEPENDS: Text("What pre-training gives depends on the size", "预训练有没有用，取决于规模"),
    }.get(verdict, Text("No difference can be seen", "看不出差别"))
    data = {
        Verdict.SUPPORTED: Text("so less labelled data is needed", "所以需要的标注数据更少"),
        Verdict.NOT_SUPPORTED: Text("so it does not save that much data", "所以并没有省下这么多数据"),
    }.get(sided(less), Text("which decides nothing about less data", "不足以说明需要的数据更少"))
    trend = {
        Verdict.SUPPORTED: Text("It shrinks as labels grow", "收益随标签增多而缩小"),
        Verdict.NOT_SUPPORTED: Text("It grows with the labels", "收益随标签增多而扩大"),
    }.get(sided(shrinks), Text("Whether it shrinks with more labels cannot be told", "看不出收益是否随标签增多而缩小"))
    rates = conclude_rates(records)
    english = ", ".join(f"{conclude_points(gain).en} with {size:,} headlines" for size, gain in gains.items())
    chinese = "，".join(f"{size:,} 条标题时{conclude_points(gain).zh}" for size, gain in gains.items())
    says = Text(
        f"{head.en}: {english}. {trend.en}. Fine-tuned with 300 headlines against from nothing with 1,000: "
        f"{conclude_points(less).en}, {data.en}. {rates.en}",
        f"{head.zh}：{chinese}。{trend.zh}。微调 300 条与从零 1,000 条相比，"
        f"相差{conclude_points(less).zh}，{data.zh}。{rates.zh}",
    )
    return Conclusion(verdict, says, (conclude_curves(arms), conclude_gains(gains)))


def conclude_rates(records: Mapping[str, Record]) -> Text:
    """Whether the rates that were used are those that the choosing trials would choose."""
    best = {
        arm: max(RATES, key=lambda rate: records[named(f"choose {arm}, rate {rate:.0e}", CHOOSING)]["dev"])
        for arm in CHOSEN
    }
    used = ", ".join(f"{rate:.0e}" for rate in CHOSEN.values())
    if best == CHOSEN:
        return Text(f"Each arm has its own best rate of three ({used}).", f"两组各用三个学习率中最好的一个（{used}）。")
    other = ", ".join(f"{rate:.0e}" for rate in best.values())
    return Text(
        f"The rates used were {used}; chosen anew here, they would be {other}.",
        f"所用学习率为 {used}；若在此重新选择，则是 {other}。",
    )


def conclude_curves(arms: Mapping[tuple[str, int], list[float]]) -> Lines:
    """Accuracy over the number of headlines."""
    names = {"fine-tuned": Text("fine-tuned mini-zh", "微调 mini-zh"), "from nothing": Text("from nothing", "从零训练")}
    series = tuple(
        Series(name, tuple(Effect(*(100 * v for v in spread(arms[arm, size]))).point(size) for size in SIZES))
        for arm, name in names.items()
    )
    most = conclude_percent(spread(arms["fine-tuned", 1000]))
    return Lines(
        Text("Accuracy over labelled examples", "准确率随标注数量的变化"),
        Text("labelled headlines", "标注标题数"),
        Text("test accuracy, %", "测试准确率，%"),
        series,
        Text(
            f"Ten classes, so guessing gives 10 %; fine-tuned with 1,000 headlines: {most}.",
            f"共十类，瞎猜为 10 %；用 1,000 条微调：{most}。",
        ),
        log_x=True,
    )


def conclude_gains(gains: Mapping[int, Effect]) -> Lines:
    """What pre-training gives, over the number of headlines."""
    points = tuple(Point(size, *(100 * value for value in gain)) for size, gain in gains.items())
    return Lines(
        Text("What pre-training gives", "预训练的收益"),
        Text("labelled headlines", "标注标题数"),
        Text("fine-tuned − from nothing, points", "微调 − 从零，百分点"),
        (Series(Text("gain", "收益"), points),),
        Text(
            "Above 0 pre-training helps; bars are 95 % intervals over seeds.",
            "大于 0 表示有用；竖线为种子间 95 % 区间。",
        ),
        log_x=True,
    )


PARTS = (Part("over-training-size", _trials, conclude_sizes),)
