"""Texts beyond the limit: what each way keeps and costs, and how well long reviews are judged with it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.classify import Examples, batches_of, classifier_settings
from unmask.lab.kit.effects import Effect, by_seed, named, paired, sided, spread
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.labelled import CLS, PAD, labelled
from unmask.lab.kit.shown import conclude_percent, conclude_points, conclude_shares
from unmask.lab.pictures import Lines, Point, Series
from unmask.lab.words import Text, both
from unmask.longtext.settings import LongTextSettings, Strategy
from unmask.longtext.windows import pieces
from unmask.models.bert import Bert
from unmask.models.init import build_model, start_as_sinusoids
from unmask.nn.batch import Batch
from unmask.nn.windows import Join, Windows

LENGTHS = (510, 511, 800, 801, 2000, 5000)
STRATEGIES: tuple[Strategy, ...] = ("head", "tail", "head_tail", "windows")
LIMIT, ROOM = 512, 510
#: In the ablation the model reads so many tokens at once, of which two are special.
AT_ONCE, SEP = 64, PAD  # rows are ragged, so nothing is ever padded and the id is free
ARMS: dict[str, tuple[Strategy, str]] = {
    "head": ("head", "mean"),
    "tail": ("tail", "mean"),
    "head + tail": ("head_tail", "mean"),
    "windows, mean": ("windows", "mean"),
    "windows, max": ("windows", "max"),
    "windows, attention": ("windows", "attention"),
}
#: Tokens of a review: short, middle, long.
GROUPS = {"63–97": (63, 97), "98–200": (98, 200), "201–": (201, 10**9)}
MARGIN = 0.01


def kept(strategy: Strategy) -> Record:
    """Which tokens are read of texts of several lengths, in how many passes, at what cost."""
    settings, found = LongTextSettings(strategy=strategy), {}
    for length in LENGTHS:
        windows = pieces(length, ROOM, settings)
        seen = {token for window in windows for start, end in window.ranges for token in range(start, end)}
        found[str(length)] = {
            "windows": [[list(span) for span in window.ranges] for window in windows],
            "kept": len(seen),
            "passes": len(windows),
            "products": sum((len(window) + LIMIT - ROOM) ** 2 for window in windows),
        }
    return found


def windows_of(sequence: list[int], strategy: Strategy) -> list[list[int]]:
    """A review, which begins with [CLS], in the windows that are read."""
    content = sequence[1:]
    found = pieces(len(content), AT_ONCE - 2, LongTextSettings(strategy=strategy))
    return [[CLS, *(token for start, end in one.ranges for token in content[start:end]), SEP] for one in found]


def long_reviews(part: str) -> Examples:
    """The reviews that do not fit, whole."""
    found: Examples = getattr(labelled("zh-reviews", length=10**6), part)
    return found.some([number for number, one in enumerate(found.sequences) if len(one) - 1 > AT_ONCE - 2])


def logits(model: Bert, examples: Examples, strategy: Strategy, join: Join) -> Tensor:
    """(B, 2) from the windows of each review."""
    windows = [windows_of(sequence, strategy) for sequence in examples.sequences]
    rows = model.class_rows(model(Batch.of([one for text in windows for one in text])))
    return model.joined_class_logits(rows, Windows(tuple(map(len, windows)), join))


def judged(arm: str, texts: int, tests: int, seed: int) -> Record:
    """Train on long reviews, and judge others."""
    strategy, how = ARMS[arm]
    join: Join = "max" if how == "max" else "mean"
    train, test = long_reviews("train"), long_reviews("test")
    train, test = train.some(list(range(min(texts, len(train))))), test.some(list(range(min(tests, len(test)))))
    vocab = labelled("zh-reviews", length=10**6).vocab
    head = {"kind": "classify", "labels": ["0", "1"], "pooling": "cls", "dropout": 0.0}
    changes = {"max_length": AT_ONCE, "heads": [{**head, "window_attention": how == "attention"}]}
    generator, began = seeded(seed), time.perf_counter()
    model, draw = build_model(classifier_settings(vocab, 2, changes), seed=seed), batches_of(train, 32)
    assert isinstance(model, Bert)
    start_as_sinusoids(model)

    def loss(number: int) -> Tensor:
        some = draw(number, generator)
        return F.cross_entropy(logits(model, some, strategy, join), torch.tensor(some.labels))

    fit(model, loss, Fit(3 * len(train) // 32))
    right = []
    with torch.inference_mode():
        for first in range(0, len(test), 64):
            some = test.some(list(range(first, min(first + 64, len(test)))))
            right += (logits(model, some, strategy, join).argmax(-1) == torch.tensor(some.labels)).tolist()
    seconds, count = time.perf_counter() - began, sum(len(windows_of(one, strategy)) for one in test.sequences)
    record: Record = {"accuracy": sum(right) / len(right), "seconds": seconds, "windows": count / len(test)}
    for name, (low, high) in GROUPS.items():
        group = [yes for yes, one in zip(right, test.sequences, strict=True) if low <= len(one) - 1 <= high]
        record[name] = sum(group) / max(1, len(group))
        record[f"texts of {name}"] = len(group)
    return record


def _kept_trials(plan: Plan) -> list[Trial]:
    return [Trial(strategy, partial(kept, strategy)) for strategy in STRATEGIES]


def _review_trials(plan: Plan) -> list[Trial]:
    texts, tests = plan.at(64, 3000), plan.at(100, 2000)
    return [
        Trial(named(arm, seed), partial(judged, arm, texts, tests, seed), {"texts": texts})
        for seed in range(plan.seeds)
        for arm in ARMS
    ]


def conclude_kept(records: Mapping[str, Record]) -> Conclusion:
    """S3's arithmetic, by the token numbers."""
    cuts, windows = [records[name] for name in STRATEGIES[:3]], records["windows"]
    both_ends = records["head_tail"]
    parts = {n: [end - start for start, end in both_ends[str(n)]["windows"][0]] for n in (800, 801)}
    overlaps = [
        before[-1][1] - after[0][0]
        for one in windows.values()
        for before, after in zip(one["windows"], one["windows"][1:], strict=False)
    ]
    checks = {
        "510 kept": all(one[str(n)]["kept"] == ROOM for one in cuts for n in LENGTHS),
        "128 + 382 up to 800": parts[800] == [128, 382] and both_ends["511"]["windows"][0][0] == [0, 128],
        "256 + 254 beyond": parts[801] == [256, 254] and both_ends["5000"]["windows"][0][0] == [0, 256],
        "windows lose none": all(windows[str(n)]["kept"] == n for n in LENGTHS) and min(overlaps) >= 128,
        "510 left alone": all(one["510"]["windows"] == [[[0, 510]]] for one in records.values()),
    }
    wrong = [name for name, held in checks.items() if not held]
    verdict = Verdict.NOT_SUPPORTED if wrong else Verdict.SUPPORTED
    far, whole = windows["5000"], (5000 + 2) ** 2
    head = (
        Text(f"The arithmetic fails at: {', '.join(wrong)}.", f"算法有误：{'，'.join(wrong)}。")
        if wrong
        else Text(
            "The arithmetic holds: every cut keeps 510 tokens, the rule changes after 800, windows lose none.",
            "算法成立：每种截断都恰好保留 510 个词，规则在 800 与 801 之间切换，窗口不丢词。",
        )
    )
    says = Text(
        f"{head.en} Of a text of 5,000 tokens a cut loses {5000 - cuts[0]['5000']['kept']:,}; windows read all of it "
        f"in {far['passes']} passes and {far['products']:,} token–token products, against {whole:,} if one window "
        f"held everything.",
        f"{head.zh}5,000 词的文本，截断丢掉 {5000 - cuts[0]['5000']['kept']:,} 个词；窗口法用 {far['passes']} 遍读完，"
        f"共 {far['products']:,} 个词对，而把全文放进一个窗口要 {whole:,} 个。",
    )
    columns = [both("n"), Text("way", "方式"), Text("tokens read", "读到的词"), Text("lost", "丢失")]
    columns += [Text("passes", "遍数"), Text("products", "词对")]
    rows = tuple(conclude_row(n, name, records[name][str(n)]) for n in LENGTHS for name in STRATEGIES)
    return Conclusion(verdict, says, (conclude_costs(records),), Table(tuple(columns), rows))


def conclude_costs(records: Mapping[str, Record]) -> Lines:
    """What each way costs, over the length."""
    windows = records["windows"]
    names = [
        (Text("a cut", "截断"), [(n, records["head"][str(n)]["products"]) for n in LENGTHS]),
        (Text("windows", "窗口"), [(n, windows[str(n)]["products"]) for n in LENGTHS]),
        (Text("all at once", "一次读完"), [(n, (n + 2) ** 2) for n in LENGTHS]),
    ]
    return Lines(
        Text("What reading costs", "读一遍的代价"),
        Text("tokens of the text", "文本词数"),
        Text("token–token products a layer", "每层的词对数"),
        tuple(Series(name, tuple(Point(*one) for one in points)) for name, points in names),
        Text(
            "Windows grow in proportion to the length, one large window with its square; a cut costs the same always.",
            "窗口法与长度成正比，单个大窗口与长度的平方成正比，截断的代价不变。",
        ),
        log_x=True,
        log_y=True,
    )


def conclude_row(length: int, strategy: str, one: Record) -> tuple[str, ...]:
    """A row of the table, ranges as they are counted by people: from 1."""
    spans = [f"{start + 1}–{end}" for window in one["windows"] for start, end in window]
    shown = spans if len(spans) <= 4 else [*spans[:2], "…", spans[-1]]
    lost, passes, products = length - one["kept"], one["passes"], one["products"]
    return f"{length:,}", strategy, ", ".join(shown), f"{lost:,}", str(passes), f"{products:,}"


def conclude_verdict(effect: Effect) -> Verdict:
    """On the claim that head and tail will do, from how much better windows are."""
    if effect.high < MARGIN:
        return Verdict.SUPPORTED
    return Verdict.NOT_SUPPORTED if effect.low > 0 and effect.mean > MARGIN else Verdict.NOT_VISIBLE


def conclude_reviews(records: Mapping[str, Record]) -> Conclusion:
    """Windows against head and tail; the order of head and tail is a property of the reviews."""
    found = {arm: by_seed(records, arm, "accuracy") for arm in ARMS}
    effect = paired(found["windows, mean"], found["head + tail"])
    by_group = {
        name: paired(by_seed(records, "windows, mean", name), by_seed(records, "head + tail", name)) for name in GROUPS
    }
    verdict, groups = conclude_verdict(effect), {conclude_verdict(one) for one in by_group.values()}
    if {Verdict.SUPPORTED, Verdict.NOT_SUPPORTED} <= groups:
        verdict = Verdict.DEPENDS
    head = {
        Verdict.SUPPORTED: Text("Head and tail will do", "头尾截断就够用"),
        Verdict.NOT_SUPPORTED: Text("Reading everything is better", "读完全文更好"),
        Verdict.DEPENDS: Text("It depends on the length of the text", "取决于文本长度"),
    }.get(verdict, Text("No verdict at this scale", "此规模下看不出"))
    over_head, over_tail = paired(found["head + tail"], found["head"]), paired(found["head + tail"], found["tail"])
    place = {
        Verdict.SUPPORTED: Text("these reviews say more at the end", "这批评论结尾的信息更多"),
        Verdict.NOT_SUPPORTED: Text("these reviews say more at the beginning", "这批评论开头的信息更多"),
    }.get(
        sided(paired(found["tail"], found["head"])),
        Text("neither end of these reviews visibly says more", "看不出这批评论哪一头信息更多"),
    )
    seconds, windows = (by_seed(records, "windows, mean", name) for name in ("seconds", "windows"))
    dearer = spread(a / b for a, b in zip(seconds, by_seed(records, "head + tail", "seconds"), strict=True)).mean
    by_length = [f"{name}: {conclude_points(one).en}" for name, one in by_group.items()]
    chinese = [f"{name}：{conclude_points(one).zh}" for name, one in by_group.items()]
    says = Text(
        f"{head.en}: windows joined by their mean minus head + tail is {conclude_points(effect).en} (by tokens: "
        f"{'; '.join(by_length)}), with {spread(windows).mean:.1f} windows a text and {dearer:.1f} times the time. "
        f"Head + tail minus head is {conclude_points(over_head).en}, minus tail {conclude_points(over_tail).en}: "
        f"{place.en}.",
        f"{head.zh}：窗口（平均）减头尾为{conclude_points(effect).zh}（按词数，{'；'.join(chinese)}），"
        f"平均每条 {spread(windows).mean:.1f} 个窗口，用时 {dearer:.1f} 倍。"
        f"头尾减头为{conclude_points(over_head).zh}，头尾减尾为{conclude_points(over_tail).zh}：{place.zh}。",
    )
    chinese_arms = ("头", "尾", "头 + 尾", "窗口，平均", "窗口，最大", "窗口，注意力")
    arms = [(Text(arm, zh), spread(found[arm])) for arm, zh in zip(ARMS, chinese_arms, strict=True)]
    picture = conclude_shares(
        Text("Long reviews", "长评论"),
        Text("accuracy, %", "准确率，%"),
        arms,
        Text("Two classes; 64 tokens are read at once.", "两类；一次读 64 个词。"),
    )
    columns = (Text("way", "方式"), Text("accuracy", "准确率"), *(both(name) for name in GROUPS))
    rows = tuple(
        (arm, *(conclude_percent(spread(by_seed(records, arm, name))) for name in ("accuracy", *GROUPS)))
        for arm in ARMS
    )
    return Conclusion(verdict, says, (picture,), Table(columns, rows))


PARTS = (
    Part("what-is-kept", _kept_trials, conclude_kept),
    Part("long-reviews", _review_trials, conclude_reviews),
)
