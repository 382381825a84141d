"""The short pre-training that many questions share: 64 stretches of 30 characters an update, 700 updates.

Two things differ from BERT so that a minute is enough to learn from context, and not only how frequent characters are:
rotary positions and pre-norm. With BERT's own table and norms so short a run ends at the loss of frequencies alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from unmask.data.masking import MaskingSettings
from unmask.lab.entry import Plan, Record, Trial
from unmask.lab.kit.daily import VOCAB, daily
from unmask.lab.kit.effects import named
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.mlm import MEASURED, MlmRun, held_out, pretrained
from unmask.models.bert import Bert, num_parameters

LENGTH = 30
#: What a model learns from context within a minute with.
SWIFT: Mapping[str, Any] = {"norm_place": "pre", "final_norm": True, "positions": {"kind": "rotary"}}
#: What somebody who knows nothing loses.
CHANCE = math.log(VOCAB)


def short_run(plan: Plan, model: Mapping[str, Any] | None = None, masking: MaskingSettings = MEASURED) -> MlmRun:
    """A run of the plan's size."""
    return MlmRun(short_fit(plan), masking, LENGTH, plan.at(8, 64), {**SWIFT, **(model or {})})


def short_fit(plan: Plan) -> Fit:
    """How long and how fast it learns."""
    return Fit(plan.at(8, 700), 2e-3)


def short_trial(run: MlmRun, seed: int, more: Callable[[Bert], Record] = lambda model: {}) -> Record:
    """Pre-train and measure on held-out text; `more` looks at the model too."""
    daily()  # read before the clock starts
    began = time.process_time()
    model, losses = pretrained(run, seed)
    spent = time.process_time() - began
    return {**measured(model, losses), "seconds": round(spent, 2), **more(model)}


def measured(model: Bert, losses: list[float]) -> Record:
    """What every short run is measured by; a loss that is no number counts as that of knowing nothing."""
    found = held_out(model, length=LENGTH)
    diverged = not all(map(math.isfinite, [*losses, found["loss"]]))
    finite = [round(value, 4) for value in losses if math.isfinite(value)]
    return {
        "score": CHANCE if diverged else found["loss"],
        "accuracy": 0.0 if diverged else found["accuracy"],
        "diverged": diverged,
        "parameters": num_parameters(model),
        "losses": finite[:: max(1, len(finite) // 50)],
    }


def short_trials(plan: Plan, arms: Mapping[str, Mapping[str, Any]]) -> list[Trial]:
    """A trial for each arm, which is what differs in the model's settings, under each seed."""
    trials = []
    for arm, changes in arms.items():
        run = short_run(plan, changes)
        settings = {"model": dict(changes), "updates": run.fit.updates, "batch": run.batch}
        for seed in range(plan.seeds):
            trials.append(Trial(named(arm, seed), partial(short_trial, run, seed), {**settings, "seed": seed}))
    return trials
