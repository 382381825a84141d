"""Next-sentence prediction: what tasks gain from it, and how much of it is topic."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.data.masking import MaskVocabulary, mask_tokens
from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.daily import MASK, SPECIAL, VOCAB, daily
from unmask.lab.kit.effects import Effect, by_seed, named, paired, sided
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.looking import as_text, bert_of, bundle_of
from unmask.lab.kit.mlm import MEASURED, settings_of
from unmask.lab.kit.neighbours import HALF, Articles, Pair, half_strange, half_swapped, joined, true_pairs
from unmask.lab.kit.short_mlm import SWIFT, measured
from unmask.lab.kit.telling import conclude_bars, conclude_compared, conclude_lost, conclude_table
from unmask.lab.kit.tuning import Marked, Tuning, headlines, tuned
from unmask.lab.pictures import Bars, Point, Series
from unmask.lab.words import Text
from unmask.metrics.intervals import share_interval
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.init import build_model
from unmask.nn.batch import Batch

ARMS = {
    "MLM": Text("MLM", "MLM"),
    "MLM + NSP": Text("MLM + NSP", "MLM + NSP"),
    "MLM + SOP": Text("MLM + SOP", "MLM + SOP"),
}
HEADS = {"MLM": None, "MLM + NSP": "nsp", "MLM + SOP": "sop"}
TASKS = {"pairs": Text("pairs", "句子对"), "headlines": Text("headlines", "新闻标题")}
WEIGHT, POINT, CLAIMED = 0.3, 0.01, 0.97


def pretrained(arm: str, fitting: Fit, batch: int, seed: int) -> tuple[Bert, list[float]]:
    """A small model that read pairs, and its losses."""
    seeded(seed)
    kinds = ["mlm"] if HEADS[arm] is None else ["mlm", str(HEADS[arm])]
    model = build_model(settings_of({**SWIFT, "heads": [{"kind": kind} for kind in kinds]}), seed=seed)
    assert isinstance(model, Bert)
    rng = np.random.default_rng(seed)

    def loss(_: int) -> Tensor:
        pairs, labels = drawn(arm, daily().learned, batch, rng)
        hidden, rows, targets = masked(pairs, rng)
        encoded = model(hidden)
        found = model.masked_token_loss(encoded.sequence[rows], targets) / len(targets)
        if HEADS[arm] is None:
            return found
        asked = model.next_sentence_logits if HEADS[arm] == "nsp" else model.sentence_order_logits
        return found + WEIGHT * F.cross_entropy(asked(encoded), torch.tensor(labels))

    return model, fit(model, loss, fitting)


def drawn(arm: str, articles: Articles, count: int, rng: np.random.Generator) -> tuple[list[Pair], list[int]]:
    """Pairs as an arm reads them."""
    if arm == "MLM":
        return true_pairs(articles, count, rng), [0] * count
    return (half_strange if arm == "MLM + NSP" else half_swapped)(articles, count, rng)


def masked(pairs: list[Pair], rng: np.random.Generator) -> tuple[Batch, Tensor, Tensor]:
    """Pairs with 15 % of their characters hidden: the batch, the rows of these, and what they were."""
    vocabulary = MaskVocabulary.of(VOCAB, MASK, range(SPECIAL))
    sequences, segments, rows, targets, first = [], [], [], [], 0
    for pair in pairs:
        ids, sides = joined(pair)
        found = mask_tokens(ids, ids >= SPECIAL, np.ones(len(ids), dtype=bool), vocabulary, MEASURED, rng)
        sequences.append(found.ids.tolist())
        segments.append(sides.tolist())
        rows.append(found.places + first)
        targets.append(found.targets)
        first += len(ids)
    batch = Batch.of(sequences, segments)
    return batch, torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(targets))


@cache
def paragraphs(held_out: bool) -> tuple[tuple[str, ...], ...]:
    """Articles with two or more long paragraphs, apart as the newspaper's articles are: one in twenty held out."""
    text = (fetch("people-daily") / "text.txt").read_text(encoding="utf-8")
    articles = [article.split("\n") for article in text.split("\n\n") if len(article.replace("\n", "")) > 40]
    long = [
        tuple(one for one in article if len(one) >= 2 * HALF)
        for n, article in enumerate(articles)
        if (n % 20 == 0) == held_out
    ]
    return tuple(article for article in long if len(article) > 1)


def pair_task(count: int, held_out: bool) -> Marked:
    """Is the second half that of this paragraph, or of another paragraph of the same article?"""
    rng, articles = np.random.default_rng(777 + held_out), paragraphs(held_out)
    ids, segments, labels = [], [], []
    for number in rng.integers(len(articles), size=count):
        own, other = (articles[number][n] for n in rng.permutation(len(articles[number]))[:2])
        strange = int(rng.random() < 0.5)
        halves = own[:HALF], (other if strange else own)[HALF : 2 * HALF]
        tokens, sides = joined((np.array(daily().ids(halves[0])), np.array(daily().ids(halves[1]))))
        ids.append(tokens.tolist())
        segments.append(sides.tolist())
        labels.append(strange)
    return Marked(ids, segments, labels)


def headline_task(part: str, count: int) -> Marked:
    """Headlines as characters."""
    texts, labels = headlines(part, count)
    ids = [joined((np.array(daily().ids(text)), np.array([], dtype=np.int64)))[0][:-1].tolist() for text in texts]
    return Marked(ids, [[0] * len(one) for one in ids], labels)


def objective(arm: str, sizes: Mapping[str, int], seed: int) -> Record:
    """Pre-train, then fine-tune for both tasks."""
    model, losses = pretrained(arm, Fit(sizes["updates"], 2e-3), sizes["batch"], seed)
    pairs = pair_task(sizes["pairs"], False), pair_task(sizes["pairs"] // 4, True)
    titles = headline_task("train", sizes["headlines"]), headline_task("test", sizes["headlines"])
    found = measured(model, losses)
    return {
        **found,
        "loss": found["score"],
        "pairs": tuned(model, *pairs, Tuning(2, pooling="pooler"), seed),
        "headlines": tuned(model, *titles, Tuning(2, pooling="pooler"), seed),
    }


@torch.inference_mode()
def nsp_accuracy(count: int) -> Record:
    """mini-zh on pairs it never saw, and a judge that counts shared characters."""
    bundle, model = bundle_of("mini-zh"), bert_of("mini-zh")
    pairs, labels = half_strange(daily().held_out, count, np.random.default_rng(1))
    right = 0
    for start in range(0, count, 50):
        texts = [(as_text(a), as_text(b)) for a, b in pairs[start : start + 50]]
        logits = model.next_sentence_logits(model(bundle.batch([a for a, _ in texts], [b for _, b in texts])))
        right += int((logits.argmax(-1) == torch.tensor(labels[start : start + 50])).sum())
    others, truth = half_strange(daily().held_out, count, np.random.default_rng(2))
    shared = np.array([common(pair) for pair in others])
    least = max(range(20), key=lambda number: int(((shared < number) == np.array(truth)).sum()))
    judged = sum((common(pair) < least) == label for pair, label in zip(pairs, labels, strict=True))
    return {"pairs": count, "right": right, "judged": int(judged), "threshold": least, "false": sum(labels)}


def common(pair: Pair) -> int:
    """How many characters both texts have."""
    return len(set(pair[0].tolist()) & set(pair[1].tolist()))


def _objective_trials(plan: Plan) -> list[Trial]:
    sizes = {
        "updates": plan.at(4, 700),
        "batch": plan.at(8, 32),
        "pairs": plan.at(64, 4000),
        "headlines": plan.at(64, 2000),
    }
    return [
        Trial(named(arm, seed), partial(objective, arm, sizes, seed), {"arm": arm, **sizes, "seed": seed})
        for arm in ARMS
        for seed in range(plan.seeds)
    ]


def _accuracy_trials(plan: Plan) -> list[Trial]:
    count = plan.at(50, 2000)
    return [Trial("mini-zh", partial(nsp_accuracy, count), {"pairs": count})]


def conclude_objectives(records: Mapping[str, Record]) -> Conclusion:
    """Not needed if it brings less than one point on both tasks."""
    gains: dict[str, dict[str, Effect]] = {
        arm: {task: paired(by_seed(records, arm, task), by_seed(records, "MLM", task)) for task in TASKS}
        for arm in ("MLM + NSP", "MLM + SOP")
    }
    sides = [  # supported here: it gains more than a point; a task that nobody learned says nothing
        sided(gain, POINT) if conclude_learned(records, task) else Verdict.NOT_VISIBLE
        for task, gain in gains["MLM + NSP"].items()
    ]
    if Verdict.SUPPORTED in sides:
        verdict = Verdict.NOT_SUPPORTED
    elif set(sides) == {Verdict.NOT_SUPPORTED}:
        verdict = Verdict.SUPPORTED
    else:
        verdict = Verdict.NOT_VISIBLE if set(sides) == {Verdict.NOT_VISIBLE} else Verdict.DEPENDS
    told = {arm: {task: conclude_compared(gain) for task, gain in found.items()} for arm, found in gains.items()}
    lost = conclude_lost(records)
    says = Text(
        " ".join(
            f"With {arm.removeprefix('MLM + ')} added to MLM, accuracy is {found['pairs'].en} on pairs and "
            f"{found['headlines'].en} on headlines."
            for arm, found in told.items()
        )
        + f" Figures are shares of right answers; the margin is {POINT:.2f}.{lost.en}",
        "".join(
            f"在 MLM 之外加上 {arm.removeprefix('MLM + ')}，句子对的准确率{found['pairs'].zh}，"
            f"新闻标题的准确率{found['headlines'].zh}。"
            for arm, found in told.items()
        )
        + f"数值为正确率；界限为 {POINT:.2f}。{lost.zh}",
    )
    pictures = tuple(
        conclude_bars(
            records,
            ARMS,
            task,
            Text(f"Fine-tuned on {label.en}", f"在{label.zh}上微调"),
            Text("accuracy", "准确率"),
            Text("Higher is better; whiskers are 95 % intervals over seeds.", "越高越好；须线为各种子的 95 % 区间。"),
        )
        for task, label in TASKS.items()
    )
    columns = {
        "pairs": Text("accuracy, pairs", "准确率，句子对"),
        "headlines": Text("accuracy, headlines", "准确率，标题"),
        "loss": Text("held-out MLM loss", "留出集 MLM 损失"),
    }
    return Conclusion(verdict, says, pictures, conclude_table(records, ARMS, "MLM", columns))


def conclude_learned(records: Mapping[str, Record], task: str) -> bool:
    """Whether a task is above chance, with the whole interval, in an arm that is compared."""
    chance = {"pairs": 1 / 2, "headlines": 1 / 10}[task]
    arms = [by_seed(records, arm, task) for arm in ("MLM", "MLM + NSP")]
    return any(paired(found, [chance] * len(found)).low > 0 for found in arms)


def conclude_accuracy(records: Mapping[str, Record]) -> Conclusion:
    """97 % or not, and how far topic alone goes."""
    one = records["mini-zh"]
    model, judge = (share_interval(one[who], one["pairs"]) for who in ("right", "judged"))
    # A small model that falls short says nothing of BERT, of which 97 % is claimed.
    verdict = Verdict.SUPPORTED if model.high >= CLAIMED else Verdict.NOT_VISIBLE
    share = Text("and mini-zh is no better than chance", "而 mini-zh 并不比随机好")
    if model.value > 0.5:
        part = (judge.value - 0.5) / (model.value - 0.5)
        share = Text(f"{part:.0%} of the way from chance to mini-zh", f"从随机到 mini-zh 之间路程的 {part:.0%}")
    says = Text(
        f"mini-zh answers {model.value:.1%} of {one['pairs']:,} held-out pairs rightly ({model.low:.1%} – "
        f"{model.high:.1%}): the "
        f"97–98 % of S3 are {'reached' if verdict == Verdict.SUPPORTED else 'not reached'} by this small model. "
        "Counting shared "
        f"characters (at least {one['threshold']} for a true pair) gives {judge.value:.1%} ({judge.low:.1%} – "
        f"{judge.high:.1%}), "
        f"{share.en}.",
        f"mini-zh 在 {one['pairs']:,} 个留出句对上的准确率为 {model.value:.1%}（{model.low:.1%} – {model.high:.1%}）"
        "：这个小模型"
        f"{'达到' if verdict == Verdict.SUPPORTED else '没有达到'} S3 所说的 97%–98%。只数共有的字（至少 "
        f"{one['threshold']} 个判为真）可得 "
        f"{judge.value:.1%}（{judge.low:.1%} – {judge.high:.1%}），{share.zh}。",
    )
    points = tuple(Point(n, found.value, found.low, found.high) for n, found in enumerate((model, judge)))
    names = (Text("mini-zh", "mini-zh"), Text("shared characters", "数共有的字"))
    picture = Bars(
        Text("True or strange second text", "第二段是真是假"),
        Text("accuracy", "准确率"),
        names,
        (Series(Text("accuracy", "准确率"), points),),
        Text("Chance is 0.5; whiskers are 95 % intervals.", "随机猜测为 0.5；须线为 95 % 区间。"),
    )
    return Conclusion(verdict, says, (picture,))


PARTS = (
    Part("objectives", _objective_trials, conclude_objectives),
    Part("nsp-accuracy", _accuracy_trials, conclude_accuracy),
)
