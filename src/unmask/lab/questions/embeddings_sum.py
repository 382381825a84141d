"""Embeddings that are added: one matrix on joined one-hot vectors, less than a table of combinations, and enough?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.classify import classifier_settings
from unmask.lab.kit.daily import CLS, SEP, Hidden, daily, hidden, windows
from unmask.lab.kit.effects import Effect, by_seed, named, paired, spread
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.mlm import MEASURED, mlm_loss, settings_of
from unmask.lab.kit.shown import (
    conclude_bars,
    conclude_diverged,
    conclude_percent,
    conclude_points,
    conclude_shares,
)
from unmask.lab.kit.synthetic import FIRST, ORDINARY, SECOND
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.models.init import build_model, start_as_sinusoids
from unmask.models.settings import BertSettings
from unmask.nn.batch import Batch
from unmask.nn.embeddings import Embeddings
from unmask.nn.positions.absolute import LearnedPositions

NOTES, BERT = (4, 3, 2), (21_128, 512, 2)
SIZE = 768
ARMS = ("sum", "project")
LOSS_MARGIN, ACCURACY_MARGIN, LEARNED = 0.05, 0.02, 0.4
SYMBOLS = 32
WORST = 99.0  # the loss of a run that broke down


def identity(rows: tuple[int, int, int], triples: int) -> Record:
    """The sum of three look-ups against joined one-hot vectors times the stacked tables."""
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randn(count, SIZE, generator=generator, dtype=torch.float64) for count in rows]
    if triples:
        ids = torch.stack([torch.randint(count, (triples,), generator=generator) for count in rows], dim=1)
    else:
        ids = torch.tensor(list(product(*map(range, rows))))
    looked_up = sum((table[ids[:, n]] for n, table in enumerate(tables)), torch.zeros(()))
    joined = torch.cat([F.one_hot(ids[:, n], count).double() for n, count in enumerate(rows)], dim=1)
    found = joined @ torch.cat(tables)
    return {"difference": float((looked_up - found).abs().max()), "triples": len(ids), "width": joined.shape[1]}


def combinations(tables: int) -> Record:
    """Can a table with a row for each combination be written as a sum, and a sum as such a table?"""
    rng = np.random.default_rng(0)
    places = np.array(list(product(*map(range, NOTES))))  # (24, 3)
    joined = np.concatenate([np.eye(count)[places[:, n]] for n, count in enumerate(NOTES)], axis=1)  # (24, 9)
    errors = []
    for _ in range(tables):
        table = rng.standard_normal((len(joined), SIZE))
        found = np.linalg.lstsq(joined, table, rcond=None)[0]
        errors.append(float(np.linalg.norm(joined @ found - table) / np.linalg.norm(table)))
    parts = rng.standard_normal((joined.shape[1], SIZE))
    everything = joined @ parts  # the table of the sum: a row for each combination
    back = np.array([sum(parts[start + i] for start, i in zip((0, 4, 7), row, strict=True)) for row in places])
    return {
        "rank": int(np.linalg.matrix_rank(joined)),
        "combinations": len(joined),
        "errors": [min(errors), sum(errors) / len(errors), max(errors)],
        "sum_as_table": float(np.abs(everything - back).max()),
    }


class Projected(Embeddings):
    """norm([token; position; segment]·W): concatenated, then brought back to the width by a matrix."""

    def __init__(self, plain: Embeddings, seed: int) -> None:
        super().__init__(plain.token, plain.positions, plain.segment, plain.norm)
        hidden = plain.token.embedding_dim
        self.together = nn.Linear(3 * hidden, hidden, bias=False)
        nn.init.normal_(self.together.weight, std=(3 * hidden) ** -0.5, generator=torch.Generator().manual_seed(seed))

    def at(self, ids: Tensor, positions: Tensor, length: int, segments: Tensor | None = None) -> Tensor:
        """As in the sum, with a matrix in the place of the addition."""
        assert isinstance(self.positions, LearnedPositions)
        assert self.segment is not None
        segments = torch.zeros_like(ids) if segments is None else segments
        parts = [self.token(ids), self.positions.table(positions), self.segment(segments)]
        return self.norm(self.together(torch.cat(parts, dim=-1)))


def model_of(settings: BertSettings, arm: str, seed: int) -> Bert:
    """A model whose embeddings are summed or projected."""
    model = build_model(settings, seed=seed)
    assert isinstance(model, Bert)
    start_as_sinusoids(model)
    if arm == "project":
        model.encoder.embeddings = Projected(model.encoder.embeddings, seed)
    return model


def halves(batch: Hidden) -> Hidden:
    """The same texts as pairs: the second half of each, with a [SEP] before it, is the second segment."""
    lengths = torch.tensor(batch.batch.layout.lengths)
    middle = ((lengths - 3) // 2 + 1).repeat_interleave(lengths)  # where the [SEP] between them stands
    segments = (batch.batch.layout.row_positions(middle.device) > middle).long()
    return Hidden(Batch(batch.batch.ids, segments, batch.batch.layout), batch.rows, batch.targets)


def _pairs(articles: tuple[np.ndarray, ...], rng: np.random.Generator) -> Hidden:
    texts = [np.insert(one, len(one) // 2, SEP) for one in windows(articles, 61, 32, rng)]
    return halves(hidden(texts, MEASURED, rng))


def guessing(arm: str, updates: int, tests: int, seed: int) -> Record:
    """MLM on pairs of neighbouring halves."""
    seeded(seed)
    rng = np.random.default_rng(seed)
    model = model_of(settings_of({}), arm, seed)
    losses = fit(model, lambda _: mlm_loss(model, _pairs(daily().learned, rng)), Fit(updates, rate=2e-3))
    rng, total, count = np.random.default_rng(12345), 0.0, 0
    with torch.inference_mode():
        for _ in range(tests):
            batch = _pairs(daily().held_out, rng)
            total += float(mlm_loss(model, batch)) * len(batch.targets)
            count += len(batch.targets)
    finite = bool(np.isfinite(total))
    return {"loss": total / count if finite else WORST, "diverged": not finite, "updates": len(losses)}


def two_segments(count: int, generator: torch.Generator) -> tuple[Batch, Tensor]:
    """Marker a in one of two segments, marker b anywhere: where is a, and is it before b?"""
    sequences, segments, labels = [], [], []
    for _ in range(count):
        first, second = (torch.randint(8, 17, (2,), generator=generator)).tolist()
        row = (torch.randint(SYMBOLS, (first + second,), generator=generator) + ORDINARY).tolist()
        a, b = torch.randperm(first + second, generator=generator)[:2].tolist()
        row[a], row[b] = FIRST, SECOND
        sequences.append([CLS, *row])
        segments.append([0] * (first + 1) + [1] * second)
        labels.append(2 * int(a >= first) + int(a < b))
    return Batch.of(sequences, segments), torch.tensor(labels)


def marking(arm: str, updates: int, tests: int, seed: int) -> Record:
    """The task that needs token, position and segment."""
    generator = seeded(seed)
    changes = {"hidden_size": 128, "ffn_size": 256, "num_segments": 2, "max_length": 64}
    model = model_of(classifier_settings(ORDINARY + SYMBOLS, 4, changes), arm, seed)

    def loss(_: int) -> Tensor:
        batch, labels = two_segments(64, generator)
        return F.cross_entropy(model.class_logits(model(batch)), labels)

    fit(model, loss, Fit(updates))
    batch, labels = two_segments(tests, torch.Generator().manual_seed(12345))
    with torch.inference_mode():
        right = model.class_logits(model(batch)).argmax(-1) == labels
    return {"accuracy": float(right.double().mean())}


def _identity_trials(plan: Plan) -> list[Trial]:
    sizes = {"4, 3, 2 rows": (NOTES, 0), "21,128, 512, 2 rows": (BERT, 1000)}
    return [Trial(name, partial(identity, *given)) for name, given in sizes.items()]


def _combination_trials(plan: Plan) -> list[Trial]:
    return [Trial("4 · 3 · 2", partial(combinations, 100))]


def _ablation_trials(plan: Plan) -> list[Trial]:
    most, few, batches, tests = plan.at(5, 500), plan.at(5, 250), plan.at(2, 16), plan.at(200, 2000)
    found = []
    for seed in range(plan.seeds):
        for arm in ARMS:
            job = partial(guessing, arm, most, batches, seed)
            found.append(Trial(named(f"mlm, {arm}", seed), job, {"updates": most}))
            job = partial(marking, arm, few, tests, seed)
            found.append(Trial(named(f"markers, {arm}", seed), job, {"updates": few}))
    return found


def conclude_identity(records: Mapping[str, Record]) -> Conclusion:
    """One function, written twice."""
    worst = max(one["difference"] for one in records.values())
    verdict = Verdict.SUPPORTED if worst <= 1e-12 else Verdict.NOT_SUPPORTED
    same = (
        Text("are the same function", "是同一个函数")
        if verdict == Verdict.SUPPORTED
        else Text("are NOT the same", "并不相同")
    )
    said = "; ".join(
        f"{name}: {one['triples']:,} × {one['width']:,}, {one['difference']:.1g}" for name, one in records.items()
    )
    says = Text(
        f"Three look-ups that are added and joined one-hot vectors times the stacked tables {same.en} "
        f"(combinations × width, largest difference: {said}).",
        f"三次查表相加，与拼接 one-hot 乘以叠起来的表，{same.zh}（组合数 × 宽度，最大差：{said}）。",
    )
    return Conclusion(verdict, says)


def conclude_combinations(records: Mapping[str, Record]) -> Conclusion:
    """A table of all combinations can say more than a sum."""
    one = records["4 · 3 · 2"]
    low, mean, high = one["errors"]
    if one["rank"] == one["combinations"] or high <= 1e-12:
        verdict = Verdict.SUPPORTED
    elif low > 0.1:
        verdict = Verdict.NOT_SUPPORTED
    else:
        verdict = Verdict.DEPENDS
    head = {
        Verdict.SUPPORTED: Text("The table of combinations is equivalent", "组合表是等效的"),
        Verdict.NOT_SUPPORTED: Text("The table of combinations is not equivalent", "组合表并不等效"),
    }.get(verdict, Text("The table of combinations is nearly equivalent", "组合表近乎等效"))
    says = Text(
        f"{head.en}: sums reach {one['rank']} of {one['combinations']} directions, and a random table of "
        f"{one['combinations']} rows is missed by {mean:.0%} of its length ({low:.0%} to {high:.0%}). The other way "
        f"round it works: every sum is such a table (difference {one['sum_as_table']:.1g}).",
        f"{head.zh}：相加只能达到 {one['combinations']} 个方向中的 {one['rank']} 个，随机的 {one['combinations']} 行表"
        f"用相加去拟合，误差为其长度的 {mean:.0%}（{low:.0%} 到 {high:.0%}）。"
        f"反过来则可以：任何相加都是这样一张表（差 {one['sum_as_table']:.1g}）。",
    )
    return Conclusion(verdict, says)


def conclude_harm(effect: Effect, margin: float) -> Verdict:
    """On the claim that the sum does no harm, from how much worse it is."""
    if effect.high < margin:
        return Verdict.SUPPORTED
    return Verdict.NOT_SUPPORTED if effect.low > margin else Verdict.NOT_VISIBLE


def conclude_arms(records: Mapping[str, Record]) -> Conclusion:
    """The sum against a projection of the three."""
    losses = {arm: by_seed(records, f"mlm, {arm}", "loss") for arm in ARMS}
    shares = {arm: by_seed(records, f"markers, {arm}", "accuracy") for arm in ARMS}
    worse = paired(losses["sum"], losses["project"]), paired(shares["project"], shares["sum"])
    verdicts = [conclude_harm(worse[0], LOSS_MARGIN), conclude_harm(worse[1], ACCURACY_MARGIN)]
    if max(spread(one).mean for one in shares.values()) < LEARNED:
        verdict = Verdict.NOT_VISIBLE
    elif {Verdict.SUPPORTED, Verdict.NOT_SUPPORTED} <= set(verdicts):
        verdict = Verdict.DEPENDS
    elif Verdict.NOT_SUPPORTED in verdicts:
        verdict = Verdict.NOT_SUPPORTED
    else:
        verdict = Verdict.NOT_VISIBLE if Verdict.NOT_VISIBLE in verdicts else Verdict.SUPPORTED
    head = {
        Verdict.SUPPORTED: Text("The sum does no harm", "相加无害"),
        Verdict.NOT_SUPPORTED: Text("The sum does harm", "相加有害"),
        Verdict.DEPENDS: Text("The two tasks disagree", "两个任务结论不一"),
    }.get(verdict, Text("No verdict at this scale", "此规模下看不出"))
    broken = conclude_diverged(records)
    says = Text(
        f"{head.en}: the loss of the sum minus that of the projection is {worse[0].signed()} (harm begins at "
        f"{LOSS_MARGIN}); in the task that needs token, position and segment the projection minus the sum is "
        f"{conclude_points(worse[1]).en} (harm begins at {100 * ACCURACY_MARGIN:.0f}), with "
        f"{conclude_percent(spread(shares['sum']))} right by the sum.{broken.en}",
        f"{head.zh}：相加减投影的损失为 {worse[0].signed()}（超过 {LOSS_MARGIN} 才算有害）；"
        f"在 token、位置、段都用得上的任务上，投影减相加为{conclude_points(worse[1]).zh}"
        f"（超过 {100 * ACCURACY_MARGIN:.0f} 才算有害），相加的准确率 {conclude_percent(spread(shares['sum']))}。"
        f"{broken.zh}",
    )
    names = {"sum": Text("sum", "相加"), "project": Text("concatenate and project", "拼接再投影")}
    pictures = (
        conclude_bars(
            Text("Guessing hidden characters", "猜被遮的字"),
            Text("held-out loss, nats", "留出损失，奈特"),
            [(names[arm], spread(losses[arm])) for arm in ARMS],
            Text("Lower is better.", "越低越好。"),
        ),
        conclude_shares(
            Text("Markers in two segments", "两段中的标记"),
            Text("accuracy, %", "准确率，%"),
            [(names[arm], spread(shares[arm])) for arm in ARMS],
            Text("Four answers, so guessing gives about 25 %.", "四种答案，瞎猜约 25 %。"),
        ),
    )
    return Conclusion(verdict, says, pictures)


PARTS = (
    Part("identity", _identity_trials, conclude_identity),
    Part("combinations", _combination_trials, conclude_combinations),
    Part("sum-or-project", _ablation_trials, conclude_arms),
)
