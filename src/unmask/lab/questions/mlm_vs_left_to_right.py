"""Masked characters against the next character, on the same text in the same order."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from unmask.data.masking import MaskVocabulary, mask_tokens
from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.daily import CLS, MASK, SEP, SPECIAL, VOCAB, daily, windows
from unmask.lab.kit.effects import by_seed, named, paired, sided, spread
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.mlm import MEASURED, settings_of
from unmask.lab.kit.short_mlm import CHANCE, LENGTH
from unmask.lab.kit.telling import conclude_compared, conclude_lost, conclude_table
from unmask.lab.pictures import Lines, Series
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.models.init import build_model, start_as_sinusoids
from unmask.nn.batch import Batch
from unmask.nn.plan import AttentionPlan

ARMS = {
    "MLM": Text("MLM, 15 %", "MLM，15%"),
    "left-to-right": Text("left-to-right, every token", "从左到右，每个字"),
    "left-to-right, 15 %": Text("left-to-right, 15 %", "从左到右，15%"),
}
MOMENTS = ("quarter", "half", "end")
HELD_OUT = 512


def asked(texts: list[np.ndarray], arm: str, rng: np.random.Generator) -> tuple[Batch, Tensor, Tensor]:
    """What a model reads, the rows that answer, and the answers; the choice of 15 % is the same for all arms."""
    vocabulary = MaskVocabulary.of(VOCAB, MASK, range(SPECIAL))
    sequences, rows, targets, first = [], [], [], 0
    for text in texts:
        ids = np.concatenate([[CLS], text, [SEP]]).astype(np.int64)
        found = mask_tokens(ids, ids >= SPECIAL, np.ones(len(ids), dtype=bool), vocabulary, MEASURED, rng)
        places = found.places if arm != "left-to-right" else np.flatnonzero(ids >= SPECIAL)
        sequences.append((found.ids if arm == "MLM" else ids).tolist())
        rows.append(places + first - (arm != "MLM"))  # from left to right the row before a character guesses it
        targets.append(ids[places])
        first += len(ids)
    return Batch.of(sequences), torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(targets))


def rows_of(model: Bert, batch: Batch, arm: str) -> Tensor:
    """The encoder's rows, each of which sees both sides, or only what stands before it."""
    plan = AttentionPlan.between(batch.layout, batch.layout, causal=arm != "MLM")
    return model.encoder.stack(model.encoder.embeddings(batch), plan)


@torch.no_grad()
def held_out(model: Bert, arm: str) -> float:
    """The loss at the same chosen characters of the same held-out texts, whatever the arm."""
    rng, masks, loss, total = np.random.default_rng(12345), np.random.default_rng(54321), 0.0, 0
    kind = "MLM" if arm == "MLM" else "left-to-right, 15 %"
    for _ in range(0, HELD_OUT, 64):
        batch, rows, targets = asked(windows(daily().held_out, LENGTH, 64, rng), kind, masks)
        loss += float(model.masked_token_loss(rows_of(model, batch, arm)[rows], targets))
        total += len(targets)
    return loss / total if math.isfinite(loss) else CHANCE


def trial(arm: str, updates: int, batch: int, seed: int) -> Record:
    """Train, and measure after a quarter, half and all of the updates."""
    seeded(seed)
    model = build_model(settings_of({}), seed=seed)
    assert isinstance(model, Bert)
    start_as_sinusoids(model)
    texts, masks = np.random.default_rng(seed), np.random.default_rng(seed + 1000)
    moments = {updates // 4: "quarter", updates // 2: "half"}
    found: dict[str, float] = {}
    spent = 0.0

    def loss(number: int) -> Tensor:
        nonlocal spent
        if number in moments:
            began = time.process_time()
            found[moments[number]] = held_out(model, arm)
            spent += time.process_time() - began
        read, rows, targets = asked(windows(daily().learned, LENGTH, batch, texts), arm, masks)
        return model.masked_token_loss(rows_of(model, read, arm)[rows], targets) / len(targets)

    daily()  # read before the clock starts
    began = time.process_time()
    losses = fit(model, loss, Fit(updates, 2e-3))
    seconds = (time.process_time() - began - spent) / len(losses)
    diverged = not all(map(math.isfinite, losses))
    last = {moment: found.get(moment, CHANCE) for moment in MOMENTS[:2]}
    end = CHANCE if diverged else held_out(model, arm)
    return {**last, "end": end, "seconds_an_update": round(seconds, 4), "diverged": diverged}


def _trials(plan: Plan) -> list[Trial]:
    updates, batch = plan.at(8, 300), plan.at(8, 64)
    return [
        Trial(
            named(arm, seed),
            partial(trial, arm, updates, batch, seed),
            {"arm": arm, "updates": updates, "batch": batch, "seed": seed},
        )
        for arm in ARMS
        for seed in range(plan.seeds)
    ]


def conclude_tokens(records: Mapping[str, Record]) -> Conclusion:
    """MLM against left-to-right after the same tokens, at two moments."""
    effects = {
        moment: paired(by_seed(records, "MLM", moment), by_seed(records, "left-to-right", moment)) for moment in MOMENTS
    }
    sides = [sided(effects[moment]) for moment in MOMENTS[1:]]
    verdict = sides[0] if sides[0] == sides[1] else Verdict.DEPENDS
    fewer = paired(by_seed(records, "left-to-right, 15 %", "end"), by_seed(records, "left-to-right", "end"))
    seconds = {arm: spread(by_seed(records, arm, "seconds_an_update")).mean for arm in ARMS}
    told = {moment: conclude_compared(effect) for moment, effect in effects.items()}
    lost, cost = conclude_lost(records), conclude_compared(fewer)
    says = Text(
        f"On the same characters, the loss of MLM against left-to-right is {told['quarter'].en} after a quarter of "
        "the updates, "
        f"{told['half'].en} after half, {told['end'].en} nats at the end. With questions at only 15 % of its tokens, "
        f"left-to-right is {cost.en} in the end than with all. An update takes {seconds['MLM']:.2f} s for MLM, "
        f"{seconds['left-to-right']:.2f} s from left to right, {seconds['left-to-right, 15 %']:.2f} s with 15 "
        f"%.{lost.en}",
        f"在同样的字上，MLM 的损失与从左到右相比：四分之一步时{told['quarter'].zh}，一半时{told['half'].zh}，"
        f"结束时{told['end'].zh} nat。"
        f"从左到右的模型若只在 15% 的字上提问，结束时的损失比每个字都问{cost.zh}。每步用时：MLM {seconds['MLM']:.2f} "
        "秒，从左到右 "
        f"{seconds['left-to-right']:.2f} 秒，只问 15% 时 {seconds['left-to-right, 15 %']:.2f} 秒。{lost.zh}",
    )
    picture = Lines(
        Text("Held-out loss on the same characters", "同样的字上的留出集损失"),
        Text("share of the updates, %", "已完成的步数（%）"),
        Text("nats", "nat"),
        tuple(
            Series(
                label,
                tuple(
                    spread(by_seed(records, arm, moment)).point(x)
                    for moment, x in zip(MOMENTS, (25, 50, 100), strict=True)
                ),
            )
            for arm, label in ARMS.items()
        ),
        Text("MLM may look at both sides, left-to-right only back.", "MLM 能看两边，从左到右只能看前文。"),
    )
    columns = {
        "end": Text("loss at the end", "结束时的损失"),
        "half": Text("loss at half", "一半时的损失"),
        "seconds_an_update": Text("seconds an update", "每步秒数"),
    }
    return Conclusion(verdict, says, (picture,), conclude_table(records, ARMS, "left-to-right", columns))


PARTS = (Part("equal-tokens", _trials, conclude_tokens),)
