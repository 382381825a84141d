"""Invented evaluations of every kind of task."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from unmask.data.examples import Entity
from unmask.report.outcome import (
    DataFacts,
    Evaluation,
    LabelScore,
    ModelFacts,
    QuestionOutcome,
    Score,
    TaggedOutcome,
    TextOutcome,
)

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&{{ 7*7 }}{% raw %}"
WORDS = "a film the plot of acting warm slow charming dull story scenes mostly never quite and but its music"
TOPICS = [
    "体育",
    "财经",
    "房产",
    "家居",
    "教育",
    "科技",
    "时尚",
    "时政",
    "游戏",
    "娱乐",
    "军事",
    "汽车",
    "旅游",
    "国际",
    "农业",
]
HAN = "国家经济发展研究大学北京上海城市新闻公司市场电影球队比赛教育技术手机汽车旅游农业军事美国日本"


def curve(updates: int, score: str = "accuracy", start: float = 0.69, end: float = 0.12) -> tuple[dict[str, Any], ...]:
    generator = np.random.default_rng(3)
    found: list[dict[str, Any]] = []
    for update in range(10, updates + 1, 10):
        done = update / updates
        level = end + (start - end) * math.exp(-5 * done)
        loss = level * float(generator.lognormal(0, 0.25))
        rate = 2e-5 * min(done / 0.1, (1 - done) / 0.9)
        found.append({"update": update, "losses": {"loss": loss}, "gradient_norm": 1.0, "learning_rate": rate})
        if update % (updates // 10) == 0:
            value = 0.923 - 0.4 * math.exp(-6 * done) - 0.004 * done
            seen = {"loss": level + 0.1 + 0.1 * done, score: value, "macro_f1": value - 0.015}
            found.append({"update": update, "evaluation": seen})
    return tuple(found)


def english(generator: np.random.Generator, length: int) -> str:
    return " ".join(generator.choice(WORDS.split(), length)) + "."


def chinese(generator: np.random.Generator, length: int) -> str:
    return "".join(generator.choice(list(HAN), length)) + "。"


def classified(labels: list[str], n: int, write: Any, *, wrong: float = 0.08) -> tuple[TextOutcome, ...]:
    generator = np.random.default_rng(1)
    found = []
    for line in range(2, n + 2):
        gold = int(generator.integers(len(labels)))
        length = int(np.clip(generator.lognormal(3.3, 0.9), 3, 3000))
        mistaken = generator.random() < wrong * (1 + length / 300)
        said = (gold + int(generator.integers(1, min(3, len(labels))))) % len(labels) if mistaken else gold
        sure = float(np.clip(generator.beta(6 if mistaken else 18, 2 if mistaken else 1), 0.51, 0.999))
        second = labels[gold] if mistaken else labels[(said + 1) % len(labels)]
        found.append(
            TextOutcome(
                text=write(generator, length),
                gold=labels[gold],
                predicted=labels[said],
                confidence=sure,
                likely=((labels[said], sure), (second, (1 - sure) * 0.9)),
                tokens=length + 2,
                coverage=min(1.0, 510 / length),
                windows=1,
                line=line,
            )
        )
    return tuple(found)


def matrix(labels: list[str], outcomes: tuple[TextOutcome, ...]) -> tuple[tuple[int, ...], ...]:
    counts = np.zeros((len(labels), len(labels)), dtype=int)
    for outcome in outcomes:
        counts[labels.index(str(outcome.gold)), labels.index(str(outcome.predicted))] += 1
    return tuple(tuple(map(int, row)) for row in counts)


def table(labels: list[str], counts: tuple[tuple[int, ...], ...]) -> tuple[LabelScore, ...]:
    array = np.array(counts, dtype=float)
    right, true, said = array.diagonal(), array.sum(1), array.sum(0)
    precision, recall = right / np.maximum(said, 1), right / np.maximum(true, 1)
    f1 = 2 * right / np.maximum(true + said, 1)
    rows = zip(labels, precision.tolist(), recall.tolist(), f1.tolist(), true.astype(int).tolist(), strict=True)
    return tuple(LabelScore(*row) for row in rows)


def facts(role: Any, file: str, examples: int) -> DataFacts:
    return DataFacts(role, file, examples, tokens=examples * 31, sha256="9f86d081884c7d659a2feaa0c55ad015" * 2)


SETTINGS = {
    "model": "google-bert/bert-base-uncased",
    "epochs": 3,
    "batch": {"tokens": 4096, "accumulate": 2},
    "optimizer": {"kind": "adamw", "learning_rate": 2e-5, "betas": [0.9, 0.999], "weight_decay": 0.01},
    "long_text": {"strategy": "head_tail", "max_length": 512},
    "seed": 0,
}
ENVIRONMENT = {
    "started": "2026-11-16T03:00:00+00:00",
    "python": "CPython 3.11.2",
    "torch": {"version": "2.13.0", "threads": 2},
}
NOTES = (
    "head_tail was chosen for long texts: 4 % of the texts are longer than 512 tokens.",
    "The training file has 124 texts twice; they were kept.",
)


def single(n: int = 872) -> Evaluation:
    labels = ["negative", "positive"]
    outcomes = classified(labels, n, english)
    counts = matrix(labels, outcomes)
    right = sum(outcome.right for outcome in outcomes) / n
    return Evaluation(
        task="classify",
        problem="single",
        model=ModelFacts("sst2-bert-base", "google-bert/bert-base-uncased", 109_483_778, 512, ("en",)),
        data=(facts("train", "SST-2/train.tsv", 67_349), facts("dev", "SST-2/dev.tsv", n)),
        settings=SETTINGS,
        scores={
            "accuracy": Score(right, right - 0.018, right + 0.018, n),
            "macro_f1": Score(right - 0.001, right - 0.02, right + 0.017, n),
            "mcc": Score(0.807, 0.77, 0.844, n),
        },
        labels=tuple(labels),
        confusion=counts,
        table=table(labels, counts),
        outcomes=outcomes,
        curve=curve(3000),
        notes=NOTES,
        seconds=5400.0,
        environment=ENVIRONMENT,
    )


def topics(labels: list[str] | None = None, n: int = 3000) -> Evaluation:
    names = TOPICS if labels is None else labels
    outcomes = classified(names, n, chinese, wrong=0.15)
    counts = matrix(names, outcomes)
    right = sum(outcome.right for outcome in outcomes) / n
    return Evaluation(
        task="classify",
        problem="single",
        model=ModelFacts("新闻分类", "google-bert/bert-base-chinese", 102_280_000, 512, ("zh",)),
        data=(facts("train", "tnews/train.json", 53_360), facts("test", "tnews/test.json", n)),
        settings=SETTINGS,
        scores={"accuracy": Score(right, right - 0.013, right + 0.012, n), "macro_f1": Score(None, None, None, n)},
        labels=tuple(names),
        confusion=counts,
        table=table(names, counts),
        outcomes=outcomes,
        curve=curve(2000, start=2.7, end=0.9),
        notes=("长文本按窗口读取。",),
    )


def multi() -> Evaluation:
    generator = np.random.default_rng(5)
    labels = ["toxic", "insult", "threat", "obscene"]
    outcomes = []
    for line in range(1, 501):
        gold = tuple(label for label in labels if generator.random() < 0.25)
        said = tuple(label for label in labels if (label in gold) != (generator.random() < 0.05))
        sure = float(generator.uniform(0.5, 1))
        length = int(generator.integers(5, 90))
        text = english(generator, length)
        outcomes.append(TextOutcome(text, None, gold, said, sure, tokens=length, line=line))
    rows = (LabelScore("toxic", 0.9, 0.88, 0.89, 122), LabelScore("insult", 0.85, 0.8, 0.824, 130))
    rows += (LabelScore("threat", 0.5, 0.2, 0.286, 12), LabelScore("obscene", 0.93, 0.9, 0.915, 118))
    return Evaluation(
        "classify",
        "multi",
        ModelFacts("comments"),
        (facts("train", "comments.csv", 9000), facts("dev", "dev.csv", 500)),
        SETTINGS,
        {"micro_f1": Score(0.86, 0.84, 0.88, 500), "subset_accuracy": Score(0.81, 0.78, 0.845, 500)},
        tuple(labels),
        table=rows,
        outcomes=tuple(outcomes),
    )


def regression() -> Evaluation:
    generator = np.random.default_rng(7)
    outcomes = []
    for line in range(1, 1501):
        gold = float(np.round(generator.uniform(0, 5), 2))
        said = float(np.clip(2.5 + 0.75 * (gold - 2.5) + generator.normal(0, 0.5), -0.2, 5.2))
        length = int(generator.integers(8, 70))
        text, pair = english(generator, length // 2), english(generator, length // 2)
        outcomes.append(TextOutcome(text, pair, gold, said, tokens=length + 3, line=line))
    return Evaluation(
        "classify",
        "regression",
        ModelFacts("stsb", "google-bert/bert-base-uncased", 109_482_241, 512, ("en",), "apache-2.0"),
        (facts("train", "STS-B/train.tsv", 5749), facts("dev", "STS-B/dev.tsv", 1500)),
        SETTINGS,
        {
            "pearson": Score(0.893, 0.882, 0.903, 1500),
            "spearman": Score(0.889, 0.876, 0.9, 1500),
            "mse": Score(0.41, 0.38, 0.44, 1500),
        },
        outcomes=tuple(outcomes),
        curve=curve(1000, "pearson", 6.0, 0.4),
        seconds=700.0,
    )


def entities() -> Evaluation:
    generator = np.random.default_rng(9)
    types = ["name", "address", "company", "organization", "position", "book"]
    outcomes = []
    for line in range(1, 401):
        length = int(generator.integers(20, 700 if line % 50 == 0 else 60))
        text = chinese(generator, length)
        gold, said, sure = [], [], []
        for start in range(2, length - 6, 12):
            entity = Entity(start, start + int(generator.integers(2, 5)), str(generator.choice(types)))
            gold.append(entity)
            if generator.random() < 0.9:
                moved = generator.random() < 0.12
                said.append(entity._replace(end=entity.end + 1) if moved else entity)
                sure.append(float(generator.uniform(0.5 if moved else 0.7, 1)))
        outcomes.append(
            TaggedOutcome(text, tuple(gold), tuple(said), tuple(sure), length + 2, 1.0, 1 + length // 510, line)
        )
    rows = tuple(
        LabelScore(name, 0.6 + 0.05 * i, 0.58 + 0.06 * i, 0.59 + 0.055 * i, 400 - 77 * i)
        for i, name in enumerate(types)
    )
    return Evaluation(
        "tag",
        "entities",
        ModelFacts("cluener", "google-bert/bert-base-chinese", 101_000_000, 512, ("zh",)),
        (facts("train", "cluener/train.json", 10_748), facts("dev", "cluener/dev.json", 400)),
        SETTINGS,
        {
            "f1": Score(0.789, 0.772, 0.806, 400),
            "precision": Score(0.78, 0.76, 0.8, 400),
            "recall": Score(0.798, 0.78, 0.816, 400),
        },
        labels=tuple(types),
        table=rows,
        outcomes=tuple(outcomes),
        curve=curve(1500, "f1", 3, 0.05),
        seconds=3100.0,
    )


def questions() -> Evaluation:
    generator = np.random.default_rng(11)
    outcomes = []
    for line in range(600):
        context = english(generator, int(generator.integers(60, 400)))
        answer = " ".join(context.split()[20:23])
        known, kind = line % 3 != 0, generator.random()
        said, exact, f1 = (answer, 1.0, 1.0) if known else ("", 1.0, 1.0)
        if kind < 0.15:
            said, exact, f1 = ("quite another", 0.0, 0.0)
        elif kind < 0.3 and known:
            said, exact, f1 = answer.split()[0], 0.0, 0.5
        question = english(generator, 8).replace(".", "?")
        sure = float(generator.uniform(0.3, 1))
        answers = (answer,) if known else ()
        outcomes.append(
            QuestionOutcome(question, context, answers, said, sure, exact, f1, len(context.split()), id=f"q{line}")
        )
    return Evaluation(
        "qa",
        "answers",
        ModelFacts("squad2", "google-bert/bert-base-uncased", 108_893_186, 512, ("en",)),
        (facts("train", "squad/train-v2.0.json", 130_319), facts("dev", "squad/dev-v2.0.json", 600)),
        SETTINGS,
        {"f1": Score(0.78, 0.75, 0.81, 600), "exact": Score(0.74, 0.71, 0.77, 600)},
        outcomes=tuple(outcomes),
        curve=curve(4000, "f1", 5, 0.9),
        seconds=20_000.0,
    )


def hostile() -> Evaluation:
    """Every text that a user's file can bring in is an attack."""
    bad = HOSTILE + "\x00\x1b[31m\u202e\ud800</title></style></svg>]]>--><!--"
    outcome = TextOutcome(bad, bad, bad, "good", 0.9, ((bad, 0.9), ("good", 0.1)), 40, 0.4, 1, 7)
    others = tuple(TextOutcome(bad, None, bad, bad, 0.6, tokens=30 + i, line=i) for i in range(40))
    score = {"accuracy": Score(0.5, 0.4, 0.6, 41), bad: Score(0.5, None, None, 41)}
    return Evaluation(
        "classify",
        "single",
        ModelFacts(bad, bad, 5, 5, ("en",), bad),
        (DataFacts("train", bad, 3, None, bad, {bad: 3}), DataFacts("dev", bad, 41)),
        {bad: {bad: bad, "list": [bad]}},
        score,
        (bad, "good"),
        ((40, 1), (0, 0)),
        (LabelScore(bad, 0.5, 0.5, 0.5, 41), LabelScore("good", 0, 0, 0, 0)),
        (outcome, *others),
        (
            {"update": 1, "losses": {bad: 1.0}},
            {"update": 2, "losses": {bad: 0.5}},
            {"update": 2, "evaluation": {bad: 0.5}},
        ),
        (bad,),
        12.0,
        {bad: bad},
    )


def empty() -> Evaluation:
    """A file with nothing in it, or a model that failed."""
    nothing = Score(None, None, None, 0)
    return Evaluation("tag", "tags", ModelFacts("m"), (), {}, {"accuracy": nothing})


ALL = {
    "single": single,
    "topics": topics,
    "forty": lambda: topics([f"label {number:02d} of many" for number in range(40)]),
    "multi": multi,
    "regression": regression,
    "entities": entities,
    "questions": questions,
    "hostile": hostile,
    "empty": empty,
}
