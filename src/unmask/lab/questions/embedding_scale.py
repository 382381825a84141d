"""The factor √d on embeddings: the variances it is said to set right, and what it does to a shared matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.daily import VOCAB, daily, windows
from unmask.lab.kit.effects import by_seed, named, paired, sided, spread
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.recoded import LENGTH, batches, pairs
from unmask.lab.kit.shown import conclude_diverged, conclude_finite
from unmask.lab.pictures import Lines, Series
from unmask.lab.words import Text, both
from unmask.models.init import build_model
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.block import EncoderBlock
from unmask.nn.positions.absolute import sinusoids
from unmask.nn.vocabulary import vocabulary_loss

SIZES, SEEDS, WORDS = (64, 128, 512, 1024), 5, 8000
ROWS, PLACES, COLUMNS = 1000, 100, 2000
ARMS = {(tied, scaled): f"{tied}, {scaled}" for tied, scaled in product(("tied", "untied"), ("scaled", "unscaled"))}
MOMENTS = (0.25, 0.5, 1.0)
WORST = 20.0  # the loss of a run that broke down


def model_of(size: int, words: int, layers: int, tied: bool, scaled: bool, seed: int) -> Transformer:
    """A Transformer whose tables all start as N(0, 1/d), the output's too where it has its own."""
    sizes = {"hidden_size": size, "num_heads": 4, "ffn_size": 2 * size, "tie": "target" if tied else "none"}
    rest = {"source_vocab_size": words, "target_vocab_size": words, "scale_embeddings": scaled}
    depth = {"num_encoder_layers": layers, "num_decoder_layers": layers, "dropout": {"embedding": 0.0, "residual": 0.0}}
    model = build_model(TransformerSettings.parse({**sizes, **rest, **depth}), seed=seed)
    assert isinstance(model, Transformer)
    if model.output is not None:
        nn.init.normal_(model.output.weight, std=size**-0.5, generator=torch.Generator().manual_seed(seed + 77))
    return model


@torch.no_grad()
def variances(size: int) -> Record:
    """First values of a Transformer, and what they make of words, positions, logits, queries and keys."""
    found: dict[str, list[float]] = {}

    def note(name: str, value: Tensor) -> None:
        found.setdefault(name, []).append(float(value))

    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(100 + seed)
        model = model_of(size, WORDS, 1, True, True, seed)
        table = model.target_embeddings.token.weight
        note("entries", table.var())
        note("entries_scaled", (table * model.target_embeddings.scale).var())
        waves = sinusoids(torch.arange(PLACES), size).float()
        note("waves", waves.square().mean())
        note("ratio", waves.square().mean() / table.square().mean())
        note("ratio_scaled", waves.square().mean() / (size * table.square().mean()))
        hidden = F.layer_norm(torch.randn(ROWS, size, generator=generator), (size,))
        normal = torch.randn(COLUMNS, size, generator=generator)  # as torch itself starts a table
        note("logits", (hidden @ table[:COLUMNS].T).var())
        note("logits_normal", (hidden @ normal.T).var())
        note("torch_scaled", (normal * math.sqrt(size)).var())
        rows = math.sqrt(size) * model.source_embeddings.token.weight[:ROWS]
        block = model.encoder.blocks[0]
        assert isinstance(block, EncoderBlock)
        for name, x in {"words": rows, "sums": rows + waves.repeat(ROWS // PLACES, 1)}.items():
            queries, keys, _ = block.self_attention.projections.all(x)
            note(f"queries_{name}", queries.var())
            note(f"keys_{name}", keys.var())
    return {name: sum(values) / len(values) for name, values in found.items()}


def translated(tied: str, scaled: str, updates: int, tests: int, seed: int) -> Record:
    """Train on newspaper text that is to be written whole, and measure at three moments."""
    seeded(seed)
    rng = np.random.default_rng(seed)
    model = model_of(64, VOCAB, 2, tied == "tied", scaled == "scaled", seed)
    moments, found = [round(part * updates) for part in MOMENTS], list[float]()

    @torch.inference_mode()
    def measure() -> None:
        drawn, total, count = np.random.default_rng(12345), 0.0, 0
        for _ in range(tests):
            answered = _losses(model, daily().held_out, drawn)
            total, count = total + float(answered[0]), count + answered[1]
        found.append(total / count)

    def loss(number: int) -> Tensor:
        if number in moments[:-1]:
            measure()
        total, count = _losses(model, daily().learned, rng)
        return total / count

    fit(model, loss, Fit(updates, rate=2e-3, warmup=40 / 300))
    measure()
    finite = len(found) == len(moments) and all(math.isfinite(value) for value in found)
    values = found if finite else [WORST] * len(moments)
    return {"loss": values[-1], "losses": values, "moments": moments, "diverged": not finite}


def _losses(model: Transformer, articles: tuple[np.ndarray, ...], rng: np.random.Generator) -> tuple[Tensor, int]:
    """The summed loss of a batch of about 2,048 target tokens, and how many there are."""
    source, target, answers = batches(pairs(windows(articles, LENGTH, 96, rng), "one alphabet", rng))
    rows = model.decode(target, model.encode(source))
    return vocabulary_loss(rows, *model.output_layer, answers), len(answers)


def _variance_trials(plan: Plan) -> list[Trial]:
    return [Trial(f"d = {size}", partial(variances, size)) for size in SIZES]


def _arm_trials(plan: Plan) -> list[Trial]:
    updates, tests = plan.at(4, 300), plan.at(1, 10)
    return [
        Trial(named(name, seed), partial(translated, *arm, updates, tests, seed), {"updates": updates})
        for seed in range(plan.seeds)
        for arm, name in ARMS.items()
    ]


#: What each should be, by d.
EXPECTED: dict[str, Callable[[int], float]] = {
    "entries": lambda d: 1 / d,
    "entries_scaled": lambda d: 1.0,
    "waves": lambda d: 0.5,
    "ratio": lambda d: d / 2,
    "ratio_scaled": lambda d: 0.5,
    "logits": lambda d: 1.0,
    "logits_normal": lambda d: d,
}


def conclude_variance(records: Mapping[str, Record]) -> Conclusion:
    """Each variance within 5 % of what it should be; queries and keys are told apart."""
    off = {
        (size, name): records[f"d = {size}"][name] / right(size) - 1
        for size in SIZES
        for name, right in EXPECTED.items()
    }
    worst = max(off, key=lambda key: abs(off[key]))
    verdict = Verdict.SUPPORTED if abs(off[worst]) <= 0.05 else Verdict.NOT_SUPPORTED
    one = records["d = 512"]
    heads = {
        name: [records[f"d = {d}"][f"{q}_{name}"] for d in SIZES for q in ("queries", "keys")]
        for name in ("words", "sums")
    }
    holds = all(0.9 <= value <= 1.1 for value in heads["sums"])
    plain = all(0.9 <= value <= 1.1 for value in heads["words"])
    first = (
        Text("The variances are as said", "方差与所说一致")
        if verdict == Verdict.SUPPORTED
        else Text(
            f"Not all variances are as said ({worst[1]}, d = {worst[0]})",
            f"并非所有方差都如所说（{worst[1]}，d = {worst[0]}）",
        )
    )
    second = (
        Text("as S4-1 says", "与 S4-1 一致")
        if holds
        else Text("so S4-1 does not hold", "所以 S4-1 不成立")
        if not plain
        else Text("so S4-1 holds only where no positions are added", "所以 S4-1 只在不加位置时成立")
    )
    says = Text(
        f"{first.en}, the farthest {off[worst]:+.1%} from it. For d = 512 the entries have variance "
        f"{one['entries']:.5f} before and {one['entries_scaled']:.3f} after the factor; positions outweigh words "
        f"{one['ratio']:.0f} times before, {one['ratio_scaled']:.2f} times after; the first logits have variance "
        f"{one['logits']:.2f}, with N(0, 1) {one['logits_normal']:.0f}. Queries and keys of the first layer have "
        f"variance {min(heads['words']):.2f} to {max(heads['words']):.2f} from the words alone, "
        f"{min(heads['sums']):.2f} to {max(heads['sums']):.2f} once positions are added, {second.en}.",
        f"{first.zh}，偏离最大的为 {off[worst]:+.1%}。d = 512 时，各分量的方差乘之前 {one['entries']:.5f}，"
        f"乘之后 {one['entries_scaled']:.3f}；位置与词之比，"
        f"乘之前 {one['ratio']:.0f} 倍，乘之后 {one['ratio_scaled']:.2f} 倍；"
        f"初始 logits 的方差 {one['logits']:.2f}，若用 N(0, 1) 则为 {one['logits_normal']:.0f}。"
        f"第一层 q、k 的方差，只有词时为 {min(heads['words']):.2f} 到 {max(heads['words']):.2f}，"
        f"加上位置后为 {min(heads['sums']):.2f} 到 {max(heads['sums']):.2f}，{second.zh}。",
    )
    return Conclusion(verdict, says, (), conclude_table(records))


def conclude_table(records: Mapping[str, Record]) -> Table:
    """All variances by size."""
    names = {
        "entries": Text("entries", "分量"),
        "entries_scaled": Text("entries × √d", "分量 × √d"),
        "waves": Text("positions, mean square", "位置，均方"),
        "ratio": Text("positions / words", "位置 / 词"),
        "ratio_scaled": Text("positions / (words × √d)", "位置 /（词 × √d）"),
        "logits": Text("logits", "logits"),
        "logits_normal": Text("logits, N(0, 1)", "logits，N(0, 1)"),
        "torch_scaled": Text("N(0, 1) × √d", "N(0, 1) × √d"),
        "queries_words": Text("q, words", "q，词"),
        "queries_sums": Text("q, words + positions", "q，词 + 位置"),
    }
    rows = tuple((str(size), *(f"{records[f'd = {size}'][name]:.4g}" for name in names)) for size in SIZES)
    return Table((both("d"), *names.values()), rows)


def conclude_arms(records: Mapping[str, Record]) -> Conclusion:
    """Unscaled minus scaled, tied and untied, and the difference of the two."""
    found = {arm: by_seed(records, name, "loss") for arm, name in ARMS.items()}
    harm = {tied: paired(found[tied, "unscaled"], found[tied, "scaled"]) for tied in ("tied", "untied")}
    apart = paired(
        [a - b for a, b in zip(found["tied", "unscaled"], found["tied", "scaled"], strict=True)],
        [a - b for a, b in zip(found["untied", "unscaled"], found["untied", "scaled"], strict=True)],
    )
    verdict = sided(harm["tied"])
    if verdict == Verdict.SUPPORTED and sided(apart) != Verdict.SUPPORTED:
        verdict = Verdict.DEPENDS
    head = {
        Verdict.SUPPORTED: Text(
            "Without the factor a shared matrix learns more slowly, more so than separate ones",
            "不缩放时，共享矩阵学得更慢，比不共享时更明显",
        ),
        Verdict.NOT_SUPPORTED: Text(
            "Without the factor a shared matrix learns faster here", "这里不缩放时，共享矩阵反而学得更快"
        ),
        Verdict.DEPENDS: Text(
            "The factor helps, but sharing is not shown to be the reason", "缩放有用，但看不出原因在于共享"
        ),
    }.get(verdict, Text("With a shared matrix no difference can be seen", "共享时看不出差别"))
    broken = conclude_diverged(records)
    ends = {arm: spread(values) for arm, values in found.items()}
    best, worst = min(ends.values()), max(ends.values())
    says = Text(
        f"{head.en}: at the end unscaled minus scaled is {harm['tied'].signed()} nats tied, {harm['untied'].signed()} "
        f"untied, a difference of {apart.signed()}. The arms end between {best.mean:.2f} and {worst.mean:.2f}."
        f"{broken.en}",
        f"{head.zh}：最后，不缩放减缩放，共享时为 {harm['tied'].signed()} 奈特，不共享时为 {harm['untied'].signed()}，"
        f"两者之差 {apart.signed()}。各组最终在 {best.mean:.2f} 到 {worst.mean:.2f} 之间。{broken.zh}",
    )
    return Conclusion(verdict, says, (conclude_curves(records),))


def conclude_curves(records: Mapping[str, Record]) -> Lines:
    """Losses at the three moments."""
    words = {"tied": "共享", "untied": "不共享", "scaled": "缩放", "unscaled": "不缩放"}
    series = []
    for arm, name in ARMS.items():
        seeds = range(len(by_seed(records, name, "loss")))
        moments = records[named(name, 0)]["moments"]
        points = [
            spread(records[named(name, seed)]["losses"][place] for seed in seeds).point(moment)
            for place, moment in enumerate(moments)
        ]
        series.append(Series(Text(name, "，".join(words[one] for one in arm)), conclude_finite(points)))
    return Lines(
        Text("Held-out loss", "留出损失"),
        Text("updates", "更新次数"),
        Text("loss a target token, nats", "每目标 token 损失，奈特"),
        tuple(series),
        Text("Lower is better; bars are 95 % intervals over seeds.", "越低越好；竖线为种子间 95 % 区间。"),
    )


PARTS = (
    Part("variance", _variance_trials, conclude_variance),
    Part("tied-and-scaled", _arm_trials, conclude_arms),
)
