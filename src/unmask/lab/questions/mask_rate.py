"""Rates of masking from 5 to 50 %, all measured in the same two ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from unmask.data.masking import MaskingSettings
from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.daily import CLS, MASK, SEP, SPECIAL, daily, windows
from unmask.lab.kit.effects import Effect, by_seed, named, paired, spread
from unmask.lab.kit.short_mlm import CHANCE, LENGTH, short_run, short_trial
from unmask.lab.kit.telling import conclude_compared, conclude_lost, conclude_table
from unmask.lab.pictures import Lines, Series
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.nn.batch import Batch

RATES = (5, 10, 15, 20, 30, 50)
USUAL, NEAR = 15, (10, 20)
MARGIN = 0.05  # nats
MEASURES = {"score": Text("15 % chosen", "选 15%"), "single": Text("a single [MASK]", "只有一个 [MASK]")}
SINGLE_TEXTS = 2048


@torch.inference_mode()
def single(model: Bert) -> Record:
    """The loss on held-out texts in which one character is hidden and all others are seen."""
    rng, loss, total = np.random.default_rng(54321), 0.0, 0
    for _ in range(0, SINGLE_TEXTS, 64):
        sequences, rows, targets, first = [], [], [], 0
        for text in windows(daily().held_out, LENGTH, 64, rng):
            ids = [CLS, *text.tolist(), SEP]
            place = int(rng.choice([n for n, id in enumerate(ids) if id >= SPECIAL] or [1]))
            rows.append(first + place)
            targets.append(ids[place])
            ids[place] = MASK
            sequences.append(ids)
            first += len(ids)
        seen = model(Batch.of(sequences)).sequence[torch.tensor(rows)]
        loss += float(F.cross_entropy(model.masked_token_logits(seen), torch.tensor(targets), reduction="sum"))
        total += len(targets)
    return {"single": loss / total if math.isfinite(loss) else CHANCE}


def _trials(plan: Plan) -> list[Trial]:
    trials = []
    for rate in RATES:
        run = short_run(plan, masking=MaskingSettings(rate=rate / 100))
        for seed in range(plan.seeds):
            settings = {"rate": rate, "updates": run.fit.updates, "seed": seed}
            trials.append(Trial(named(f"{rate} %", seed), partial(short_trial, run, seed, single), settings))
    return trials


def conclude_rates(records: Mapping[str, Record]) -> Conclusion:
    """10 and 20 % as good as 15, and nothing outside better, by both measures."""
    effects = {
        measure: {
            rate: paired(by_seed(records, f"{rate} %", measure), by_seed(records, f"{USUAL} %", measure))
            for rate in RATES
            if rate != USUAL
        }
        for measure in MEASURES
    }
    inside = all(one.low > -MARGIN and one.high < MARGIN for found in effects.values() for one in found.values())
    sides = {measure: conclude_measure(found) for measure, found in effects.items()}
    first, second = sides.values()
    if inside or (first == second == Verdict.NOT_VISIBLE):
        verdict = Verdict.NOT_VISIBLE
    else:
        verdict = first if first == second else Verdict.DEPENDS
    best = {
        measure: min(RATES, key=lambda rate: spread(by_seed(records, f"{rate} %", measure)).mean)
        for measure in MEASURES
    }
    lost = conclude_lost(records)
    told = {
        measure: {rate: conclude_compared(one) for rate, one in found.items()} for measure, found in effects.items()
    }
    says = Text(
        " ".join(
            f"Measured with {label.en}, the loss against 15 % is "
            f"{'; '.join(f'at {rate} % {text.en}' for rate, text in told[measure].items())} nats; the lowest mean is "
            "at "
            f"{best[measure]} %."
            for measure, label in MEASURES.items()
        )
        + lost.en,
        "".join(
            f"{label.zh}时，与 15% 相比的损失："
            f"{'；'.join(f'{rate}% {text.zh}' for rate, text in told[measure].items())} nat；平均最低的是 "
            f"{best[measure]}%。"
            for measure, label in MEASURES.items()
        )
        + lost.zh,
    )
    picture = conclude_curve(records)
    arms = {f"{rate} %": Text(f"{rate} %", f"{rate} %") for rate in RATES}
    columns = {measure: Text(f"loss, {label.en}", f"损失，{label.zh}") for measure, label in MEASURES.items()}
    return Conclusion(verdict, says, (picture,), conclude_table(records, arms, f"{USUAL} %", columns))


def conclude_curve(records: Mapping[str, Record]) -> Lines:
    """Loss over the rate."""
    return Lines(
        Text("Held-out loss over the rate of masking", "留出集损失随掩码比例的变化"),
        Text("rate in training, %", "训练时的比例（%）"),
        Text("nats", "nat"),
        tuple(
            Series(label, tuple(spread(by_seed(records, f"{rate} %", measure)).point(rate) for rate in RATES))
            for measure, label in MEASURES.items()
        ),
        Text("Lower is better; whiskers are 95 % intervals over seeds.", "越低越好；须线为各种子的 95 % 区间。"),
    )


def conclude_measure(effects: Mapping[int, Effect]) -> Verdict:
    """By one measure alone; too wide intervals leave it open."""
    outside = [effect for rate, effect in effects.items() if rate not in NEAR]
    if any(effects[rate].low > MARGIN for rate in NEAR) or any(effect.high < 0 for effect in outside):
        return Verdict.NOT_SUPPORTED
    near = all(effects[rate].low > -MARGIN and effects[rate].high < MARGIN for rate in NEAR)
    return Verdict.SUPPORTED if near else Verdict.NOT_VISIBLE


PARTS = (Part("rates", _trials, conclude_rates),)
