"""LayerNorm on queries and keys in place of √d_k: variance, training, cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.costs import attention_of, one_thread, rows_of
from unmask.lab.kit.daily import daily, hidden, windows
from unmask.lab.kit.effects import Effect, by_seed, named, paired, sided, spread
from unmask.lab.kit.fitting import fit, seeded
from unmask.lab.kit.mlm import MlmRun, mlm_loss, settings_of
from unmask.lab.kit.short_mlm import measured, short_run
from unmask.lab.kit.telling import conclude_compared, conclude_gaps, conclude_lost, conclude_table
from unmask.lab.kit.timing import interleaved
from unmask.lab.pictures import Lines, Point, Series
from unmask.lab.words import Text, both
from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.nn.attend import Attend, attention_backend
from unmask.nn.build import build_encoder
from unmask.nn.scores import NormedDot
from unmask.nn.settings import DropoutSettings, LayerSettings

WIDTHS, DEVIATIONS, PAIRS = (16, 64, 256), (0.1, 1.0, 10.0), 100_000
MARGIN = 0.05  # nats
ARMS = {
    "scaled": Text("scaled dot", "缩放点积"),
    "plain": Text("plain dot", "普通点积"),
    "norm, gains 1": Text("LayerNorm, gains 1", "LayerNorm，增益 1"),
    "norm, gains d^-1/4": Text("LayerNorm, gains 128^(−1/4)", "LayerNorm，增益 128^(−1/4)"),
}
SCORES = {"scaled": "scaled_dot", "plain": "dot", "norm, gains 1": "normed_dot", "norm, gains d^-1/4": "normed_dot"}
HIDDEN, HEADS, LENGTHS = 768, 12, (128, 512)
PLACES = {"attention": Text("attention", "注意力"), "block": Text("whole block", "整个 block")}
PASSES = {"forward": Text("forward", "前向"), "both": Text("forward and backward", "前向加反向")}


@torch.no_grad()
def variance(width: int, deviation: float) -> Record:
    """Of q·k behind a LayerNorm, with gains of 1 and with the library's first gains."""
    generator = torch.Generator().manual_seed(width)
    q, k = (deviation * torch.randn(PAIRS, width, generator=generator) for _ in range(2))
    score = NormedDot(width)
    plain = (score.prepare_queries(q) * score.prepare_keys(k)).sum(1, dtype=torch.float64)
    score.initialise(generator)
    gained = (score.prepare_queries(q) * score.prepare_keys(k)).sum(1, dtype=torch.float64)
    return {
        "gains_1": float(plain.var()),
        "gains_root": float(gained.var()),
        "gain": float(score.query_norm.weight[0]),
        "largest": float(plain.abs().max()),
    }


def learn(run: MlmRun, arm: str, seed: int) -> Record:
    """Pre-train with one head of width 128; the largest score met on the way is kept too."""
    seeded(seed)
    model = build_model(settings_of(run.model), seed=seed)
    assert isinstance(model, Bert)
    attends = [module for module in model.modules() if isinstance(module, Attend)]
    if arm == "norm, gains 1":
        for norm in (module for one in attends for module in one.modules() if isinstance(module, nn.LayerNorm)):
            nn.init.ones_(norm.weight)
    rng, largest = np.random.default_rng(seed), [0.0]

    def look(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        largest[0] = max(largest[0], float(output.detach().abs().max()))

    def loss(number: int) -> Tensor:
        batch = hidden(windows(daily().learned, run.length, run.batch, rng), run.masking, rng)
        if number % 10:
            return mlm_loss(model, batch)
        hooks = [one.score.register_forward_hook(look) for one in attends]
        with attention_backend(model, "reference"):  # every tenth update follows the formula, which shows its scores
            found = mlm_loss(model, batch)
        for hook in hooks:
            hook.remove()
        return found

    losses = fit(model, loss, run.fit)
    return {**measured(model, losses), "largest": largest[0] if math.isfinite(largest[0]) else 0.0}


class _Timed:
    """An attention or a block on rows of one sequence."""

    def __init__(self, score: str, tokens: int, place: str) -> None:
        rows, self.plan = rows_of(tokens, HIDDEN)
        self.rows = rows.requires_grad_()
        self.module: nn.Module = attention_of(HIDDEN, HEADS, score=score)
        if place == "block":
            sizes = {"hidden_size": HIDDEN, "num_heads": HEADS, "ffn_size": 4 * HIDDEN, "score": score}
            settings = LayerSettings.parse({**sizes, "dropout": DropoutSettings.everywhere(0.0)})
            self.module = build_encoder(settings, settings.uniform(1))

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.module(self.rows, self.plan)

    def both(self) -> None:
        self.module(self.rows, self.plan).sum().backward()


def cost(rounds: int) -> Record:
    """Seconds with the scale and with LayerNorm, in turn."""
    with one_thread():
        runs: dict[str, Callable[[], object]] = {}
        for place, tokens, name in product(PLACES, LENGTHS, ("scaled_dot", "normed_dot")):
            timed = _Timed(name, tokens, place)
            runs[f"{place}, {tokens}, forward, {name}"] = timed.forward
            runs[f"{place}, {tokens}, both, {name}"] = timed.both
        added = sum(p.numel() for p in NormedDot(HIDDEN // HEADS).parameters())
        return {"seconds": interleaved(runs, rounds), "added_parameters": added}


def _variance_trials(plan: Plan) -> list[Trial]:
    return [
        Trial(_cell(width, deviation), partial(variance, width, deviation), {"d_k": width, "deviation": deviation})
        for width in WIDTHS
        for deviation in DEVIATIONS
    ]


def _cell(width: int, deviation: float) -> str:
    return f"d_k {width}, deviation {deviation:g}"


def _training_trials(plan: Plan) -> list[Trial]:
    trials = []
    for arm in ARMS:
        run = short_run(plan, {"num_heads": 1, "init": "xavier", "score": SCORES[arm]})
        for seed in range(plan.seeds):
            settings = {"model": dict(run.model), "arm": arm, "updates": run.fit.updates, "seed": seed}
            trials.append(Trial(named(arm, seed), partial(learn, run, arm, seed), settings))
    return trials


def _cost_trials(plan: Plan) -> list[Trial]:
    rounds = plan.at(2, 9)
    return [Trial("times", partial(cost, rounds), {"rounds": rounds})]


def conclude_variance(records: Mapping[str, Record]) -> Conclusion:
    """A norm alone leaves the variance at d_k; the right gains bring it to 1."""
    cells = {(w, dev): records[_cell(w, dev)] for w in WIDTHS for dev in DEVIATIONS}
    as_before = all(abs(one["gains_1"] / (w * w / (w - 1)) - 1) <= 0.05 for (w, _), one in cells.items())
    alone = all(abs(one["gains_1"] - 1) <= 0.05 for one in cells.values())
    gained = all(abs(one["gains_root"] - 1) <= 0.05 for (w, _), one in cells.items() if w >= 64)
    bounded = all(one["largest"] <= w * 1.0001 for (w, _), one in cells.items())
    if alone:
        verdict = Verdict.SUPPORTED
    else:
        verdict = Verdict.DEPENDS if as_before and gained else Verdict.NOT_SUPPORTED
    one, wide = cells[64, 1.0], cells[256, 1.0]
    spread_of = [cells[64, dev]["gains_1"] for dev in DEVIATIONS]
    says = Text(
        f"LayerNorm alone {'brings the variance of q·k to 1' if alone else 'does not replace the scale'}: with gains "
        "1 it is "
        f"{one['gains_1']:.1f} at d_k = 64 and {wide['gains_1']:.1f} at 256 (d_k²/(d_k − 1) is 65.0 and 257.0), "
        "whether the "
        f"vectors had deviation 0.1 or 10 ({min(spread_of):.1f} – {max(spread_of):.1f}). With gains d_k^(−1/4) it is "
        f"{one['gains_root']:.3f} and {wide['gains_root']:.3f}{', as when scaled' if gained else ''}. Scores "
        f"{'never exceed' if bounded else 'exceed'} d_k: the largest met at 64 is {one['largest']:.1f}.",
        f"单靠 LayerNorm {'就使 q·k 的方差变为 1' if alone else '不能代替缩放'}：增益为 1 时，d_k = 64 的方差为 "
        f"{one['gains_1']:.1f}，"
        f"256 时为 {wide['gains_1']:.1f}（d_k²/(d_k − 1) 为 65.0 和 257.0），无论向量原来的标准差是 0.1 还是 10"
        f"（{min(spread_of):.1f} – {max(spread_of):.1f}）。增益为 d_k^(−1/4) 时为 {one['gains_root']:.3f} 和 "
        f"{wide['gains_root']:.3f}"
        f"{'，与缩放时一样' if gained else ''}。得分{'从不超过' if bounded else '超过了'} d_k：64 维时最大为 "
        f"{one['largest']:.1f}。",
    )
    picture, table = conclude_widths(cells)
    return Conclusion(verdict, says, (picture,), table)


def conclude_widths(cells: Mapping[tuple[int, float], Record]) -> tuple[Lines, Table]:
    """Variances over the width."""
    series = tuple(
        Series(label, tuple(Point(w, cells[w, 1.0][what]) for w in WIDTHS))
        for what, label in (
            ("gains_1", Text("gains 1", "增益 1")),
            ("gains_root", Text("gains d_k^(−1/4)", "增益 d_k^(−1/4)")),
        )
    )
    picture = Lines(
        Text("Variance of q·k behind a LayerNorm", "经过 LayerNorm 的 q·k 的方差"),
        both("d_k"),
        Text("variance", "方差"),
        series,
        Text(
            "A rising line still needs the scale; a level one at 1 does not.", "上升的线仍需要缩放，停在 1 的不需要。"
        ),
        log_x=True,
        log_y=True,
    )
    rows = tuple(
        (str(w), f"{dev:g}", f"{one['gains_1']:.2f}", f"{one['gains_root']:.4f}", f"{one['largest']:.1f}")
        for (w, dev), one in cells.items()
    )
    columns = (
        both("d_k"),
        Text("deviation before", "原来的标准差"),
        Text("variance, gains 1", "方差，增益 1"),
        Text("variance, gains d_k^(−1/4)", "方差，增益 d_k^(−1/4)"),
        Text("largest |q·k|, gains 1", "最大 |q·k|，增益 1"),
    )
    return picture, Table(columns, rows)


def conclude_training(records: Mapping[str, Record]) -> Conclusion:
    """Within 0.05 nats of the scaled dot, with the right gains and without."""
    base = by_seed(records, "scaled", "score")
    effects = {arm: paired(by_seed(records, arm, "score"), base) for arm in ARMS if arm != "scaled"}
    right, plain = (conclude_replaces(effects[arm]) for arm in ("norm, gains d^-1/4", "norm, gains 1"))
    opposite = {right, plain} == {Verdict.SUPPORTED, Verdict.NOT_SUPPORTED}
    verdict = Verdict.DEPENDS if opposite else right
    largest = {arm: max(by_seed(records, arm, "largest")) for arm in ARMS}
    lost = conclude_lost(records)
    told = {arm: conclude_compared(effect) for arm, effect in effects.items()}
    says = Text(
        f"Held-out loss against the scaled dot product, in nats: LayerNorm with gains 128^(−1/4) is "
        f"{told['norm, gains d^-1/4'].en}, with gains 1 {told['norm, gains 1'].en}, the plain dot product "
        f"{told['plain'].en}; the "
        f"margin is +{MARGIN}. Largest scores met: scaled {largest['scaled']:.0f}, plain {largest['plain']:.0f}, "
        "LayerNorm "
        f"{largest['norm, gains d^-1/4']:.0f} and {largest['norm, gains 1']:.0f}.{lost.en}",
        f"与缩放点积相比的留出集损失（nat）：LayerNorm、增益 128^(−1/4) {told['norm, gains d^-1/4'].zh}，增益 1 "
        f"{told['norm, gains 1'].zh}，普通点积{told['plain'].zh}；界限为 +{MARGIN}。出现过的最大得分：缩放 "
        f"{largest['scaled']:.0f}，"
        f"普通 {largest['plain']:.0f}，LayerNorm {largest['norm, gains d^-1/4']:.0f} 和 "
        f"{largest['norm, gains 1']:.0f}。{lost.zh}",
    )
    title = Text("Held-out loss − that of the scaled dot", "留出集损失 − 缩放点积的损失")
    picture = conclude_gaps(effects, ARMS, title, Text("nats", "nat"))
    columns = {"score": Text("loss", "损失"), "largest": Text("largest score", "最大得分")}
    return Conclusion(verdict, says, (picture,), conclude_table(records, ARMS, "scaled", columns))


def conclude_replaces(effect: Effect) -> Verdict:
    """On the claim that an arm loses less than the margin."""
    return sided(Effect(-effect.mean, -effect.high, -effect.low), -MARGIN)


def conclude_cost(records: Mapping[str, Record]) -> Conclusion:
    """Ratio of times, with its interval over rounds."""
    found, added = records["times"]["seconds"], records["times"]["added_parameters"]
    ratios = {}
    for place, tokens, way in product(PLACES, LENGTHS, PASSES):
        name = f"{place}, {tokens}, {way}"
        slow, fast = found[f"{name}, normed_dot"], found[f"{name}, scaled_dot"]
        ratios[place, tokens, way] = spread(a / b for a, b in zip(slow, fast, strict=True))
    sides = [sided(ratios["attention", tokens, way], 1.0) for tokens in LENGTHS for way in PASSES]
    verdict = sides[0] if len(set(sides)) == 1 else Verdict.DEPENDS
    short, long = (ratios["attention", tokens, "both"] for tokens in LENGTHS)
    block = ratios["block", LENGTHS[-1], "both"]
    says = Text(
        f"With LayerNorm on queries and keys an attention takes {short.mean:.2f} times as long ({short.low:.2f} – "
        f"{short.high:.2f}) at {LENGTHS[0]} tokens and {long.mean:.2f} times ({long.low:.2f} – {long.high:.2f}) at "
        f"{LENGTHS[1]}, forward and backward; a whole block at {LENGTHS[1]} {block.mean:.2f} times ({block.low:.2f} – "
        f"{block.high:.2f}). It adds {added} parameters a layer.",
        f"Q、K 上加 LayerNorm，注意力前向加反向的用时，{LENGTHS[0]} 个词时是 {short.mean:.2f} 倍（{short.low:.2f} – "
        f"{short.high:.2f}），"
        f"{LENGTHS[1]} 个词时是 {long.mean:.2f} 倍（{long.low:.2f} – {long.high:.2f}）；整个 block 在 {LENGTHS[1]} "
        "个词时是 "
        f"{block.mean:.2f} 倍（{block.low:.2f} – {block.high:.2f}）。每层增加 {added} 个参数。",
    )
    rows = tuple(
        (
            f"{PLACES[place].en} · {PLACES[place].zh}",
            str(tokens),
            f"{PASSES[way].en} · {PASSES[way].zh}",
            f"{ratio.mean:.3f} ({ratio.low:.3f} – {ratio.high:.3f})",
        )
        for (place, tokens, way), ratio in ratios.items()
    )
    columns = (Text("what", "部分"), Text("tokens", "词数"), Text("pass", "过程"), Text("ratio (95 %)", "之比（95 %）"))
    return Conclusion(verdict, says, (), Table(columns, rows))


PARTS = (
    Part("variance", _variance_trials, conclude_variance),
    Part("training", _training_trials, conclude_training),
    Part("cost", _cost_trials, conclude_cost),
)
