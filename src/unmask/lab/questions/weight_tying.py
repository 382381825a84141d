"""Tables that are one: what sharing saves, what it computes, whether the nearest row wins, and how fast it learns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.effects import named, sided
from unmask.lab.kit.pairing import conclude_arm, conclude_lost, conclude_paired, conclude_points
from unmask.lab.kit.recoded import ALPHABETS, SHARES, TIMES, trial
from unmask.lab.pictures import Lines, Point, Series
from unmask.lab.words import Text
from unmask.models.bert import Bert, num_parameters
from unmask.models.fetch import fetch
from unmask.models.folder import load_model
from unmask.models.init import assemble, build_model
from unmask.models.settings import Tie, TransformerSettings, transformer_preset
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch

TIES: tuple[Tie, ...] = ("none", "target", "all")
V, D = 37_000, 512


def count(tie: Tie) -> Record:
    """The parameters of a Transformer-base, without memory for them."""
    settings = TransformerSettings.parse({**transformer_preset("base", V).model_dump(mode="json"), "tie": tie})
    with torch.device("meta"):
        model = assemble(settings)
    return {"parameters": num_parameters(model)}


def same_tensor() -> Record:
    """Shapes, places in memory, what the output is, and whose gradients the shared table gets; double precision."""
    embedding, linear = nn.Embedding(V, D, device="meta"), nn.Linear(D, V, device="meta")
    models = {tie: _small(tie) for tie in TIES}
    tied, apart = models["all"], models["none"]
    table = tied.target_embeddings.token.weight
    assert apart.output is not None
    untied = (apart.source_embeddings.token.weight, apart.target_embeddings.token.weight, apart.output.weight)
    with torch.no_grad():  # two models with the same numbers, one of which has them three times
        for name, parameter in apart.named_parameters():
            parameter.copy_(dict(tied.named_parameters()).get(name, table))
    source, target = Batch.of([[5, 6, 7, 8]]), Batch.of([[1, 9, 8, 7, 6]])
    for model in (tied, apart):
        F.cross_entropy(model(source, target), torch.tensor([9, 8, 7, 6, 2])).backward()
    rows = tied.decode(target, tied.encode(source)).detach()
    by_hand = torch.tensor(
        [
            [math.fsum(a * b for a, b in zip(row, word, strict=True)) for word in table.tolist()]
            for row in rows.tolist()
        ],
        dtype=torch.float64,
    )
    assert table.grad is not None
    sums = sum(one.grad for one in untied if one.grad is not None)
    return {
        "embedding_shape": list(embedding.weight.shape),
        "linear_shape": list(linear.weight.shape),
        "one_tensor": {tie: _places(model) for tie, model in models.items()},
        "output_error": float((tied.logits(rows).detach() - by_hand).abs().max()),
        "gradient_error": float((table.grad - sums).abs().max()),
        "gradient": float(table.grad.abs().max()),
    }


def _small(tie: Tie) -> Transformer:
    sizes = {"hidden_size": 16, "num_heads": 4, "ffn_size": 32, "num_encoder_layers": 2, "num_decoder_layers": 2}
    vocabularies = {"source_vocab_size": 97, "target_vocab_size": 97, "tie": tie}
    model = build_model(TransformerSettings.parse({**sizes, **vocabularies}), seed=0)
    assert isinstance(model, Transformer)
    return model.double().eval()


def _places(model: Transformer) -> int:
    """How many different places in memory the three tables have."""
    tables = (model.source_embeddings.token.weight, model.target_embeddings.token.weight, model.output_layer[0])
    return len({table.data_ptr() for table in tables})


def _count_trials(plan: Plan) -> list[Trial]:
    counts = [Trial(f"tie {tie}", partial(count, tie), {"tie": tie, "v": V, "d": D}) for tie in TIES]
    return [*counts, Trial("one tensor", same_tensor)]


def conclude_count(records: Mapping[str, Record]) -> Conclusion:
    """Each tie must save v·d, and be one tensor whose gradient is the sum of its uses'."""
    totals = [records[f"tie {tie}"]["parameters"] for tie in TIES]
    saved = [before - after for before, after in pairwise(totals)]
    one = records["one tensor"]
    checks = {
        Text("each tie saves v·d", "每次共享省 v·d"): saved == [V * D, V * D],
        Text("shapes are equal", "形状相同"): one["embedding_shape"] == one["linear_shape"] == [V, D],
        Text("tied tables are one tensor", "共享的表是同一个张量"): one["one_tensor"]
        == {"none": 3, "target": 2, "all": 1},
        Text("output = x Eᵀ", "输出 = x Eᵀ"): one["output_error"] <= 1e-12,
        Text("gradient = sum of the uses'", "梯度 = 各处之和"): one["gradient_error"] <= 1e-12,
    }
    verdict = Verdict.SUPPORTED if all(checks.values()) else Verdict.NOT_SUPPORTED
    failed = [check for check, holds in checks.items() if not holds]
    says = Text(
        f"With nothing tied the Transformer-base has {totals[0]:,} parameters; tying target embedding and output saves "
        f"{saved[0]:,}, tying the source's too another {saved[1]:,} (v·d = {V * D:,}). nn.Embedding and nn.Linear "
        f"store {tuple(one['embedding_shape'])} and {tuple(one['linear_shape'])}; the output differs from x Eᵀ by "
        f"{one['output_error']:.0e}, the shared gradient from the sum of its uses by {one['gradient_error']:.0e}. "
        + (f"What fails: {'; '.join(check.en for check in failed)}." if failed else "All checks hold."),
        f"完全不共享的 Transformer-base 有 {totals[0]:,} 个参数；目标嵌入与输出共享省 {saved[0]:,}，再与源端共享又省 "
        f"{saved[1]:,}（v·d = {V * D:,}）。nn.Embedding 与 nn.Linear 的形状为 {tuple(one['embedding_shape'])} 与 "
        f"{tuple(one['linear_shape'])}；输出与 x Eᵀ 相差 {one['output_error']:.0e}，共享表的梯度与各处之和相差 "
        f"{one['gradient_error']:.0e}。"
        + (f"不成立的有：{'；'.join(check.zh for check in failed)}。" if failed else "全部成立。"),
    )
    rows = tuple((f"{check.en} · {check.zh}", "✓" if holds else "✗") for check, holds in checks.items())
    return Conclusion(verdict, says, (), Table((Text("check", "检查项"), Text("holds", "成立")), rows))


ROWS, WIDTH = 1000, 64
TABLES = ("equal lengths", "lengths from 0.5 to 2", "minilm", "mini-zh")


def nearest(name: str) -> Record:
    """Let x be each row in turn: does that row get the highest score?"""
    if name in ("minilm", "mini-zh"):
        model, _ = load_model(fetch(name), dtype=torch.float64)
        assert isinstance(model, Bert)
        table = model.encoder.embeddings.token.weight.detach()
        asked = torch.linspace(0, len(table) - 1, ROWS).long()
    else:
        generator = torch.Generator().manual_seed(0)
        table = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator)
        lengths = torch.ones(ROWS) if name == TABLES[0] else torch.linspace(0.5, 2, ROWS)
        table = table / table.norm(dim=-1, keepdim=True) * lengths.double()[:, None]
        asked = torch.arange(ROWS)
    sizes = table.norm(dim=-1)
    wins = (table[asked] @ table.T).argmax(-1) == asked
    order = sizes[asked].argsort()
    tenths = [float(wins[part].double().mean()) for part in order.tensor_split(10)]  # from the shortest rows on
    spread = sizes.quantile(torch.tensor([0.05, 0.5, 0.95, 1.0], dtype=torch.float64)).tolist()
    return {"asked": len(asked), "wins": int(wins.sum()), "rows": len(table), "lengths": spread, "by_length": tenths}


def _nearest_trials(plan: Plan) -> list[Trial]:
    return [Trial(name, partial(nearest, name), {"table": name, "asked": ROWS}) for name in TABLES]


def conclude_nearest(records: Mapping[str, Record]) -> Conclusion:
    """With rows of one length the row itself must win; without, it may not."""
    equal = records[TABLES[0]]["wins"] == records[TABLES[0]]["asked"]
    others = all(records[name]["wins"] == records[name]["asked"] for name in TABLES[1:])
    verdict = Verdict.NOT_SUPPORTED if not equal else Verdict.SUPPORTED if others else Verdict.DEPENDS
    won = {name: f"{records[name]['wins']} of {records[name]['asked']}" for name in TABLES}
    zh = {name: f"{records[name]['asked']} 次中 {records[name]['wins']} 次" for name in TABLES}
    lengths = {name: "/".join(f"{value:.2f}" for value in records[name]["lengths"]) for name in TABLES[2:]}
    needed = {
        Verdict.DEPENDS: Text("So the premise of equal lengths is needed.", "可见“各行等长”的前提不可少。"),
        Verdict.SUPPORTED: Text("So it holds for other lengths too.", "可见各行不等长时也成立。"),
    }.get(verdict, Text("So it does not even hold for equal lengths.", "可见连各行等长时也不成立。"))
    says = Text(
        f"x being a row itself, that row has the highest score {won[TABLES[0]]} times where all rows have one length, "
        f"{won[TABLES[1]]} where lengths go from 0.5 to 2, {won['minilm']} in minilm's real table and {won['mini-zh']} "
        f"in mini-zh's (lengths at 5/50/95/100 %: {lengths['minilm']} and {lengths['mini-zh']}). {needed.en}",
        f"令 x 等于某一行：各行等长时该行得分最高的有 {zh[TABLES[0]]}，长度从 0.5 到 2 时 {zh[TABLES[1]]}，"
        f"minilm 的真实词表 {zh['minilm']}，mini-zh {zh['mini-zh']}（行长的 5/50/95/100 % 分位数："
        f"{lengths['minilm']} 与 {lengths['mini-zh']}）。{needed.zh}",
    )
    chinese = ("等长", "长度 0.5–2", "minilm", "mini-zh")
    picture = Lines(
        Text("How often a row wins its own vector, by its length", "行的长短与胜出的比例"),
        Text("tenth of the rows, from shortest to longest", "按长度从短到长的十等分"),
        Text("rows that win (%)", "胜出的行（%）"),
        tuple(
            Series(
                Text(name, chinese[place]),
                tuple(Point(tenth + 1, 100 * share) for tenth, share in enumerate(records[name]["by_length"])),
            )
            for place, name in enumerate(TABLES)
        ),
        Text(
            "Below 100 % rows lose their own vector, which they only can to rows that are longer.",
            "低于 100 % 表示有的行连自己的向量都没赢，而它只可能输给更长的行。",
        ),
    )
    return Conclusion(verdict, says, (picture,))


def _name(alphabet: str, tie: Tie) -> str:
    return f"{alphabet}, tie {tie}"


def _trials(plan: Plan) -> list[Trial]:
    updates, batches = plan.at(4, 240, 1200), plan.at(1, 8)
    return [
        Trial(
            named(_name(alphabet, tie), seed),
            partial(trial, alphabet, tie, (updates, batches), seed),
            {"alphabet": alphabet, "tie": tie, "updates": updates, "held_out": 64 * batches, "seed": seed},
        )
        for seed in range(plan.seeds)
        for alphabet in ALPHABETS
        for tie in TIES
    ]


def conclude_convergence(records: Mapping[str, Record]) -> Conclusion:
    """Both ties must be ahead half-way; and the two alphabets must say the same."""
    gains = {
        (alphabet, tie, time): conclude_paired(records, _name(alphabet, "none"), _name(alphabet, tie), f"{time}_loss")
        for alphabet in ALPHABETS
        for tie in TIES[1:]
        for time in TIMES
    }
    verdicts = {
        alphabet: conclude_alphabet({key[1:]: sided(one) for key, one in gains.items() if key[0] == alphabet})
        for alphabet in ALPHABETS
    }
    verdict = verdicts["one alphabet"] if len(set(verdicts.values())) == 1 else Verdict.DEPENDS
    zh = {"one alphabet": "同一套字", "two alphabets": "两套字"}
    parts = [
        Text(
            f"with {alphabet} ({verdict_of.value}), target embedding = output gains "
            f"{gains[alphabet, 'target', 'half'].signed()} half-way and {gains[alphabet, 'target', 'end'].signed()} at "
            f"the end, all tied {gains[alphabet, 'all', 'half'].signed()} and {gains[alphabet, 'all', 'end'].signed()}",
            f"{zh[alphabet]}（{verdict_of.text.zh}）：目标嵌入与输出共享在半程领先 "
            f"{gains[alphabet, 'target', 'half'].signed()}、结束时 {gains[alphabet, 'target', 'end'].signed()}，"
            f"全部共享为 {gains[alphabet, 'all', 'half'].signed()} 与 {gains[alphabet, 'all', 'end'].signed()}",
        )
        for alphabet, verdict_of in verdicts.items()
    ]
    lost = conclude_lost(records, "end_loss")
    says = Text(
        f"Held-out loss without ties minus with them, above 0 where tying is ahead: "
        f"{'; '.join(part.en for part in parts)}. 95 % intervals over seeds, in nats a token.{lost.en}",
        f"留出集损失（不共享 − 共享，大于 0 表示共享领先）：{'；'.join(part.zh for part in parts)}。"
        f"区间为种子间的 95 % 区间，单位 nat/词。{lost.zh}",
    )
    return Conclusion(verdict, says, tuple(conclude_curves(records, one) for one in ALPHABETS), conclude_arms(records))


def conclude_alphabet(sides: Mapping[tuple[str, str], Verdict]) -> Verdict:
    """The rule for one alphabet, from the sides of (tie, time)."""
    half = {side for (_, time), side in sides.items() if time == "half"}
    seen = {side for (_, time), side in sides.items() if time != "quarter"}
    if {Verdict.SUPPORTED, Verdict.NOT_SUPPORTED} <= seen:
        return Verdict.DEPENDS
    return half.pop() if len(half) == 1 else Verdict.NOT_VISIBLE


def conclude_curves(records: Mapping[str, Record], alphabet: str) -> Lines:
    """Loss by time for each way of tying."""
    names = {
        "none": Text("nothing tied", "不共享"),
        "target": Text("target = output", "目标 = 输出"),
        "all": Text("all tied", "全部共享"),
    }
    series = []
    for tie in TIES:
        effects = [conclude_arm(records, _name(alphabet, tie), f"{time}_loss") for time in TIMES]
        points = [Point(SHARES[int(point.x)], *point[1:]) for point in conclude_points(effects)]
        series.append(Series(names[tie], tuple(points)))
    zh = {"one alphabet": "两边同一套字", "two alphabets": "两边各一套字"}[alphabet]
    return Lines(
        Text(f"Held-out loss, {alphabet}", f"留出集损失，{zh}"),
        Text("share of the updates (%)", "已完成的更新（%）"),
        Text("loss (nats a token)", "损失（nat/词）"),
        tuple(series),
        Text("The lower line has learned faster.", "线越低，学得越快。"),
    )


def conclude_arms(records: Mapping[str, Record]) -> Table:
    """Parameters, losses and right guesses of every arm."""
    columns = (
        Text("arm", "组"),
        Text("parameters", "参数量"),
        Text("loss half-way", "半程损失"),
        Text("loss at the end", "结束时损失"),
        Text("right at the end (%)", "结束时准确率（%）"),
    )
    rows = []
    for alphabet in ALPHABETS:
        for tie in TIES:
            arm = _name(alphabet, tie)
            losses = [str(conclude_arm(records, arm, f"{time}_loss")) for time in TIMES[1:]]
            right = conclude_arm(records, arm, "end_right", 0.01)
            rows.append((arm, f"{conclude_arm(records, arm, 'parameters').mean:,.0f}", *losses, f"{right.mean:.1f}"))
    return Table(columns, tuple(rows))


PARTS = (
    Part("count-and-shape", _count_trials, conclude_count),
    Part("nearest-row", _nearest_trials, conclude_nearest),
    Part("convergence", _trials, conclude_convergence),
)
