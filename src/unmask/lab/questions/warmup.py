"""Warm-up of the learning rate: with and without, for norms after and before the sub-layers, at two rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.daily import VOCAB
from unmask.lab.kit.effects import Effect, named, sided
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.newspaper import LeftToRight, frequencies_loss, held_out, learned
from unmask.lab.kit.pairing import conclude_arm, conclude_effect, conclude_paired, conclude_seeds
from unmask.lab.pictures import Lines, Point, Series
from unmask.lab.words import Text

STACKS: dict[str, dict[str, Any]] = {
    "post-norm": {"norm_place": "post"},
    "pre-norm": {"norm_place": "pre", "final_norm": True},
}
RATES = {"1e-3": 1e-3, "4e-3": 4e-3}
WARMUPS = {"warm-up": 0.2, "none": 0.0}  # of the updates
LENGTH = 32  # characters a text
CELLS = [(stack, rate) for stack in STACKS for rate in RATES]
#: The loss of who holds every character to be equally likely.
UNIFORM = math.log(VOCAB)


def arm_of(stack: str, rate: str, warmup: str) -> str:
    """The name of an arm."""
    return f"{stack}, {rate}, {warmup}"


def trial(stack: str, rate: str, warmup: str, updates: int, seed: int) -> Record:
    """Train from left to right, and measure. A run that diverged counts as a uniform guess, and says so."""
    how = Fit(updates, RATES[rate], WARMUPS[warmup])
    model, losses = learned(LeftToRight(how, {"num_layers": 4, **STACKS[stack]}, length=LENGTH, batch=64), seed)
    found = held_out(model, LENGTH)
    diverged = len(losses) < updates or not math.isfinite(found) or found > UNIFORM
    first = [value for value in losses[: max(1, updates // 5)] if math.isfinite(value)]
    return {
        "loss": UNIFORM if diverged else found,
        "diverged": diverged,
        "highest_early": max(first, default=None),
        "frequencies": frequencies_loss(LENGTH),
        "losses": [round(value, 4) for value in losses[:: max(1, updates // 50)] if math.isfinite(value)],
        "every": max(1, updates // 50),
    }


def _trials(plan: Plan) -> list[Trial]:
    updates = plan.at(5, 250, 1000)
    return [
        Trial(
            named(arm_of(stack, rate, warmup), seed),
            partial(trial, stack, rate, warmup, updates, seed),
            {"stack": stack, "rate": RATES[rate], "warmup": WARMUPS[warmup], "updates": updates, "seed": seed},
        )
        for seed in range(plan.seeds)
        for stack, rate in CELLS
        for warmup in WARMUPS
    ]


def conclude_warmup(records: Mapping[str, Record]) -> Conclusion:
    """Post-norm must gain at both rates, and no stack may lose."""
    effects = {
        (stack, rate): conclude_paired(records, arm_of(stack, rate, "none"), arm_of(stack, rate, "warm-up"), "loss")
        for stack, rate in CELLS
    }
    sides = {cell: sided(effect) for cell, effect in effects.items()}
    verdict = conclude_verdict(sides)
    lost = {warmup: conclude_diverged(records, warmup) for warmup in WARMUPS}
    runs, plain = len(records) // len(WARMUPS), next(iter(records.values()))["frequencies"]
    listed = [f"{stack} {rate}: {effect.signed()}" for (stack, rate), effect in effects.items()]
    early = {
        warmup: conclude_effect(
            value
            for stack, rate in CELLS
            for value in conclude_seeds(records, arm_of(stack, rate, warmup), "highest_early")
        ).mean
        for warmup in WARMUPS
    }
    says = Text(
        f"{conclude_lead(verdict).en} Held-out loss without warm-up minus with it: {'; '.join(listed)}. Diverged: "
        f"{lost['none']} of {runs} runs without warm-up, {lost['warm-up']} of {runs} with it. The highest training "
        f"loss in the first fifth of the updates is {early['none']:.2f} without and {early['warm-up']:.2f} with "
        f"warm-up, on average; a uniform guess has {UNIFORM:.2f}, the frequencies of single characters {plain:.2f}.",
        f"{conclude_lead(verdict).zh}留出集损失（无 warm-up − 有 warm-up）：{'；'.join(listed)}。发散："
        f"无 warm-up 的 {runs} 次中 {lost['none']} 次，有 warm-up 的 {runs} 次中 {lost['warm-up']} 次。"
        f"前五分之一更新中训练损失的最大值，平均为 {early['none']:.2f}（无）与 {early['warm-up']:.2f}（有）；"
        f"均匀猜测为 {UNIFORM:.2f}，只知道单字频率为 {plain:.2f}。",
    )
    return Conclusion(verdict, says, conclude_pictures(records), conclude_table(records, effects))


def conclude_verdict(sides: Mapping[tuple[str, str], Verdict]) -> Verdict:
    """By the method's rule."""
    post = {side for (stack, _), side in sides.items() if stack == "post-norm"}
    pre = {side for (stack, _), side in sides.items() if stack == "pre-norm"}
    if post | pre == {Verdict.NOT_VISIBLE}:
        return Verdict.NOT_VISIBLE
    for side, other in ((Verdict.SUPPORTED, Verdict.NOT_SUPPORTED), (Verdict.NOT_SUPPORTED, Verdict.SUPPORTED)):
        if post == {side} and other not in pre:
            return side
    return Verdict.DEPENDS


def conclude_lead(verdict: Verdict) -> Text:
    """What the verdict means here."""
    return {
        Verdict.SUPPORTED: Text(
            "Warm-up lowers the loss of the post-norm stack at both rates.",
            "warm-up 在两个学习率下都降低了 post-norm 的损失。",
        ),
        Verdict.NOT_SUPPORTED: Text(
            "Warm-up raises the loss of the post-norm stack at both rates.",
            "warm-up 在两个学习率下都升高了 post-norm 的损失。",
        ),
        Verdict.NOT_VISIBLE: Text(
            "No interval excludes 0: so short a run shows no effect.", "没有一个区间排除 0：这么短的训练看不出效果。"
        ),
    }.get(verdict, Text("It depends on the stack and the rate.", "要看结构和学习率。"))


def conclude_diverged(records: Mapping[str, Record], warmup: str) -> int:
    """How many runs diverged."""
    arms = [conclude_seeds(records, arm_of(stack, rate, warmup), "diverged") for stack, rate in CELLS]
    return int(sum(map(sum, arms)))


def conclude_pictures(records: Mapping[str, Record]) -> tuple[Lines, ...]:
    """Training losses on the way, at the higher rate, mean over seeds; one picture a stack."""
    rate, pictures = list(RATES)[-1], []
    for stack in STACKS:
        series = []
        for warmup in WARMUPS:
            runs = [record for name, record in records.items() if name.startswith(arm_of(stack, rate, warmup) + ",")]
            length = min((len(run["losses"]) for run in runs), default=0)
            points = [
                Point(place * runs[0]["every"], sum(run["losses"][place] for run in runs) / len(runs))
                for place in range(length)
            ]
            name = Text("with warm-up", "有 warm-up") if warmup == "warm-up" else Text("without warm-up", "无 warm-up")
            series.append(Series(name, tuple(points)))
        pictures.append(
            Lines(
                Text(f"Training loss, {stack}, rate {rate}", f"训练损失，{stack}，学习率 {rate}"),
                Text("update", "更新次数"),
                Text("training loss (nats), mean over seeds", "训练损失（nat），种子平均"),
                tuple(series),
                Text(
                    "Warm-up begins more slowly by design; what counts is which line is lower at the end.",
                    "有 warm-up 的一开始必然慢一些；要看最后哪条线更低。",
                ),
            )
        )
    return tuple(pictures)


def conclude_table(records: Mapping[str, Record], effects: Mapping[tuple[str, str], Effect]) -> Table:
    """Every arm's loss, and the effects."""
    columns = (
        Text("stack", "结构"),
        Text("rate", "学习率"),
        Text("loss with warm-up", "有 warm-up 的损失"),
        Text("loss without", "无 warm-up 的损失"),
        Text("difference", "差"),
    )
    rows = [
        (
            stack,
            rate,
            *(str(conclude_arm(records, arm_of(stack, rate, warmup), "loss")) for warmup in ("warm-up", "none")),
            effect.signed(),
        )
        for (stack, rate), effect in effects.items()
    ]
    return Table(columns, tuple(rows))


PARTS = (Part("with-and-without", _trials, conclude_warmup),)
