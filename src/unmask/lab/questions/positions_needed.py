"""What attention makes of a shuffled text, and what order is worth to a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.classify import Examples, accuracy, batches_of, classifier_settings, learned
from unmask.lab.kit.effects import by_seed, named, paired, sided, spread
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.labelled import labelled
from unmask.lab.kit.shown import conclude_percent, conclude_points, conclude_shares
from unmask.lab.kit.synthetic import ORDINARY, fixed, order
from unmask.lab.pictures import Bars, Lines, Point, Series
from unmask.lab.words import Text, both
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.folder import load_model
from unmask.models.gpt import Gpt
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, GptSettings
from unmask.nn.batch import Batch
from unmask.nn.positions.absolute import LearnedPositions

SENTENCES, TOKENS, PERMUTATIONS = 20, 16, 20
DEPTHS = (1, 2, 6)
_SHAPE = {"hidden_size": 64, "num_heads": 4, "ffn_size": 128}
_STILL = {"embedding": 0.0, "residual": 0.0, "attention": 0.0}
#: Sequences of the order task: noise of so many symbols.
SYMBOLS = 32
#: Positions are chosen under a seed that no arm is measured with.
CHOOSING = 1000

Rows = Callable[[Batch], Tensor]


def permutation(which: str) -> Record:
    """The farthest that f(Px) is from P·f(x), and the mean over tokens from itself."""
    rows, vocab = _rows(which)
    generator = torch.Generator().manual_seed(1)
    worst = worst_mean = largest = 0.0
    with torch.no_grad():
        for _ in range(SENTENCES):
            ids = torch.randint(5, vocab, (TOKENS,), generator=generator)
            shuffles = [torch.randperm(TOKENS, generator=generator) for _ in range(PERMUTATIONS)]
            found = rows(Batch.of([ids.tolist(), *(ids[one].tolist() for one in shuffles)]))
            plain, *others = found.unflatten(0, (-1, TOKENS))
            largest = max(largest, float(plain.abs().max()))
            for shuffle, other in zip(shuffles, others, strict=True):
                worst = max(worst, float((other - plain[shuffle]).abs().max()))
                worst_mean = max(worst_mean, float((other.mean(0) - plain.mean(0)).abs().max()))
    return {"difference": worst, "difference_of_means": worst_mean, "largest_value": largest}


def _rows(which: str) -> tuple[Rows, int]:
    """What makes rows (R, H) of a batch, and the size of its vocabulary."""
    if which.startswith("mini-zh"):
        model, _ = load_model(fetch("mini-zh"), dtype=torch.float64)
        assert isinstance(model, Bert)
        positions = model.encoder.embeddings.positions
        assert isinstance(positions, LearnedPositions)
        if which != "mini-zh":
            torch.nn.init.zeros_(positions.table.weight)
        return partial(_encoded, model), model.settings.vocab_size
    sizes = {**_SHAPE, "vocab_size": 100, "positions": {"kind": "none"}, "init_std": 0.2}
    if which == "causal stack":
        gpt = build_model(GptSettings.parse({**sizes, "num_layers": 2}), seed=0)
        return gpt.double().eval(), 100
    layers = int(which.split()[0])
    encoder = build_model(BertSettings.parse({**sizes, "num_layers": layers, "pooler": False}), seed=0)
    assert isinstance(encoder, Bert)
    return partial(_encoded, encoder.double().eval()), 100


def _encoded(model: Bert, batch: Batch) -> Tensor:
    return model(batch).sequence


def ordered(positions: str, updates: int, tests: int, seed: int) -> Record:
    """The order task with an encoder."""
    settings = classifier_settings(ORDINARY + SYMBOLS, 2, {"positions": {"kind": positions}})
    draw = order(TOKENS, SYMBOLS, 128)
    model, losses = learned(settings, draw, Fit(updates, rate=2e-3), seed)
    return {"accuracy": accuracy(model, fixed(draw, tests)), "loss": sum(losses[-10:]) / len(losses[-10:])}


def ordered_causally(updates: int, tests: int, seed: int) -> Record:
    """The same with a causal stack without positions, which is asked at its last token."""
    generator = seeded(seed)
    stack = {"positions": {"kind": "none"}, "norm_place": "post", "final_norm": False, "embedding_norm": True}
    rest = {"activation": "gelu", "tie_output": False, "dropout": _STILL, "num_layers": 2}
    model = build_model(GptSettings.parse({"vocab_size": ORDINARY + SYMBOLS, **_SHAPE, **stack, **rest}), seed=seed)
    assert isinstance(model, Gpt)
    draw = order(TOKENS, SYMBOLS, 128)

    def answers(examples: Examples) -> Tensor:
        rows = model(Batch.of(examples.sequences))
        last = torch.tensor([len(one) for one in examples.sequences]).cumsum(0) - 1
        return rows[last][:, :2]

    def loss(number: int) -> Tensor:
        examples = draw(number, generator)
        return F.cross_entropy(answers(examples), torch.tensor(examples.labels))

    losses = fit(model, loss, Fit(updates, rate=2e-3))
    new = fixed(draw, tests)
    with torch.inference_mode():
        right = (answers(new).argmax(-1) == torch.tensor(new.labels)).double().mean()
    return {"accuracy": float(right), "loss": sum(losses[-10:]) / len(losses[-10:])}


def headlines(positions: str, texts: int, seed: int) -> Record:
    """Topics of headlines."""
    found = labelled("thucnews-10k")
    train = found.train.some(list(range(min(texts, len(found.train)))))
    settings = classifier_settings(found.vocab, len(found.labels), {"positions": {"kind": positions}})
    updates = 3 * len(train) // 64
    model, _ = learned(settings, batches_of(train, 64), Fit(updates), seed)
    return {"accuracy": accuracy(model, found.dev)}


def _permutation_trials(plan: Plan) -> list[Trial]:
    names = [*(f"{depth} layers" for depth in DEPTHS), "mini-zh without positions", "mini-zh", "causal stack"]
    return [Trial(name, partial(permutation, name)) for name in names]


def _task_trials(plan: Plan) -> list[Trial]:
    sizes = (plan.at(8, 300), plan.at(200, 2000))
    texts = plan.at(256, 7000)
    found = [
        Trial(named("choose " + kind, CHOOSING), partial(ordered, kind, *sizes, CHOOSING), {"updates": sizes[0]})
        for kind in ("learned", "sinusoidal")
    ]
    for seed in range(plan.seeds):
        for kind in ("none", "learned", "sinusoidal"):
            job = partial(ordered, kind, *sizes, seed)
            found.append(Trial(named(f"order, {kind}", seed), job, {"updates": sizes[0]}))
        job = partial(ordered_causally, *sizes, seed)
        found.append(Trial(named("order, causal without positions", seed), job, {"updates": sizes[0]}))
        for kind in ("none", "learned"):
            job = partial(headlines, kind, texts, seed)
            found.append(Trial(named(f"headlines, {kind}", seed), job, {"texts": texts}))
    return found


def conclude_permutation(records: Mapping[str, Record]) -> Conclusion:
    """Encoders without positions must not notice; what a causal stack does is told apart."""
    blind = {name: one for name, one in records.items() if name not in ("mini-zh", "causal stack")}
    worst = max(max(one["difference"], one["difference_of_means"]) for one in blind.values())
    causal, real = records["causal stack"]["difference"], records["mini-zh"]["difference"]
    verdict = Verdict.SUPPORTED if worst <= 1e-10 else Verdict.NOT_SUPPORTED
    tells = causal > 1e-3
    head = {
        Verdict.SUPPORTED: Text(
            f"It holds for encoders: without positions, shuffled tokens get the vectors they had before (f(Px) and "
            f"P·f(x) differ by at most {worst:.0e}), at every depth and in mini-zh with its positions set to zero.",
            f"对编码器成立：没有位置时，打乱后的 token 仍得到原来的向量"
            f"（f(Px) 与 P·f(x) 最多相差 {worst:.0e}），各种层数都是如此，把位置置零的 mini-zh 也一样。",
        ),
        Verdict.NOT_SUPPORTED: Text(
            f"It does not hold: without positions, f(Px) and P·f(x) differ by up to {worst:.1e}.",
            f"不成立：没有位置时，f(Px) 与 P·f(x) 最多相差 {worst:.1e}。",
        ),
    }[verdict]
    tail = (
        Text("the verdict is for encoders only: a causal mask tells places apart by itself", "判定只适用于编码器")
        if tells
        else Text("a causal mask alone does not tell places apart either", "仅靠因果掩码同样分不出位置")
    )
    says = Text(
        f"{head.en} mini-zh as it is moves by {real:.2g}. A causal stack without positions moves by {causal:.2g}: "
        f"{tail.en}.",
        f"{head.zh}原样的 mini-zh 变化 {real:.2g}；没有位置的因果堆叠变化 {causal:.2g}：{tail.zh}。",
    )
    columns = (
        both("f"),
        Text("f(Px) − P·f(x)", "f(Px) − P·f(x)"),
        Text("means", "平均向量之差"),
        Text("largest value", "最大值"),
    )
    rows = tuple(
        (name, f"{one['difference']:.1e}", f"{one['difference_of_means']:.1e}", f"{one['largest_value']:.2g}")
        for name, one in records.items()
    )
    return Conclusion(verdict, says, (conclude_shuffled(records),), Table(columns, rows))


def conclude_shuffled(records: Mapping[str, Record]) -> Lines:
    """How far each model's answer moves, over its depth."""
    encoders = tuple(Point(depth, max(records[f"{depth} layers"]["difference"], 1e-17)) for depth in DEPTHS)
    others = [
        (Text("mini-zh, positions zero", "mini-zh，位置置零"), 4, "mini-zh without positions"),
        (Text("mini-zh as it is", "原样的 mini-zh"), 4, "mini-zh"),
        (Text("causal stack, no positions", "因果堆叠，无位置"), 2, "causal stack"),
    ]
    return Lines(
        Text("Shuffled tokens: how far f(Px) is from P·f(x)", "打乱 token：f(Px) 与 P·f(x) 相差多少"),
        Text("layers", "层数"),
        Text("largest difference", "最大差"),
        (
            Series(Text("encoder, no positions", "编码器，无位置"), encoders),
            *(
                Series(name, (Point(depth, max(records[key]["difference"], 1e-17)),), line=False)
                for name, depth, key in others
            ),
        ),
        Text(
            "What lies near 1e-15 is rounding: these models cannot see the order; those far above can.",
            "1e-15 附近只是舍入误差：这些模型看不到顺序；高出许多的看得到。",
        ),
        log_y=True,
    )


def conclude_tasks(records: Mapping[str, Record]) -> Conclusion:
    """By the rule of the method: order first, then headlines and the causal stack."""
    chosen = max(("learned", "sinusoidal"), key=lambda kind: records[named(f"choose {kind}", CHOOSING)]["accuracy"])
    arms = {
        name: by_seed(records, name, "accuracy")
        for name in (
            *("order, none", "order, learned", "order, sinusoidal"),
            *("order, causal without positions", "headlines, none", "headlines, learned"),
        )
    }
    first = paired(arms[f"order, {chosen}"], arms["order, none"])
    second = paired(arms["headlines, learned"], arms["headlines, none"])
    causal = spread(arms["order, causal without positions"])
    verdict, real = sided(first), sided(second)
    if verdict == Verdict.SUPPORTED and (real != Verdict.SUPPORTED or causal.mean > 0.9):
        verdict = Verdict.DEPENDS
    about = {
        Verdict.SUPPORTED: Text("positions help there too", "位置同样有用"),
        Verdict.NOT_SUPPORTED: Text("positions do harm there", "位置反而有害"),
    }.get(real, Text("no difference can be seen", "看不出差别"))
    stack = (
        Text("so that the causal mask can take the place of positions", "可见因果掩码可以代替位置编码")
        if causal.mean > 0.9
        else Text("which is not enough to call it solved (90 %)", "不足以算作学会（90 %）")
    )
    none = spread(arms["order, none"])
    says = Text(
        f"Where order is the answer, an encoder without positions gets {conclude_percent(none)} right, with "
        f"{chosen} ones {conclude_percent(spread(arms[f'order, {chosen}']))}: {conclude_points(first).en}. "
        f"On headlines the difference is {conclude_points(second).en}: {about.en}. A causal stack without any "
        f"positions reaches {conclude_percent(causal)} in the order task, {stack.en}.",
        f"当答案取决于顺序时，无位置的编码器准确率为 {conclude_percent(none)}，"
        f"用{'可学习' if chosen == 'learned' else '正弦'}位置为 "
        f"{conclude_percent(spread(arms[f'order, {chosen}']))}，相差{conclude_points(first).zh}。"
        f"新闻标题上相差{conclude_points(second).zh}：{about.zh}。"
        f"完全没有位置的因果堆叠在顺序任务上达到 {conclude_percent(causal)}，{stack.zh}。",
    )
    return Conclusion(verdict, says, (conclude_worth(arms),))


def conclude_worth(arms: Mapping[str, list[float]]) -> Bars:
    """The accuracy of each arm."""
    names = {
        "order, none": Text("order: none", "顺序：无位置"),
        "order, learned": Text("order: learned", "顺序：可学习"),
        "order, sinusoidal": Text("order: sinusoidal", "顺序：正弦"),
        "order, causal without positions": Text("order: causal, none", "顺序：因果，无位置"),
        "headlines, none": Text("headlines: none", "标题：无位置"),
        "headlines, learned": Text("headlines: learned", "标题：可学习"),
    }
    return conclude_shares(
        Text("What positions are worth", "位置编码值多少"),
        Text("accuracy, %", "准确率，%"),
        [(names[arm], spread(values)) for arm, values in arms.items()],
        Text(
            "The order task has two answers, so 50 % is guessing; headlines have ten.",
            "顺序任务有两种答案，50 % 等于瞎猜；标题有十类。",
        ),
    )


PARTS = (
    Part("permutation", _permutation_trials, conclude_permutation),
    Part("tasks", _task_trials, conclude_tasks),
)
