"""The recommended grid of fine-tuning, all of it, and what lies beyond."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.effects import Effect, by_seed, named, paired, spread
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.minizh import Tuning, headlines, scores, tuned
from unmask.lab.kit.shown import conclude_percent, conclude_points
from unmask.lab.pictures import Lines, Series
from unmask.lab.words import Text

BATCHES, RATES, EPOCHS = (16, 32), (5e-5, 3e-5, 2e-5), (3, 4)
OUTSIDE = (1e-4, 3e-4, 1e-3)  # at batch 16 and 4 epochs
MARGIN = 0.01


def cell(batch: int, rate: float, epochs: int) -> str:
    """The name of a cell."""
    return f"batch {batch}, rate {rate:.0e}, {epochs} epochs"


def run(batch: int, rate: float, epochs: int, sizes: tuple[int, int, int], seed: int) -> Record:
    """Fine-tune and measure."""
    train, dev, test = sizes
    examples = headlines("train")[0].some(list(range(train)))
    how = Tuning(Fit(epochs * train // batch, rate=rate), batch)
    return scores(tuned(examples, how, seed), dev, test)


def _cells() -> list[tuple[int, float, int]]:
    return [*product(BATCHES, RATES, EPOCHS), *((16, rate, 4) for rate in OUTSIDE)]


def _trials(plan: Plan) -> list[Trial]:
    sizes = (plan.at(32, 800), plan.at(50, 500), plan.at(50, 2000))
    return [
        Trial(named(cell(*one), seed), partial(run, *one, sizes, seed), {"train": sizes[0]})
        for one in _cells()
        for seed in range(plan.seeds)
    ]


def conclude_effect(records: Mapping[str, Record], inside: Iterable[tuple[int, float, int]]) -> tuple[str, str, Effect]:
    """The best cell inside, the best outside, both chosen by development accuracy, and what the second has more."""

    def best(cells: Iterable[tuple[int, float, int]]) -> str:
        return max((cell(*one) for one in cells), key=lambda name: spread(by_seed(records, name, "dev")).mean)

    first, second = best(inside), best((16, rate, 4) for rate in OUTSIDE)
    return first, second, paired(by_seed(records, second, "test"), by_seed(records, first, "test"))


def conclude_verdict(effect: Effect) -> Verdict:
    """On the grid, from how much better it is outside."""
    if effect.high < 0 or (effect.low > -MARGIN and effect.high < MARGIN):
        return Verdict.SUPPORTED
    return Verdict.NOT_SUPPORTED if effect.low > 0 else Verdict.NOT_VISIBLE


def conclude_variance(records: Mapping[str, Record]) -> dict[str, float]:
    """The share of the grid's variance that goes with each setting, and with the seed; the rest is interplay."""
    seeds = range(len(by_seed(records, cell(16, 5e-5, 3), "test")))
    values = {
        (batch, rate, epochs, seed): float(records[named(cell(batch, rate, epochs), seed)]["test"])
        for batch, rate, epochs, seed in product(BATCHES, RATES, EPOCHS, seeds)
    }
    mean = sum(values.values()) / len(values)
    total = sum((value - mean) ** 2 for value in values.values()) or 1.0
    found = {}
    for place, name in enumerate(("batch", "rate", "epochs", "seed")):
        groups: dict[float, list[float]] = {}
        for key, value in values.items():
            groups.setdefault(key[place], []).append(value)
        found[name] = sum(len(one) * (sum(one) / len(one) - mean) ** 2 for one in groups.values()) / total
    return found


def conclude_grid(records: Mapping[str, Record]) -> Conclusion:
    """Whether the grid holds what is best for this model."""
    inside, outside, effect = conclude_effect(records, product(BATCHES, RATES, EPOCHS))
    verdict = conclude_verdict(effect)
    groups = {
        conclude_verdict(conclude_effect(records, [(batch, rate, epochs) for rate in RATES])[2])
        for batch, epochs in product(BATCHES, EPOCHS)
    }
    if {Verdict.SUPPORTED, Verdict.NOT_SUPPORTED} <= groups:
        verdict = Verdict.DEPENDS
    shares = conclude_variance(records)
    head = {
        Verdict.SUPPORTED: Text("Nothing beyond the grid is better for this model", "对这个模型，网格之外没有更好的"),
        Verdict.NOT_SUPPORTED: Text("The grid misses what is best for this model", "网格漏掉了对这个模型最好的设置"),
        Verdict.DEPENDS: Text(
            "Whether the grid is enough depends on batch size and epochs", "网格够不够用，取决于批大小和轮数"
        ),
    }.get(verdict, Text("Seeds differ too much to tell", "种子间差别太大，看不出来"))
    better, best = (conclude_percent(spread(by_seed(records, name, "test"))) for name in (outside, inside))
    says = Text(
        f"{head.en}: the best rate outside ({outside}) has {better} right, the best cell inside ({inside}) {best}, a "
        f"difference of {conclude_points(effect).en}. Within the grid, {shares['rate']:.0%} of the variance go with "
        f"the rate, {shares['batch']:.0%} with the batch size, {shares['epochs']:.0%} with the epochs and "
        f"{shares['seed']:.0%} with the seed.",
        f"{head.zh}：网格外最好的学习率（{outside}）准确率 {better}，网格内最好的一格（{inside}）{best}，"
        f"相差{conclude_points(effect).zh}。网格内的方差，{shares['rate']:.0%} 来自学习率，"
        f"{shares['batch']:.0%} 来自批大小，{shares['epochs']:.0%} 来自轮数，{shares['seed']:.0%} 来自种子。",
    )
    columns = (Text("cell", "格"), Text("development, %", "开发集，%"), Text("test, %", "测试集，%"))
    rows = tuple(
        (cell(*one), *(conclude_percent(spread(by_seed(records, cell(*one), part))) for part in ("dev", "test")))
        for one in _cells()
    )
    return Conclusion(verdict, says, (conclude_picture(records),), Table(columns, rows))


def conclude_picture(records: Mapping[str, Record]) -> Lines:
    """Accuracy over the rate, a line for each batch size and number of epochs."""
    series = []
    for batch, epochs in product(BATCHES, EPOCHS):
        rates = sorted((*RATES, *(OUTSIDE if (batch, epochs) == (16, 4) else ())))
        found = [(rate, spread(by_seed(records, cell(batch, rate, epochs), "test"))) for rate in rates]
        points = tuple(Effect(*(100 * value for value in one)).point(1e5 * rate) for rate, one in found)
        series.append(Series(Text(f"batch {batch}, {epochs} epochs", f"批 {batch}，{epochs} 轮"), points))
    return Lines(
        Text("Accuracy over the learning rate", "准确率随学习率的变化"),
        Text("learning rate, × 1e-5", "学习率，× 1e-5"),
        Text("test accuracy, %", "测试准确率，%"),
        tuple(series),
        Text(
            "The grid ends at 5; what lies to the right was tried with batch 16 and 4 epochs only.",
            "网格到 5 为止；右边的部分只用批 16、4 轮试过。",
        ),
        log_x=True,
    )


PARTS = (Part("grid", _trials, conclude_grid),)
