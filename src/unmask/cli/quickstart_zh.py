"""`unmask quickstart --lang zh`: a Chinese BERT from nothing, and whether its pre-training was worth it."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.cli import console
from unmask.cli.quickstart_steps import Shown, fetched, finetuned, labelled, predictions, tested
from unmask.cli.training import training_bar
from unmask.metrics.compare import Comparison
from unmask.report.outcome import Evaluation
from unmask.storage import atomic_write
from unmask.tasks.compare import compare
from unmask.tasks.finetune import REPORT
from unmask.tasks.finetune_settings import ClassifyRun, Files
from unmask.tasks.pretrain_run import Inputs, pretrain
from unmask.tasks.pretrain_settings import PretrainSettings, read_pretrain_settings
from unmask.tasks.runs import MODEL

SENTENCES = (
    "房间干净，服务员很热情，下次还会住这里。",
    "等了半个小时才上菜，味道也很一般。",
    "书的内容太浅，看完觉得浪费钱。",
    "屏幕清晰，速度快，电池也耐用，很满意！",
)
CONFIG = "bert-tiny-zh"
#: Settings that change with --quick: only to show the way.
QUICK = [
    'stages=[{"length": 32, "updates": 20, "batch_tokens": 1024}]',
    "evaluation_tokens=2000",
    "train.evaluate_every=20",
    "train.schedule.warmup=5",
]
FEW = 128
_SMALL: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 32,
    "pooling": "mean",
    "long_text": {"strategy": "head", "max_length": 128},
    "train": {"save_every": 200, "keep": 1, "optimizer": {"learning_rate": 1e-3}},
}
#: mini-zh is larger: one epoch takes as long as several of the others, and its steps must be smaller.
_LARGER: dict[str, Any] = {
    **_SMALL,
    "epochs": 1,
    "train": {"save_every": 100, "keep": 1, "optimizer": {"learning_rate": 3e-4}},
}


@dataclass(frozen=True)
class Contender:
    """A model that is fine-tuned on the reviews."""

    folder: str
    name: str
    start: str
    settings: dict[str, Any]


def quickstart_zh(folder: Path, *, quick: bool) -> None:
    """Pre-train on Chinese text, fine-tune, do the same from random weights, and compare."""
    console.say("1. 下载中文数据：人民日报 1998 年 1 月的文章，以及书籍、酒店、商品评论（只需一次，之后离线可用）")
    texts = [fetched("people-daily") / "text.txt", _reviews(folder)]
    files = labelled("zh-reviews", folder, FEW if quick else None)

    settings = read_pretrain_settings(CONFIG, QUICK if quick else ())
    start = pretrained(settings, texts, folder / "pretrain")

    found = {}
    for number, one in enumerate(_contenders(start), 3):
        told = ClassifyRun.parse(one.settings | ({"epochs": 1} if quick else {}), "quickstart")
        run = folder / one.folder
        done = "（之前已完成）" if (run / REPORT).is_file() else ""
        console.say(f"{number}. 微调：评论是褒是贬，{one.name}{done}")
        given = Files(model=one.start, train=str(files["train"]), dev=str(files["dev"]))
        model = finetuned(told, given, run, "验证集，第", talk=False)
        found[one.name] = tested(model, files["test"], folder / f"{one.folder}-test")
    _conclude(folder, found)


def pretrained(settings: PretrainSettings, texts: list[Path], run: Path) -> Path:
    """The model that was pre-trained on these texts, going on with what is there."""
    model = run / MODEL
    if (model / "config.json").is_file():
        console.say(f"2. 预训练已在之前完成，见 {run}（--again 从头再来）")
        return model
    console.say("2. 从零开始：学习词表，再做掩码词与下一句预测的预训练；Ctrl-C 可中断，再次运行同一命令即可继续")
    with training_bar(run.name, settings.train.updates) as bar:
        pretrain(
            settings, Inputs(text=tuple(map(str, texts))), run, Shown(bar, "留出文本，第", talk=False), resume=True
        )
    return model


def verdict(found: Comparison) -> str:
    """What the paired test says, in one Chinese sentence."""
    first, second = found.names
    p = "p < 0.0001" if found.p < 0.0001 else f"p = {found.p:.4f}"
    numbers = (
        f"差 {100 * found.difference:+.1f} 个百分点，95% 区间 {100 * found.low:+.1f} 到 {100 * found.high:+.1f}，{p}"
    )
    if found.differs:
        return f"{first}{'优于' if found.difference > 0 else '不如'}{second}（{numbers}），差异显著。"
    return f"{first}与{second}之间没有显著差异（{numbers}）：这些数据不足以说明预训练有用。"


def _contenders(start: Path) -> tuple[Contender, ...]:
    return (
        Contender("pretrained", "刚预训练的模型", str(start), _SMALL),
        Contender("random", "随机初始化", str(start), _SMALL | {"from_nothing": True}),
        Contender("mini-zh", "随包附带的 mini-zh", "mini-zh", _LARGER),
    )


def _reviews(folder: Path) -> Path:
    """The reviews as text without labels; only those of the training file, so that all others stay unseen."""
    target = folder / "reviews.txt"
    with (fetched("zh-reviews") / "train.csv").open(encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    atomic_write(target, ("\n\n".join(texts) + "\n").encode())
    return target


def _conclude(folder: Path, found: dict[str, Evaluation]) -> None:
    rows = []
    for name, one in found.items():
        score = one.scores["accuracy"]
        assert score.value is not None
        assert score.low is not None
        assert score.high is not None
        between = f"{100 * score.low:.1f} 到 {100 * score.high:.1f}"
        rows.append((name, f"{one.model.parameters or 0:,}", f"{100 * score.value:.1f}", between, score.n))
    console.print_table(["模型", "参数", "测试集准确率 %", "95% 区间", "评论数"], rows)
    (first, one), (second, two), _ = found.items()
    console.result(verdict(compare(one, two, (first, second))[1]))
    own = folder / "pretrained" / MODEL
    console.say("6. 试试几条新评论（用自己预训练的模型）")
    console.print_table(["评论", "预测", "概率"], predictions(own, SENTENCES))
    for name in ("pretrained", "random", "mini-zh"):
        console.result(f"{folder / f'{name}-test' / REPORT}  测试报告，用浏览器打开")
    console.say(f"接下来：unmask predict {own} --text '你的评论'")
    console.say(f"        unmask fill-mask -m {folder / 'pretrain' / MODEL} '全国人民代表大[MASK]'")
    console.say("        unmask train classify --model mini-zh --train 你的.csv --out runs/yours")
