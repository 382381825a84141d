"""What chosen tokens look like: shares of [MASK], random and kept, and what each teaches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch

from unmask.data.masking import MaskingSettings
from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.daily import CLS, SEP, daily, windows
from unmask.lab.kit.effects import by_seed, named, paired, sided
from unmask.lab.kit.mlm import MlmRun, held_out
from unmask.lab.kit.short_mlm import CHANCE, LENGTH, short_run, short_trial
from unmask.lab.kit.telling import conclude_bars, conclude_compared, conclude_lost, conclude_table
from unmask.lab.kit.tuning import Marked, Tuning, headlines, probed, tuned
from unmask.lab.pictures import Bars
from unmask.lab.words import Text, both
from unmask.models.bert import Bert
from unmask.nn.batch import Batch

ARMS = {"100/0/0": (1.0, 0.0, 0.0), "80/10/10": (0.8, 0.1, 0.1), "80/0/20": (0.8, 0.0, 0.2), "0/0/100": (0.0, 0.0, 1.0)}
LABELS = {arm: both(arm) for arm in ARMS}
USUAL, RIVALS = "80/10/10", ("100/0/0", "80/0/20")
TASKS = {"probe": Text("probe", "探针"), "tuned": Text("fine-tuned", "微调")}


def trial(run: MlmRun, count: int, seed: int) -> Record:
    """Pre-train, then measure in four ways."""
    return short_trial(run, seed, partial(four_ways, count=count, seed=seed))


def four_ways(model: Bert, count: int, seed: int) -> Record:
    """Loss where [MASK] is seen, copying, a probe, and fine-tuning."""
    at_masks = held_out(model, length=LENGTH, masking=MaskingSettings(mask=1.0, random=0.0, keep=0.0))["loss"]
    learned, asked = (coded(part, count) for part in ("train", "test"))
    return {
        "at_masks": at_masks if math.isfinite(at_masks) else CHANCE,
        "copied": copied(model),
        "probe": probed(model, learned, asked),
        "tuned": tuned(model, learned, asked, Tuning(2), seed),
    }


def coded(part: str, count: int) -> Marked:
    """Headlines as characters of the newspaper's vocabulary."""
    texts, labels = headlines(part, count)
    ids = [[CLS, *daily().ids(text), SEP] for text in texts]
    return Marked(ids, [[0] * len(one) for one in ids], labels)


@torch.inference_mode()
def copied(model: Bert) -> float:
    """The mean probability that a model gives to characters which it sees."""
    found = []
    rng = np.random.default_rng(12345)
    for _ in range(4):
        batch = Batch.of([[CLS, *text.tolist(), SEP] for text in windows(daily().held_out, LENGTH, 64, rng)])
        rows = (batch.ids != CLS) & (batch.ids != SEP)
        shares = model.masked_token_logits(model(batch).sequence[rows]).softmax(-1)
        found.append(shares.gather(1, batch.ids[rows][:, None]).mean())
    return float(torch.stack(found).mean().nan_to_num())


def _trials(plan: Plan) -> list[Trial]:
    count, trials = plan.at(64, 2000), []
    for arm, (mask, random, keep) in ARMS.items():
        run = short_run(plan, masking=MaskingSettings(mask=mask, random=random, keep=keep))
        for seed in range(plan.seeds):
            settings = {"shares": arm, "updates": run.fit.updates, "headlines": count, "seed": seed}
            trials.append(Trial(named(arm, seed), partial(trial, run, count, seed), settings))
    return trials


def conclude_shares(records: Mapping[str, Record]) -> Conclusion:
    """80/10/10 against its two rivals, by probe and after fine-tuning."""
    effects = {
        (task, rival): paired(by_seed(records, USUAL, task), by_seed(records, rival, task))
        for task in TASKS
        for rival in RIVALS
    }
    sides = [sided(effect) for effect in effects.values()]
    above, below = (sides.count(side) for side in (Verdict.SUPPORTED, Verdict.NOT_SUPPORTED))
    if above == len(sides):
        verdict = Verdict.SUPPORTED
    elif not above and not below:
        verdict = Verdict.NOT_VISIBLE
    else:
        verdict = Verdict.NOT_SUPPORTED if not above else Verdict.DEPENDS
    copying = {
        arm: paired(by_seed(records, arm, "copied"), by_seed(records, USUAL, "copied"))
        for arm in ("80/0/20", "0/0/100")
    }
    more = [arm for arm, effect in copying.items() if effect.low > 0]
    told = {key: conclude_compared(effect) for key, effect in effects.items()}
    copies = {arm: conclude_compared(effect) for arm, effect in copying.items()}
    lost = conclude_lost(records)
    says = Text(
        "Accuracy of 80/10/10 on headlines: "
        + "; ".join(f"{TASKS[task].en}, {text.en} than that of {rival}" for (task, rival), text in told.items())
        + f". The probability of a visible character in plain text is {copies['80/0/20'].en} with 80/0/20 and "
        f"{copies['0/0/100'].en} with 0/0/100 than with 80/10/10: copying is learned more by "
        f"{' and '.join(more) or 'neither'}.{lost.en}",
        "80/10/10 在新闻标题上的准确率："
        + "；".join(f"{TASKS[task].zh}，比 {rival} {text.zh}" for (task, rival), text in told.items())
        + f"。未遮盖文本中可见字的概率，与 80/10/10 相比：80/0/20 {copies['80/0/20'].zh}，0/0/100 "
        f"{copies['0/0/100'].zh}；"
        f"更爱照抄的是：{'、'.join(more) or '都不是'}。{lost.zh}",
    )
    pictures = conclude_bars_of(records)
    columns = {
        "probe": Text("probe", "探针"),
        "tuned": Text("fine-tuned", "微调"),
        "at_masks": Text("loss at [MASK]", "[MASK] 处损失"),
        "copied": Text("copying", "照抄"),
    }
    return Conclusion(verdict, says, pictures, conclude_table(records, LABELS, USUAL, columns))


def conclude_bars_of(records: Mapping[str, Record]) -> tuple[Bars, ...]:
    """Probe, fine-tuning and copying."""
    whiskers = Text("whiskers are 95 % intervals over seeds.", "须线为各种子的 95 % 区间。")
    return tuple(
        conclude_bars(
            records,
            LABELS,
            value,
            title,
            unit,
            Text(f"[MASK]/random/kept; {whiskers.en}", f"[MASK]/随机/保留；{whiskers.zh}"),
        )
        for value, title, unit in (
            ("probe", Text("Probe on frozen vectors", "冻结向量上的探针"), Text("accuracy", "准确率")),
            ("tuned", Text("After fine-tuning", "微调之后"), Text("accuracy", "准确率")),
            ("copied", Text("Copying", "照抄程度"), Text("probability of the visible character", "可见字的概率")),
        )
    )


PARTS = (Part("shares", _trials, conclude_shares),)
