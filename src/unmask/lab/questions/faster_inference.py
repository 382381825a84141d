"""Each way to faster inference, on one model: time, bytes, accuracy; and what a softmax of two levels saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.costs import counted, one_thread
from unmask.lab.kit.effects import Effect, named, paired, spread
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.lighter import Headlines, Sizes, Way, accuracies, answers, has_instructions, threads, ways
from unmask.lab.kit.minizh import Tuning, start
from unmask.lab.kit.ratios import conclude_faster, ratio_of
from unmask.lab.kit.shown import conclude_bars, conclude_percent, conclude_points
from unmask.lab.kit.speeds import quartiles, timed
from unmask.lab.kit.telling import conclude_together
from unmask.lab.kit.two_levels import TwoLevels, hidden_rows, mini_zh, one_hidden, rows_at
from unmask.lab.pictures import Bars
from unmask.lab.words import Text
from unmask.nn.batch import Batch

TRIAL, LEVELS, SHARES = "all ways", "two levels", "shares of the forward pass"
WAYS = {
    "base": Text("as it is", "原样"),
    "padded": Text("padded", "带填充"),
    "two threads": Text("two threads", "双线程"),
    "kernels": Text("our kernels", "自带内核"),
    "bf16": Text("bf16", "bf16"),
    "fp16": Text("fp16", "fp16"),
    "int8": Text("int8", "int8"),
    "zeros": Text("weights zeroed", "一半权重置零"),
    "heads": Text("half the heads", "一半注意力头"),
    "neurons": Text("half the neurons", "一半前馈神经元"),
    "layers": Text("2 of 4 layers", "只留 2 层"),
    "student": Text("student", "学生模型"),
    "labels": Text("student, labels", "只用标签的学生"),
}
PARTS_GONE = ("zeros", "heads", "neurons", "layers")
#: What S2 names, and the ways that decide on it.
NAMED = {"fp16": ("fp16",), "pruning": PARTS_GONE, "distillation": ("student",)}
GROUPS, BATCH = 90, 32


def each_way(sizes: Sizes, asked: int, rounds: int, seed: int) -> Record:
    """Accuracy and bytes of every way; with rounds, also its seconds, on the first headlines."""
    found, test = ways(sizes, seed), Headlines.read("test", asked)
    right = accuracies(found, test)
    untimed = {name: way.untimed for name, way in found.items() if way.untimed}
    untimed |= {name: "torch cannot compute it here" for name, share in right.items() if share is None}
    record: Record = {
        "accuracy": right,
        "bytes": {name: way.bytes for name, way in found.items()},
        "untimed": untimed,
        "instructions": {digits: has_instructions(digits) for digits in ("bf16", "fp16")},
    }
    if rounds:
        some = {name: way for name, way in found.items() if name not in untimed and name != "labels"}
        batches = test.batches(4 * BATCH)
        record["headlines"] = sum(map(len, batches))
        with one_thread():
            record["seconds"] = timed({name: partial(_run, way, batches) for name, way in some.items()}, rounds)
    return record


def _run(way: Way, batches: Sequence[Batch]) -> None:
    with threads(way.threads):
        answers(way, batches)


@torch.no_grad()
def two_levels(count: int, rounds: int) -> Record:
    """Multiplications and seconds for so many hidden tokens: of one given token, and of the best of all."""
    flat, rows, targets = hidden_rows(count)
    levels = TwoLevels.random(flat, GROUPS, torch.Generator().manual_seed(0))
    vocab, hidden = flat.weight.shape
    best, looked = levels.best(rows)
    runs = {
        "given, one level": lambda: flat.log_probability(rows, targets),
        "given, two levels": lambda: levels.log_probability(rows, targets),
        "best, one level": lambda: flat.best(rows),
        "best, two levels by a search": lambda: levels.best(rows),
        "best, two levels at once": lambda: levels.best_of_all(rows),
    }
    inside = {"given": float(levels.size_of(targets).double().mean()), "best": float(looked.double().mean())}
    with one_thread():
        found = timed(runs, rounds)
    return {
        "vocab": vocab,
        "hidden": hidden,
        "rows": len(rows),
        "group": levels.size,
        "multiplications": {"one level": vocab * hidden}
        | {what: round((GROUPS + tokens) * hidden, 1) for what, tokens in inside.items()},
        "same": float((best == levels.best_of_all(rows)).double().mean()),
        "seconds": found,
    }


@torch.no_grad()
def shares(rounds: int) -> Record:
    """How much of fill-mask and of a classifier's forward pass is the vocabulary."""
    model, head = mini_zh()
    ids, places, _ = one_hidden(BATCH)
    batch, where = Batch.of(ids), rows_at(ids, places)
    rows = model(batch).sequence[where]
    classifier = start(Tuning(Fit(1), BATCH), 0).eval()
    parts = {
        "encoder": lambda: model(batch),
        "before the vocabulary": lambda: head.dense(rows),
        "vocabulary": lambda: model.masked_token_logits(rows),
        "classifier": lambda: classifier.class_logits(classifier(batch)),
    }
    operations = {name: counted(run) for name, run in parts.items()}
    with one_thread():
        found = timed({name: parts[name] for name in ("encoder", "vocabulary")}, rounds)
    vocabulary = operations["vocabulary"] - operations["before the vocabulary"]
    return {
        "operations": operations["encoder"] + operations["vocabulary"],
        "vocabulary": vocabulary,
        "classifier": operations["classifier"],
        "classifier_vocabulary": 0 if "mlm" not in classifier.heads else vocabulary,
        "seconds": found,
    }


def _way_trials(plan: Plan) -> list[Trial]:
    sizes = Sizes() if plan.size != "small" else Sizes(headlines=64, looked_at=32, epochs=1, student_epochs=1)
    asked, rounds = plan.at(64, 1000, 2000), plan.at(3, 20)
    settings = {"headlines": sizes.headlines, "epochs": sizes.epochs, "asked": asked, "rounds": rounds}
    return [
        # Time does not depend on the seed: the first is enough.
        Trial(named(TRIAL, seed), partial(each_way, sizes, asked, rounds if seed == 0 else 0, seed), settings)
        for seed in range(plan.seeds)
    ]


def _level_trials(plan: Plan) -> list[Trial]:
    rows, rounds = plan.at(64, 1000), plan.at(3, 20)
    return [
        Trial(LEVELS, partial(two_levels, rows, rounds), {"rows": rows, "rounds": rounds}),
        Trial(SHARES, partial(shares, rounds), {"rounds": rounds}),
    ]


def conclude_ways(records: Mapping[str, Record]) -> Conclusion:
    """Is each of the ways that S2 names faster?"""
    first = records[named(TRIAL, 0)]
    ratios = {name: ratio_of(found, first["seconds"]["base"]) for name, found in first["seconds"].items()}
    counts = {name: [way for way in decide if way in ratios] for name, decide in NAMED.items()}
    if not first["instructions"]["fp16"]:
        counts["fp16"] = []
    sides = {
        name: conclude_together([conclude_faster(ratios[way]) for way in decide])
        for name, decide in counts.items()
        if decide
    }
    verdict = conclude_together(list(sides.values()))
    head = {
        Verdict.SUPPORTED: Text("Every way that counts here is faster.", "凡能在此判断的办法都更快。"),
        Verdict.NOT_SUPPORTED: Text("No way that counts here is faster; all take longer.", "能判断的办法都更慢。"),
        Verdict.DEPENDS: Text("Some of S2's ways are faster here, some are not.", "S2 的办法有的更快，有的没有。"),
        Verdict.NOT_VISIBLE: Text("No difference in time can be told.", "用时看不出差别。"),
    }[verdict]
    told = [conclude_named(name, sides.get(name), ratios, first) for name in NAMED]
    gaps = conclude_gaps(records)
    taught = conclude_points(paired(conclude_shares(records, "student"), conclude_shares(records, "labels")))
    lost = [name for name in (*PARTS_GONE, "student") if name in gaps]
    absent = [name for name in WAYS if name in first["untimed"]]
    says = Text(
        f"{head.en} Time beside the model as it is (1 = the same): {' '.join(one.en for one in told)} Accuracy lost or "
        f"gained: {'; '.join(f'{WAYS[name].en} {conclude_points(gaps[name]).en}' for name in lost)}. The teacher's "
        f"probabilities give the student {taught.en} beside labels alone."
        + (
            f" Not available on this machine, or of no use on it: {', '.join(WAYS[name].en for name in absent)}."
            if absent
            else ""
        ),
        f"{head.zh}与原样的用时之比（1 为相同）：{''.join(one.zh for one in told)}准确率的得失："
        f"{'；'.join(f'{WAYS[name].zh} {conclude_points(gaps[name]).zh}' for name in lost)}。"
        f"与只用标签相比，教师的概率使学生模型变化 {taught.zh}。"
        + (f"本机不支持或用了没有好处：{'、'.join(WAYS[name].zh for name in absent)}。" if absent else ""),
    )
    return Conclusion(verdict, says, conclude_pictures(ratios, gaps), conclude_rows(records, ratios, gaps))


def conclude_named(name: str, side: Verdict | None, ratios: Mapping[str, Effect], first: Record) -> Text:
    """A sentence on one of S2's ways."""
    shown = {way: f"{ratios[way].mean:.2f} ({ratios[way].low:.2f} – {ratios[way].high:.2f})" for way in ratios}
    here = [way for way in NAMED[name] if way in ratios]
    title = {
        "fp16": Text("fp16", "fp16 "),
        "pruning": Text("Pruning", "剪枝"),
        "distillation": Text("Distillation", "蒸馏"),
    }
    if not here:
        return Text(f"{title[name].en}: not available here.", f"{title[name].zh}：本机不支持。")
    if name == "fp16" and side is None:
        return Text(
            f"fp16 takes {shown['fp16']}, but the processor has no instructions for it, which S2 asks for, and it "
            "does not count.",
            f"fp16 为 {shown['fp16']}，但处理器没有 S2 所要求的指令，不计入判断。",
        )
    word = {
        Verdict.SUPPORTED: Text("is faster", "更快"),
        Verdict.NOT_SUPPORTED: Text("is slower", "更慢"),
        Verdict.DEPENDS: Text("is faster in some ways only", "只有部分做法更快"),
        Verdict.NOT_VISIBLE: Text("is neither faster nor slower", "看不出快慢"),
    }[side or Verdict.NOT_VISIBLE]
    english = "; ".join(f"{WAYS[way].en} {shown[way]}" for way in here)
    chinese = "；".join(f"{WAYS[way].zh} {shown[way]}" for way in here)
    return Text(f"{title[name].en} {word.en}: {english}.", f"{title[name].zh}{word.zh}：{chinese}。")


def conclude_shares(records: Mapping[str, Record], way: str) -> list[float]:
    """Accuracies of a way, in the order of the seeds; none where it could not be computed."""
    found = [records[named(TRIAL, seed)]["accuracy"].get(way) for seed in range(len(records))]
    return [] if None in found else [float(one) for one in found]


def conclude_gaps(records: Mapping[str, Record]) -> dict[str, Effect]:
    """How much more is right than with the model as it is, seed by seed."""
    base = conclude_shares(records, "base")
    some = {way: conclude_shares(records, way) for way in WAYS if way != "base"}
    return {way: paired(found, base) for way, found in some.items() if found}


def conclude_rows(records: Mapping[str, Record], ratios: Mapping[str, Effect], gaps: Mapping[str, Effect]) -> Table:
    """All figures of all ways."""
    first = records[named(TRIAL, 0)]
    columns = (
        Text("way", "办法"),
        Text("time, × base (95 %)", "用时，× 原样（95 %）"),
        Text("ms a headline", "每条毫秒"),
        Text("MB on disk", "磁盘 MB"),
        Text("accuracy", "准确率"),
        Text("− that of the base, points (95 %)", "− 原样，百分点（95 %）"),
    )
    rows = []
    for way, label in WAYS.items():
        time = quartiles(first["seconds"][way], first["headlines"] / 1000) if way in ratios else None
        found = conclude_shares(records, way)
        gap = Effect(*(100 * value for value in gaps[way])).signed(1) if way in gaps else "–"
        rows.append(
            (
                label.en if label.en == label.zh else f"{label.en} · {label.zh}",
                "–" if way == "base" or way not in ratios else str(ratios[way]),
                "–" if time is None else f"{time.median:.2f}",
                f"{first['bytes'][way] / 1e6:.1f}",
                conclude_percent(spread(found)) if found else "–",
                gap,
            )
        )
    return Table(columns, tuple(rows))


def conclude_pictures(ratios: Mapping[str, Effect], gaps: Mapping[str, Effect]) -> tuple[Bars, ...]:
    """Time of what is run otherwise, time of what is smaller, and what the smaller ones get right."""
    time = Text("time, × that of the model as it is", "用时，× 原样")
    reading = Text(
        "Below 1 is faster; whiskers are 95 % intervals of the rounds.", "低于 1 为更快；须线为各轮的 95 % 区间。"
    )

    def bars(title: Text, y: Text, names: Sequence[str], values: Mapping[str, Effect], what: Text) -> Bars:
        return conclude_bars(title, y, [(WAYS[name], values[name]) for name in names if name in values], what)

    otherwise = ("padded", "two threads", "kernels", "bf16", "fp16", "int8")
    smaller = (*PARTS_GONE, "student")
    points = {name: Effect(*(100 * value for value in gap)) for name, gap in gaps.items()}
    return (
        bars(Text("The same model, run otherwise", "同一个模型，换一种运行方式"), time, otherwise, ratios, reading),
        bars(Text("Fewer parts", "去掉一部分"), time, smaller, ratios, reading),
        bars(
            Text("What it costs", "代价"),
            Text("accuracy − that of the model as it is, points", "准确率 − 原样，百分点"),
            (*smaller, "labels"),
            points,
            Text(
                "Below 0 is worse; whiskers are 95 % intervals over seeds.", "低于 0 为更差；须线为各种子的 95 % 区间。"
            ),
        ),
    )


def conclude_levels(records: Mapping[str, Record]) -> Conclusion:
    """Are two levels faster for a given token, and for the best of all?"""
    found, beside = records[LEVELS], records[SHARES]
    seconds, many = found["seconds"], found["multiplications"]
    given = ratio_of(seconds["given, two levels"], seconds["given, one level"])
    by = {
        name: ratio_of(seconds[f"best, two levels {name}"], seconds["best, one level"])
        for name in ("by a search", "at once")
    }
    quicker = min(by, key=lambda name: by[name].mean)
    verdict = conclude_faster(given)
    if verdict == Verdict.SUPPORTED and conclude_faster(by[quicker]) != Verdict.SUPPORTED:
        verdict = Verdict.DEPENDS
    head = {
        Verdict.SUPPORTED: Text("Two levels are faster for both.", "两级 softmax 在两种用途上都更快。"),
        Verdict.NOT_SUPPORTED: Text("Two levels are slower even for one given token.", "求一个给定词，两级也更慢。"),
        Verdict.DEPENDS: Text(
            "Two levels are faster for the probability of one given token, not for the best token of all.",
            "求一个给定词的概率时两级更快，找概率最大的词时没有更快。",
        ),
        Verdict.NOT_VISIBLE: Text("No difference can be told for one given token.", "求一个给定词，看不出快慢。"),
    }[verdict]
    share = beside["vocabulary"] / beside["operations"]
    parts = {name: quartiles(one).median for name, one in beside["seconds"].items()}
    clock = parts["vocabulary"] / sum(parts.values())
    whole, fewer, search = (f"{many[name]:,.0f}" for name in ("one level", "given", "best"))
    way = Text(quicker, {"by a search": "逐组搜索", "at once": "一次全算"}[quicker])
    none = beside["classifier_vocabulary"] / beside["classifier"]
    says = Text(
        f"{head.en} Multiplications a row: {whole} with one level; with two {fewer} for a given token, {search} to "
        f"find the best (groups opened one after another; {found['same']:.0%} of the answers are those of all groups "
        f"at once). Time of two levels, × one: {given} for a given token; {by[quicker]} for the best ({way.en}, the "
        f"quicker of two ways). The vocabulary is {share:.0%} of the multiplications of filling one mask a headline "
        f"and {clock:.0%} of the time; of a ten-class classifier it is {none:.0%}.",
        f"{head.zh}每行乘法次数：一级 {whole}；两级求给定词 {fewer}，找最大的词 {search}"
        f"（按概率逐组打开，{found['same']:.0%} 的答案与全部打开相同）。两级用时与一级之比：求给定词 {given}；"
        f"找最大的词 {by[quicker]}（{way.zh}，取两种做法中较快的）。每条标题填一个空时，"
        f"词表占乘法的 {share:.0%}、用时的 {clock:.0%}；十分类任务中占 {none:.0%}。",
    )
    return Conclusion(verdict, says, (conclude_level_bars(given, by),))


def conclude_level_bars(given: Effect, by: Mapping[str, Effect]) -> Bars:
    """Time of two levels, for all that they are asked."""
    arms = [
        (Text("a given token", "给定词"), given),
        (Text("the best, by a search", "最大的词，逐组搜索"), by["by a search"]),
        (Text("the best, all at once", "最大的词，一次全算"), by["at once"]),
    ]
    return conclude_bars(
        Text("A softmax of two levels", "两级 softmax"),
        Text("time, × that of one level", "用时，× 一级"),
        arms,
        Text("Below 1 is faster; whiskers are 95 % intervals.", "低于 1 为更快；须线为 95 % 区间。"),
    )


PARTS = (
    Part("each-way", _way_trials, conclude_ways),
    Part("hierarchical-softmax", _level_trials, conclude_levels),
)
