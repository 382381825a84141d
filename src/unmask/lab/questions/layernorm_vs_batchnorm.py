"""The same sentence in other company, and what each norm learns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.classify import batches_of, classifier_settings, learned
from unmask.lab.kit.effects import by_seed, named, paired, sided, spread
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.headlines import DATA, headlines
from unmask.lab.kit.headlines import rate_for as rate_for_headlines
from unmask.lab.kit.labelled import labelled
from unmask.lab.kit.newspaper import LeftToRight, held_out, rate_for, scored, transformer
from unmask.lab.kit.newspaper import learned as learned_text
from unmask.lab.pictures import Bars, Point, Series
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.models.gpt import Gpt
from unmask.nn.batch import Batch

NORMS = {"layer": "LayerNorm", "batch": "BatchNorm"}
STATES = {"untrained": Text("untrained", "未训练"), "trained": Text("trained", "训练后")}
RUNS, COMPANIONS = 50, 15
BATCHES, RATES = (8, 64), (5e-4, 2e-3)


def settings(norm: str) -> dict[str, Any]:
    """Two layers of 128 for headlines."""
    return {"norm": norm, "hidden_size": 128, "ffn_size": 512, "norm_eps": 1e-5}


@cache
def _drawn(count: int) -> list[list[list[int]]]:
    """Companions of each run; the last two are all short and all long."""
    texts = labelled(DATA).train.sequences
    generator = torch.Generator().manual_seed(0)
    drawn = [[texts[n] for n in torch.randperm(len(texts), generator=generator)[:COMPANIONS]] for _ in range(count)]
    by_length = sorted(texts, key=len)
    return [*drawn, by_length[:COMPANIONS], by_length[-COMPANIONS:]]


def composition(norm: str, state: str, updates: int) -> Record:
    """How far one headline's [CLS] moves with its companions."""
    data = labelled(DATA)
    how = Fit(updates if state == "trained" else 0)
    model, _ = learned(
        classifier_settings(data.vocab, len(data.labels), settings(norm)), batches_of(data.train, 64), how, 0
    )
    fixed, found = data.test.sequences[0], {}
    for mode in ("evaluation", "training"):  # in this order: what training mode counts, evaluation would use
        model.train(mode == "training")
        found[mode] = _moved(torch.stack([_cls(model, fixed, others) for others in _drawn(RUNS)]))
    return {**found, "earlier_row": earlier_row(norm)}


@torch.no_grad()
def _cls(model: Bert, fixed: list[int], others: list[list[int]]) -> Tensor:
    return model(Batch.of([fixed, *others])).sequence[0]


def _moved(vectors: Tensor) -> dict[str, float]:
    mean = vectors[:RUNS].mean(0)
    size = torch.linalg.norm(mean)
    moved = torch.linalg.norm(vectors - mean, dim=-1) / size
    return {
        "largest": float(moved[:RUNS].max()),
        "median": float(moved[:RUNS].median()),
        "short_to_long": float(torch.linalg.norm(vectors[-1] - vectors[-2]) / size),
    }


@torch.no_grad()
def earlier_row(norm: str) -> float:
    """In a causal stack in training mode: the most that a row moves, relatively, when the last token changes."""
    model = transformer({"norm": norm, "hidden_size": 128, "ffn_size": 512}, 0).train()
    ids = torch.randint(5, 4000, (4, 24), generator=torch.Generator().manual_seed(1))
    before = _rows(model, ids)
    ids[:, -1] = (ids[:, -1] + 1) % 4000
    after = _rows(model, ids)
    return float(((after - before)[:, :-1].norm(dim=-1) / before[:, :-1].norm(dim=-1)).max())


def _rows(model: Gpt, ids: Tensor) -> Tensor:
    return model(Batch.of(ids.tolist())).view(*ids.shape, -1)


def _composition_trials(plan: Plan) -> list[Trial]:
    updates = plan.at(10, 100)
    return [
        Trial(f"{NORMS[norm]}, {state}", partial(composition, norm, state, updates), {"updates": updates})
        for norm in NORMS
        for state in STATES
    ]


def conclude_composition(records: Mapping[str, Record]) -> Conclusion:
    """LayerNorm must not care for company; does BatchNorm, in training?"""
    layer, batch = ([records[f"{name}, {state}"] for state in STATES] for name in NORMS.values())
    still = max(max(one["evaluation"]["largest"], one["training"]["largest"], one["earlier_row"]) for one in layer)
    moved = [one["training"]["median"] for one in batch]
    if max(moved) < 1e-3:
        verdict = Verdict.NOT_SUPPORTED
    else:
        verdict = Verdict.SUPPORTED if still <= 1e-5 and min(moved) >= 1e-2 else Verdict.DEPENDS
    used = max(one["evaluation"]["largest"] for one in batch)
    lengths = [100 * one["training"]["short_to_long"] for one in batch]
    earlier = 100 * max(one["earlier_row"] for one in batch)
    says = Text(
        f"In training mode BatchNorm moves a headline's [CLS] vector by {100 * moved[0]:.1f} % (median, untrained) and "
        f"{100 * moved[1]:.1f} % (trained) when nothing but its {COMPANIONS} companions change, and by "
        f"{lengths[0]:.0f} % and {lengths[1]:.0f} % between short and long companions. In evaluation mode it moves "
        f"by at most {used:.0e}. LayerNorm never moves it by more than {still:.0e}. In a causal stack a later token "
        f"moves an earlier row by up to {earlier:.1f} % with BatchNorm, past the mask.",
        f"训练模式下，仅仅换掉同批的 {COMPANIONS} 条标题，BatchNorm 就使一条标题的 [CLS] 向量变化 "
        f"{100 * moved[0]:.1f} %"
        f"（中位数，未训练）和 {100 * moved[1]:.1f} %（训练后）；同伴从全短换成全长，变化 {lengths[0]:.0f} % 和 "
        f"{lengths[1]:.0f} %。评估模式下最多 {used:.0e}。LayerNorm 的变化从不超过 {still:.0e}。在因果堆叠里，"
        f"用 BatchNorm 时后面的 token 会绕过掩码使前面的行变化，最多 {earlier:.1f} %。",
    )
    return Conclusion(verdict, says, (_company(layer, batch),), _changes(records))


def _changes(records: Mapping[str, Record]) -> Table:
    columns = (
        Text("model", "模型"),
        Text("training, median", "训练模式，中位数"),
        Text("training, largest", "训练模式，最大"),
        Text("evaluation, largest", "评估模式，最大"),
        Text("earlier row", "前面的行"),
    )
    rows = tuple(
        (
            name,
            *(
                f"{value:.1e}"
                for value in (
                    one["training"]["median"],
                    one["training"]["largest"],
                    one["evaluation"]["largest"],
                    one["earlier_row"],
                )
            ),
        )
        for name, one in records.items()
    )
    return Table(columns, rows)


def _company(layer: list[Record], batch: list[Record]) -> Bars:
    return Bars(
        Text("One headline in other company", "同一条标题，不同的同伴"),
        Text("median change of [CLS], %", "[CLS] 变化的中位数，%"),
        tuple(STATES.values()),
        tuple(
            Series(Text(name, name), tuple(Point(n, 100 * one["training"]["median"]) for n, one in enumerate(some)))
            for name, some in zip(NORMS.values(), (layer, batch), strict=True)
        ),
        Text(
            "Training mode: a bar above zero means that a sentence's vector depends on who else is in the batch.",
            "训练模式：高于零的柱子说明一句话的向量取决于同批还有谁。",
        ),
    )


def classified(norm: str, batch: int, percent: int, seed: int) -> Record:
    """Two epochs of headlines, or so much of them."""
    changes, epochs = settings(norm), 2 * percent / 100
    return headlines(changes, batch, epochs, rate_for_headlines(tuple(changes.items()), batch, epochs, RATES), seed)


def text(norm: str, updates: int, seed: int) -> Record:
    """Left to right on newspaper text; BatchNorm's loss also with the statistics of the batch that is measured."""
    changes = {"norm": norm}
    rate = rate_for(tuple(changes.items()), max(2, updates // 5), RATES)
    run = LeftToRight(Fit(updates, rate), changes)
    model, losses = learned_text(run, seed)
    record = scored(run, model, losses)
    found, failure = held_out(model.train()), record["frequencies"] + 1
    return {**record, "with_batch_statistics": found if found < failure else failure}


def _train_trials(plan: Plan) -> list[Trial]:
    percent, updates = plan.at(1, 100), plan.at(4, 200)
    trials = []
    for seed in range(plan.seeds):
        for norm in NORMS:
            for batch in BATCHES:
                job = partial(classified, norm, batch, percent, seed)
                trials.append(Trial(named(f"{norm}, headlines, {batch}", seed), job, {"percent": percent}))
            job = partial(text, norm, updates, seed)
            trials.append(Trial(named(f"{norm}, text", seed), job, {"updates": updates}))
    return trials


def conclude_train(records: Mapping[str, Record]) -> Conclusion:
    """Accuracy with both batch sizes, and loss on text: all better with LayerNorm is positive."""
    effects = {}
    for batch in BATCHES:
        effects[f"{batch}"] = paired(
            *(by_seed(records, f"{norm}, headlines, {batch}", "accuracy") for norm in ("layer", "batch"))
        )
    losses = {norm: by_seed(records, f"{norm}, text", "loss") for norm in NORMS}
    effects["text"] = paired(losses["batch"], losses["layer"])
    found = {sided(effect) for effect in effects.values()}
    verdict = found.pop() if len(found) == 1 else Verdict.DEPENDS
    english = {
        Verdict.SUPPORTED: "LayerNorm learns more than BatchNorm in all three settings.",
        Verdict.NOT_SUPPORTED: "BatchNorm learns more than LayerNorm in all three settings.",
        Verdict.DEPENDS: "The settings do not agree.",
        Verdict.NOT_VISIBLE: "No difference between the norms can be told from zero.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "三种设置下 LayerNorm 都比 BatchNorm 学得好。",
        Verdict.NOT_SUPPORTED: "三种设置下 BatchNorm 都比 LayerNorm 学得好。",
        Verdict.DEPENDS: "几种设置结论不一致。",
        Verdict.NOT_VISIBLE: "两种归一化的差别看不出来。",
    }[verdict]
    few, many = (effects[str(batch)].signed() for batch in BATCHES)
    running, own = (spread(by_seed(records, "batch, text", name)) for name in ("loss", "with_batch_statistics"))
    failed = sum(bool(record.get("failed")) for record in records.values())
    says = Text(
        f"{english} LayerNorm's accuracy minus BatchNorm's on headlines: {few} with batches of {BATCHES[0]}, {many} "
        f"with batches of {BATCHES[1]}. BatchNorm's loss minus LayerNorm's on text: {effects['text'].signed()}. "
        f"BatchNorm's loss is {running} with running averages and {own} with the statistics of the measured batch, "
        f"which see later characters. Runs that failed: {failed}.",
        f"{chinese}标题分类 LayerNorm 准确率减 BatchNorm：每批 {BATCHES[0]} 条 {few}，每批 {BATCHES[1]} 条 "
        f"{many}。文本上 "
        f"BatchNorm 损失减 LayerNorm：{effects['text'].signed()}。BatchNorm 用滑动平均时损失为 {running}，"
        "用所测批次自己的"
        f"统计量（看得到后面的字）时为 {own}。失败的训练：{failed} 次。",
    )
    names = (
        *(Text(f"accuracy, batches of {batch}", f"准确率，每批 {batch} 条") for batch in BATCHES),
        Text("loss on text", "文本损失"),
    )
    picture = Bars(
        Text("What LayerNorm gains over BatchNorm", "LayerNorm 比 BatchNorm 好多少"),
        Text("accuracy, or loss a character", "准确率，或每字损失"),
        names,
        (Series(Text("gain", "改进"), tuple(one.point(n) for n, one in enumerate(effects.values()))),),
        Text("Above zero LayerNorm is better.", "高于零表示 LayerNorm 更好。"),
    )
    return Conclusion(verdict, says, (picture,))


PARTS = (
    Part("composition", _composition_trials, conclude_composition),
    Part("train", _train_trials, conclude_train),
)
