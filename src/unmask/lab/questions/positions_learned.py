"""Positions from a table that is learned, from one that starts as sinusoids, and fixed: in BERT, in a translator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.data.masking import MaskingSettings
from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.daily import daily, hidden, windows
from unmask.lab.kit.effects import Effect, by_seed, named, paired, spread
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.french import french, new_model, pairs_loss, single_tokens_loss, taught, translator
from unmask.lab.kit.mlm import held_out, mlm_loss, settings_of
from unmask.lab.kit.newspaper import frequencies_loss
from unmask.lab.pictures import Lines, Series
from unmask.lab.words import Text, both
from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.nn.positions.absolute import LearnedPositions, sinusoids

CHARACTERS = 30  # with [CLS] and [SEP] 32 tokens
ARMS = {
    "random table": Text("table from random values", "随机初值的表"),
    "started table": Text("table that starts as sinusoids", "以正弦为初值的表"),
    "fixed": Text("fixed sinusoids", "固定正弦"),
}
#: The arms of the translator.
PAIR = ("random table", "fixed")
#: Parts of the run after which losses are measured.
MOMENTS = (0.25, 0.5, 1.0)
MARGIN, LEARNED = 0.05, 0.1


def model_of(arm: str, seed: int) -> Bert:
    """Token vectors of variance 1, a norm after the sum; only the positions differ."""
    kind = "sinusoidal" if arm == "fixed" else "learned"
    changes: dict[str, Any] = {"positions": {"kind": kind}, "init": "xavier", "scale_embeddings": True}
    model = build_model(settings_of({**changes, "max_length": CHARACTERS + 2}), seed=seed)
    assert isinstance(model, Bert)
    positions = model.encoder.embeddings.positions
    if arm == "started table" and isinstance(positions, LearnedPositions):
        table = positions.table.weight
        with torch.no_grad():
            table.copy_(sinusoids(torch.arange(len(table)), table.shape[1]))
    return model


def mlm(arm: str, updates: int, seed: int) -> Record:
    """Pre-train; loss on always the same hidden characters, at three moments."""
    seeded(seed)
    model, rng = model_of(arm, seed), np.random.default_rng(seed)
    watched = Watched(updates, lambda: held_out(model, 256, CHARACTERS)["loss"])

    def loss(number: int) -> Tensor:
        watched.before(number)
        texts = windows(daily().learned, CHARACTERS, 64, rng)
        return mlm_loss(model, hidden(texts, MaskingSettings(), rng))

    fit(model, loss, Fit(updates, rate=2e-3))
    return {**watched.ended(), "frequencies": frequencies_loss(CHARACTERS)}


def translate(arm: str, updates: int, pairs: int, seed: int) -> Record:
    """Learn to translate; loss on always the same pairs, at three moments."""
    kind = "sinusoidal" if arm == "fixed" else "learned"
    model, asked = new_model(translator("transformer", {"positions": {"kind": kind}}), seed), french().asked[:pairs]
    watched = Watched(updates, lambda: pairs_loss(model, asked))
    taught(model, updates, seed, watched.before)
    return {**watched.ended(), "frequencies": single_tokens_loss(asked)}


class Watched:
    """A run of which a loss is measured at three moments."""

    def __init__(self, updates: int, measure: Callable[[], float]) -> None:
        self.moments, self.measure = [round(part * updates) for part in MOMENTS], measure
        self.found: list[float] = []

    def before(self, number: int) -> None:
        """Measure if it is time to, before an update."""
        if number in self.moments:
            self._keep()

    def ended(self) -> Record:
        """What was found, after the last update; a run that broke off stays where it was."""
        self._keep()
        self.found += self.found[-1:] * (len(self.moments) - len(self.found))
        return {**{f"loss_{number}": value for number, value in enumerate(self.found)}, "moments": self.moments}

    def _keep(self) -> None:
        loss = self.measure()
        self.found.append(loss if loss < 20 else 20.0)


def _trials(plan: Plan) -> list[Trial]:
    updates = plan.at(4, 300, 1500)
    return [
        Trial(named(arm, seed), partial(mlm, arm, updates, seed), {"updates": updates})
        for seed in range(plan.seeds)
        for arm in ARMS
    ]


def _translate_trials(plan: Plan) -> list[Trial]:
    updates, pairs = plan.at(4, 300, 1500), plan.at(64, 2000)
    return [
        Trial(named(arm, seed), partial(translate, arm, updates, pairs, seed), {"updates": updates, "pairs": pairs})
        for seed in range(plan.seeds)
        for arm in PAIR
    ]


def conclude_mlm(records: Mapping[str, Record]) -> Conclusion:
    """Loss with the random table minus that with fixed sinusoids, of hidden characters: within the margin?"""
    last = len(MOMENTS) - 1
    started = paired(*(by_seed(records, arm, f"loss_{last}") for arm in ("started table", "fixed")))
    more = Text(
        f" A table that starts as sinusoids ends {started.signed()} from the fixed ones.",
        f"以正弦为初值的表，最终与固定正弦相差 {started.signed()}。",
    )
    words = Text("single-character frequencies", "单字频率")
    return conclude_moments(records, tuple(ARMS), words, more, Text("Hidden characters", "被遮盖的字"))


def conclude_translate(records: Mapping[str, Record]) -> Conclusion:
    """The same of the tokens of translations."""
    words = Text("single-token frequencies", "单个词元的频率")
    return conclude_moments(records, PAIR, words, both(""), Text("English to French", "英译法"))


def conclude_moments(
    records: Mapping[str, Record], arms: Sequence[str], plainest: Text, more: Text, title: Text
) -> Conclusion:
    """By the losses of arms at three moments, one of them with a random table and one with fixed sinusoids."""
    last = len(MOMENTS) - 1
    loss = {(arm, k): by_seed(records, arm, f"loss_{k}") for arm in arms for k in range(len(MOMENTS))}
    effects = [paired(loss["random table", k], loss["fixed", k]) for k in range(len(MOMENTS))]
    first = records[named("fixed", 0)]
    plain, moments = first["frequencies"], first["moments"]
    best = min(spread(loss[arm, last]).mean for arm in arms)
    verdict = verdict_of(effects[0], effects[-1]) if best < plain - LEARNED else Verdict.NOT_VISIBLE
    english = {
        Verdict.SUPPORTED: f"No real difference: the interval lies within ±{MARGIN}.",
        Verdict.NOT_SUPPORTED: f"There is a difference beyond ±{MARGIN} after so short a training.",
        Verdict.DEPENDS: "Which one leads changes during the training.",
        Verdict.NOT_VISIBLE: "Too little was learned, or the interval is too wide, to tell.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: f"没有实质差别：区间落在 ±{MARGIN} 以内。",
        Verdict.NOT_SUPPORTED: f"训练这么短时，差别超出 ±{MARGIN}。",
        Verdict.DEPENDS: "谁领先随训练而变。",
        Verdict.NOT_VISIBLE: "学到的太少，或区间太宽，看不出来。",
    }[verdict]
    shown = ", ".join(f"{effect.signed()} at update {n}" for effect, n in zip(effects, moments, strict=True))
    shown_zh = "，".join(f"第 {n} 次更新时 {effect.signed()}" for effect, n in zip(effects, moments, strict=True))
    says = Text(
        f"{english} Held-out loss with a table from random values minus that with fixed sinusoids: {shown}.{more.en} "
        f"The best arm ends at {best:.3f}; {plainest.en} give {plain:.3f}.",
        f"{chinese}随机初值的表的留出损失减固定正弦的：{shown_zh}。{more.zh}"
        f"最好的一种最终为 {best:.3f}，{plainest.zh}的损失为 {plain:.3f}。",
    )
    picture = Lines(
        title,
        Text("updates", "更新次数"),
        Text("held-out loss", "留出集损失"),
        tuple(Series(ARMS[arm], tuple(spread(loss[arm, k]).point(n) for k, n in enumerate(moments))) for arm in arms),
        Text(
            "Lower is better; lines that meet mean that positions need not be fixed.",
            "越低越好；线若汇合，说明位置不必固定。",
        ),
    )
    return Conclusion(verdict, says, (picture,))


def verdict_of(first: Effect, last: Effect) -> Verdict:
    """On 'no real difference', by the method's rule."""
    if (first.low > 0 and last.high < 0) or (first.high < 0 and last.low > 0):
        return Verdict.DEPENDS
    if last.low >= -MARGIN and last.high <= MARGIN:
        return Verdict.SUPPORTED
    return Verdict.NOT_SUPPORTED if last.low > MARGIN or last.high < -MARGIN else Verdict.NOT_VISIBLE


PARTS = (
    Part("mlm", _trials, conclude_mlm),
    Part("translate", _translate_trials, conclude_translate),
)
