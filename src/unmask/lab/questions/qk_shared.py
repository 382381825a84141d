"""One matrix for queries and keys: what becomes symmetric, what does not, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.effects import by_seed, named, paired, sided
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.short_mlm import short_trials
from unmask.lab.kit.telling import (
    conclude_bars,
    conclude_compared,
    conclude_gaps,
    conclude_lost,
    conclude_table,
    conclude_together,
)
from unmask.lab.pictures import Heat
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.models.init import build_model, start_as_sinusoids
from unmask.models.settings import BertSettings
from unmask.nn.attend import Attend
from unmask.nn.attention import MultiHeadAttention, Projections, SharedProjections
from unmask.nn.batch import Batch
from unmask.nn.layout import Layout
from unmask.nn.plan import AttentionPlan
from unmask.nn.positions import NoPositions
from unmask.nn.scores import ScaledDot

HIDDEN, HEADS, TOKENS, QUERIES = 96, 4, 17, 5
KINDS = {"shared": SharedProjections, "separate": Projections}
LEFT, LENGTH, SYMBOLS = 3, 32, 64  # the task with a direction
MLM: dict[str, dict[str, Any]] = {
    "MLM, separate": {},
    "MLM, shared": {"projections": "shared_qk"},
    "MLM, shared, wider": {"projections": "shared_qk", "ffn_size": 576},
}
LABELS = {
    "MLM, separate": Text("separate", "独立"),
    "MLM, shared": Text("shared", "共享"),
    "MLM, shared, wider": Text("shared, feed-forward 576", "共享，前馈 576"),
}


@torch.no_grad()
def symmetry(kind: str) -> Record:
    """Scores and weights of one attention, and whether queries may be fewer than keys."""
    torch.manual_seed(0)
    projections = KINDS[kind](HIDDEN, HEADS, HIDDEN // HEADS)
    for parameter in projections.parameters():
        parameter.copy_(torch.randn_like(parameter) / (HIDDEN**0.5 if parameter.dim() > 1 else 1))
    attend = Attend(ScaledDot(HIDDEN // HEADS), NoPositions())
    attention = MultiHeadAttention(projections, attend, HIDDEN).double().eval()
    rows = torch.randn(TOKENS, HIDDEN, dtype=torch.float64)
    q, k, _ = (heads.transpose(0, 1)[None] for heads in projections.all(rows))  # (1, N, T, D)
    scores, weights = attend.score(q, k)[0], attend.weights(q, k)[0]
    diagonal = scores.diagonal(dim1=1, dim2=2)
    own = diagonal[:, :, None] + diagonal[:, None] - 2 * scores
    few = torch.randn(QUERIES, HIDDEN, dtype=torch.float64)
    plan = AttentionPlan.between(Layout.ragged([QUERIES]), Layout.ragged([TOKENS]))
    crossed = attention(few, plan, rows)
    return {
        "scores": float((scores - scores.mT).abs().max()),
        "weights": float((weights - weights.mT).abs().max()),
        "own": float(own.min()),
        "by_hand": float((scores - _by_hand(projections, rows)).abs().max()),
        "cross_rows": len(crossed) if bool(crossed.isfinite().all()) else 0,
        "score_rows": scores[0].tolist(),
        "weight_rows": weights[0].tolist(),
    }


def _by_hand(projections: Projections, rows: Tensor) -> Tensor:
    """The scores once more, head by head, from the matrices alone."""
    key = projections.key
    query = projections.query if hasattr(projections, "query") else key
    size = HIDDEN // HEADS
    found = []
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        q, k = (rows @ one.weight[part].T + one.bias[part] for one in (query, key))
        found.append(torch.einsum("td,sd->ts", q, k) / size**0.5)
    return torch.stack(found)


def direction(projections: str, updates: int, seed: int) -> Record:
    """Each position names the symbol three places to its left."""
    generator = seeded(seed)
    sizes = {"vocab_size": SYMBOLS, "hidden_size": 64, "num_layers": 1, "num_heads": 4, "ffn_size": 128}
    head = {"kind": "tag", "labels": [str(n) for n in range(SYMBOLS)], "dropout": 0.0}
    rest = {"max_length": LENGTH, "pooler": False, "num_segments": 0, "heads": [head], "projections": projections}
    dropout = {"embedding": 0.0, "residual": 0.0, "attention": 0.0}
    model = build_model(BertSettings.parse({**sizes, **rest, "dropout": dropout}), seed=seed)
    assert isinstance(model, Bert)
    start_as_sinusoids(model)

    def answers(ids: Tensor) -> tuple[Tensor, Tensor]:
        batch = Batch(ids.flatten(), torch.zeros_like(ids.flatten()), Layout.ragged([LENGTH] * len(ids)))
        logits = model.tag_logits(model(batch)).view(len(ids), LENGTH, -1)
        return logits[:, LEFT:].flatten(0, 1), ids[:, :-LEFT].flatten()

    def loss(_: int) -> Tensor:
        return F.cross_entropy(*answers(torch.randint(SYMBOLS, (64, LENGTH), generator=generator)))

    losses = fit(model, loss, Fit(updates, 2e-3))
    with torch.inference_mode():
        logits, right = answers(torch.randint(SYMBOLS, (1000, LENGTH), generator=torch.Generator().manual_seed(12345)))
    diverged = not bool(logits.isfinite().all())
    accuracy = 0.0 if diverged else float((logits.argmax(-1) == right).double().mean())
    return {"score": accuracy, "diverged": diverged, "updates": len(losses)}


def _symmetry_trials(plan: Plan) -> list[Trial]:
    return [Trial(kind, partial(symmetry, kind), {"matrices": kind}) for kind in KINDS]


def _training_trials(plan: Plan) -> list[Trial]:
    updates = plan.at(10, 300)
    left = [
        Trial(
            named(f"left, {name}", seed),
            partial(direction, projections, updates, seed),
            {"projections": projections, "updates": updates, "seed": seed},
        )
        for name, projections in (("separate", "separate"), ("shared", "shared_qk"))
        for seed in range(plan.seeds)
    ]
    return short_trials(plan, MLM) + left


def conclude_symmetry(records: Mapping[str, Record]) -> Conclusion:
    """Scores are symmetric, weights are not, and lengths may differ."""
    shared, separate = records["shared"], records["separate"]
    symmetric = shared["scores"] <= 1e-12 < separate["scores"]
    weights_differ = shared["weights"] > 1e-3
    crossed = shared["cross_rows"] == QUERIES
    if not symmetric:
        verdict = Verdict.NOT_SUPPORTED
    else:
        verdict = Verdict.DEPENDS if weights_differ or crossed else Verdict.SUPPORTED
    says = Text(
        f"Shared matrices {'do' if symmetric else 'do not'} make scores symmetric: max |S − Sᵀ| is "
        f"{shared['scores']:.0g}, "
        f"against {separate['scores']:.1f} with separate ones (scores by hand agree to {shared['by_hand']:.0e}). And "
        f"s_ii + s_jj − 2 s_ij is never below {shared['own']:.0g}, against {separate['own']:.1f}. Weights "
        f"{'are not symmetric' if weights_differ else 'are symmetric as well'}: max |A − Aᵀ| is "
        f"{shared['weights']:.2f} after "
        f"the softmax, so the example of “I” and “boy” {'holds for scores only' if weights_differ else 'holds'}. "
        "Different "
        f"lengths {'need no' if crossed else 'need'} separate matrices: {QUERIES} queries with {TOKENS} keys "
        f"{'run' if crossed else 'do not run'} through the shared one.",
        f"共享矩阵{'使' if symmetric else '没有使'}得分对称：max |S − Sᵀ| 为 {shared['scores']:.0g}，独立矩阵为 "
        f"{separate['scores']:.1f}"
        f"（与手算的得分相差 {shared['by_hand']:.0e}）；s_ii + s_jj − 2 s_ij 从不低于 {shared['own']:.0g}，独立矩阵为 "
        f"{separate['own']:.1f}。权重{'不对称' if weights_differ else '也对称'}：softmax 之后 max |A − Aᵀ| 为 "
        f"{shared['weights']:.2f}，所以“我”与“男孩”的例子{'只对得分成立' if weights_differ else '成立'}。句长不同"
        f"{'不需要' if crossed else '需要'}独立的矩阵：{QUERIES} 个 query、{TOKENS} 个 key "
        f"用共享矩阵{'可以' if crossed else '不能'}计算。",
    )
    pictures = conclude_mirrors(shared)
    return Conclusion(verdict, says, pictures)


def conclude_mirrors(shared: Record) -> tuple[Heat, ...]:
    """Scores and weights of one head."""
    names = tuple(str(n + 1) for n in range(TOKENS))
    return tuple(
        Heat(
            title,
            names,
            names,
            tuple(tuple(row) for row in shared[what]),
            reading,
            Text("key", "key"),
            Text("query", "query"),
            unit,
        )
        for what, title, unit, reading in (
            (
                "score_rows",
                Text("Scores, one shared matrix", "共享矩阵的得分"),
                Text("score", "得分"),
                Text(
                    f"Apart from its mirror image along the diagonal by at most {shared['scores']:.0g}.",
                    f"与沿对角线的镜像最多相差 {shared['scores']:.0g}。",
                ),
            ),
            (
                "weight_rows",
                Text("The same after the softmax", "softmax 之后"),
                Text("weight", "权重"),
                Text(
                    "Each row was divided by its own sum: apart from the mirror image by up to "
                    f"{shared['weights']:.2g}.",
                    f"每行除以自己的和：与镜像最多相差 {shared['weights']:.2g}。",
                ),
            ),
        )
    )


def conclude_training(records: Mapping[str, Record]) -> Conclusion:
    """Two shared arms of MLM against the separate one, and the task with a direction."""
    base = by_seed(records, "MLM, separate", "score")
    same, wider = (paired(by_seed(records, arm, "score"), base) for arm in ("MLM, shared", "MLM, shared, wider"))
    left = paired(*(by_seed(records, f"left, {name}", "score") for name in ("separate", "shared")))
    verdict = conclude_together([sided(same), sided(wider), sided(left)])
    lost, told = conclude_lost(records), conclude_compared(left)
    says = Text(
        f"MLM with one matrix for queries and keys: the held-out loss is {conclude_compared(same).en} nats; with the "
        "missing "
        f"parameters given back to the feed-forward network it is {conclude_compared(wider).en}. Naming the symbol "
        "three "
        f"places to the left: accuracy with separate matrices is {told.en} than with shared ones.{lost.en}",
        f"MLM 中 Q、K 共用矩阵时，留出集损失{conclude_compared(same).zh} nat；把缺少的参数补给前馈网络后，"
        f"{conclude_compared(wider).zh}。说出左边第三个符号：独立矩阵的准确率比共享矩阵{told.zh}。{lost.zh}",
    )
    title = Text("Masked characters: loss − that with separate matrices", "遮盖字预测：损失 − 独立矩阵的损失")
    mlm = conclude_gaps({"MLM, shared": same, "MLM, shared, wider": wider}, LABELS, title, Text("nats", "nat"))
    arms = {
        f"left, {name}": label
        for name, label in (("separate", LABELS["MLM, separate"]), ("shared", LABELS["MLM, shared"]))
    }
    side = conclude_bars(
        records,
        arms,
        "score",
        Text("Three to the left: accuracy", "左边第三个：准确率"),
        Text("share of right answers", "正确率"),
        Text("Higher is better; chance is 1/64.", "越高越好；随机猜测为 1/64。"),
    )
    columns = {"score": Text("loss", "损失"), "parameters": Text("parameters", "参数")}
    return Conclusion(verdict, says, (mlm, side), conclude_table(records, LABELS, "MLM, separate", columns))


PARTS = (Part("symmetry", _symmetry_trials, conclude_symmetry), Part("training", _training_trials, conclude_training))
