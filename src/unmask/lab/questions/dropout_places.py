"""Where dropout stands: found by switching on one place at a time, counted, and tried on a model that overfits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.classify import Examples, batches_of, classifier_settings, learned, logits
from unmask.lab.kit.effects import Effect, named, sided
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.labelled import labelled
from unmask.lab.kit.pairing import conclude_arm, conclude_bars, conclude_lost, conclude_paired
from unmask.lab.kit.watching import Calls, Step, first_difference, passed
from unmask.lab.words import Text, both
from unmask.models.bert import Bert
from unmask.models.gpt import Gpt
from unmask.models.init import assemble, build_model
from unmask.models.settings import BertSettings, GptSettings, TransformerSettings, bert_preset, transformer_preset
from unmask.models.transformer import Transformer
from unmask.nn.attend import Attend
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.batch import Batch
from unmask.nn.ffn import Activation, gelu_tanh
from unmask.nn.positions import NoPositions
from unmask.nn.scores import ScaledDot
from unmask.nn.settings import DropoutSettings

PLACES = ("embedding", "residual", "attention", "activation")
_SIZES = {"hidden_size": 32, "num_heads": 4, "ffn_size": 64}
_NONE = dict.fromkeys(PLACES, 0.0)
IDS = [3, 1, 4, 11, 5, 9, 2, 6]


def model_of(name: str, dropout: Mapping[str, float], head: float = 0.0) -> Bert | Gpt | Transformer:
    """Two layers of an architecture with dropout where it is wanted."""
    shape = {**_SIZES, "dropout": dict(dropout)}
    settings: BertSettings | GptSettings | TransformerSettings
    if name == "Transformer":
        sizes = {"source_vocab_size": 20, "target_vocab_size": 20, "num_encoder_layers": 2, "num_decoder_layers": 2}
        settings = TransformerSettings.parse({**shape, **sizes})
    elif name == "BERT":
        classify = {"kind": "classify", "labels": ["0", "1"], "dropout": head}
        settings = BertSettings.parse({**shape, "vocab_size": 20, "num_layers": 2, "heads": [classify]})
    else:
        settings = GptSettings.parse({**shape, "vocab_size": 20, "num_layers": 2})
    model = build_model(settings, seed=0)
    assert isinstance(model, Bert | Gpt | Transformer)
    return model.double()


def passed_with(model: Bert | Gpt | Transformer, seed: int) -> list[Step]:
    """A pass from a random state."""
    batch = Batch.of([IDS])

    def run() -> Tensor:
        if isinstance(model, Transformer):
            return model(batch, batch)
        return model(batch) if isinstance(model, Gpt) else model.class_logits(model(batch))

    torch.manual_seed(seed)
    return passed(model, run, (Attend,))


def switched(name: str, dropout: Mapping[str, float], head: float = 0.0) -> Record:
    """Two passes with different random states: do they differ, where first, and do they in evaluation?"""
    model = model_of(name, dropout, head)
    model.eval()
    still = first_difference(passed_with(model, 0), passed_with(model, 1)) is None
    model.train()
    steps = passed_with(model, 0)
    first = first_difference(steps, passed_with(model, 1))
    found = {"differs": first is not None, "still_in_use": still, "module": None, "drops": None}
    if first is None:
        return found
    return {**found, "module": re.sub(r"\.\d+\.", ".*.", steps[first].name), "drops": _dropped(steps, first)}


def _dropped(steps: list[Step], number: int) -> str:
    """What a module that drops was given, told by comparison with what the one before it gave."""
    step, before = steps[number], steps[number - 1]
    if isinstance(step.module, Attend):
        return "weights" if drops_weights() else "attention"
    made = {"norm": nn.LayerNorm, "sum": nn.Identity, "linear": nn.Linear}
    for name, kind in made.items():
        if isinstance(before.module, kind) and torch.equal(step.given, before.gave):
            return name
    functions: dict[str, Activation] = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": gelu_tanh, "tanh": torch.tanh}
    for name, function in functions.items():
        if step.given.shape == before.gave.shape and torch.equal(step.given, function(before.gave)):
            return name
    return "other"


@torch.no_grad()
def drops_weights() -> bool:
    """Whether attention drops its weights: with the unit matrix for values, what comes out are the weights."""
    attend = Attend(ScaledDot(8), NoPositions(), 0.5).train()
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, 12, 8, dtype=torch.float64, generator=generator) for _ in range(2))
    torch.manual_seed(0)
    out = attend(q, k, torch.eye(12, dtype=torch.float64).expand(1, 2, 12, 12))
    kept = out != 0
    return bool(0 < kept.sum() < kept.numel() and torch.allclose(out[kept], 2 * attend.weights(q, k)[kept], atol=1e-12))


def places(name: str) -> Record:
    """One place after another; then none at all; and which of them the architecture uses by itself."""
    kind = {"Transformer": TransformerSettings, "BERT": BertSettings, "GPT": GptSettings}[name]
    default = kind.model_fields["dropout"].default
    assert isinstance(default, DropoutSettings)
    alone = {place: switched(name, {**_NONE, place: 0.5}) for place in PLACES}
    return {
        "places": alone,
        "nowhere": switched(name, _NONE),
        "head": switched(name, _NONE, head=0.5) if name == "BERT" else None,
        "default": default.model_dump(),
    }


def _place_trials(plan: Plan) -> list[Trial]:
    return [Trial(name, partial(places, name), {"model": name}) for name in ("Transformer", "BERT", "GPT")]


def conclude_places(records: Mapping[str, Record]) -> Conclusion:
    """S4's four places, as the Transformer has them, and how BERT and GPT deviate."""
    expected = {"embedding": "sum", "residual": "linear", "attention": "weights", "activation": "relu"}
    ours = records["Transformer"]
    found = {place: one["drops"] for place, one in ours["places"].items() if one["differs"]}
    passes = [ours["nowhere"], *ours["places"].values()]
    quiet = not ours["nowhere"]["differs"] and all(one["still_in_use"] for one in passes)
    verdict = Verdict.SUPPORTED if found == expected and quiet else Verdict.NOT_SUPPORTED
    deviations = conclude_deviations(records)
    right = sum(found.get(place) == what for place, what in expected.items())
    says = Text(
        f"In the Transformer {len(found)} of {len(PLACES)} places, switched on alone, change a training pass, "
        f"{right} of them where S4 says; with all four off {'nothing' if quiet else 'something'} is random, "
        f"{'and' if quiet else 'or'} in use {'nothing' if quiet else 'something'} is. Deviations: {deviations.en}.",
        f"在 Transformer 中单独打开时，{len(PLACES)} 处里有 {len(found)} 处会改变训练时的结果，其中 {right} 处的位置与 "
        f"S4 所说一致；四处全关时{'没有任何随机性' if quiet else '仍有随机性'}，"
        f"预测时{'也没有' if quiet else '也可能有'}。不一致之处：{deviations.zh}。",
    )
    columns = (
        Text("model", "模型"),
        Text("place", "位置"),
        Text("what is dropped", "丢弃的是"),
        Text("first module to differ", "最先出现差异的模块"),
        Text("by default", "默认概率"),
    )
    rows = [
        (name, place, str(one["drops"]), str(one["module"]), f"{record['default'][place]:g}")
        for name, record in records.items()
        for place, one in record["places"].items()
    ]
    head = records["BERT"]["head"]
    rows.append(("BERT", "head", str(head["drops"]), str(head["module"]), ""))
    return Conclusion(verdict, says, (), Table(columns, tuple(rows)))


def conclude_deviations(records: Mapping[str, Record]) -> Text:
    """How the other models differ from S4's list."""
    said = []
    for name, record in records.items():
        off = [place for place in PLACES if not record["default"][place]]
        if off:
            said.append(
                Text(f"{name} has no dropout by default at {', '.join(off)}", f"{name} 默认不用：{'、'.join(off)}")
            )
        if record["places"]["embedding"]["drops"] == "norm":
            said.append(Text(f"{name} drops embeddings after their norm", f"{name} 的嵌入 dropout 在归一化之后"))
        activation = record["places"]["activation"]["drops"]
        if activation not in ("relu", None):
            said.append(
                Text(f"{name}'s function is {activation}, not ReLU", f"{name} 的激活函数是 {activation} 而非 ReLU")
            )
        if record["head"] is not None and record["head"]["differs"]:
            said.append(Text(f"{name}'s task head has one of its own", f"{name} 的任务层另有一处"))
    if not said:
        return Text("none", "无")
    return Text("; ".join(one.en for one in said), "；".join(one.zh for one in said))


def calls(name: str) -> Record:
    """One training pass of a model of full size, on a device that has no memory and computes nothing."""
    with torch.device("meta"):
        if name == "BERT-base":
            head = {"kind": "classify", "labels": ["0", "1"]}
            model = assemble(BertSettings.parse({**bert_preset("base").model_dump(mode="json"), "heads": [head]}))
        else:
            four = DropoutSettings.everywhere(0.1).model_dump()
            settings = transformer_preset("base", 37000).model_dump(mode="json")
            model = assemble(TransformerSettings.parse({**settings, "dropout": four}))
    model.train()
    batch = Batch.of([IDS]).to("meta")
    with Calls() as found:
        if isinstance(model, Transformer):
            model(batch, batch)
        else:
            assert isinstance(model, Bert)
            model.class_logits(model(batch))
    modules = list(model.modules())
    separate = sum(isinstance(module, nn.Linear) for module in modules) + (name == "Transformer-base")  # tied output
    attentions = sum(isinstance(module, MultiHeadAttention) for module in modules)
    return {**found.counts, "linear_separate": separate, "attention_modules": attentions}


def _call_trials(plan: Plan) -> list[Trial]:
    return [Trial(name, partial(calls, name), {"model": name}) for name in ("BERT-base", "Transformer-base")]


def conclude_calls(records: Mapping[str, Record]) -> Conclusion:
    """Dropout against the most used of all other layers, Q, K and V counted as three and as one."""
    others = ("norm", "embedding", "attention")
    first = {
        (name, way): record["dropout"] > max(record[way], *(record[kind] for kind in others))
        for name, record in records.items()
        for way in ("linear_separate", "linear")
    }
    wins = sum(first.values())
    verdict = Verdict.SUPPORTED if wins == len(first) else Verdict.DEPENDS if wins else Verdict.NOT_SUPPORTED
    said = [
        Text(
            f"{name}: {one['dropout']} dropouts, {one['linear_separate']} linear maps ({one['linear']} with Q, K and V "
            f"of the same rows in one product), {one['norm']} norms",
            f"{name}：dropout {one['dropout']} 次，线性变换 {one['linear_separate']} 次（同一输入的 Q、K、V 合并后 "
            f"{one['linear']} 次），归一化 {one['norm']} 次",
        )
        for name, one in records.items()
    ]
    says = Text(
        f"Dropout comes first in {wins} of {len(first)} counts of one training pass. "
        + "; ".join(one.en for one in said)
        + ".",
        f"在一次训练前向的 {len(first)} 种数法中，dropout 有 {wins} 种排第一。"
        + "；".join(one.zh for one in said)
        + "。",
    )
    kinds = {
        "linear_separate": Text("linear maps, Q K V as three", "线性变换（Q、K、V 算三个）"),
        "linear": Text("linear maps, Q K V as one", "线性变换（合并）"),
        "dropout": both("dropout"),
        "norm": Text("norms", "归一化"),
        "attention": Text("attentions", "注意力"),
        "embedding": Text("embeddings", "嵌入"),
    }
    rows = [(name, *(str(record[kind]) for kind in kinds)) for name, record in records.items()]
    return Conclusion(verdict, says, (), Table((Text("model", "模型"), *kinds.values()), tuple(rows)))


ARMS: dict[str, tuple[str, ...]] = {"none": (), **{place: (place,) for place in PLACES}, "all four": PLACES}


def trial(arm: str, updates: int, examples: int, seed: int) -> Record:
    """Train on few headlines with dropout at some places; loss and accuracy on those and on others."""
    data = labelled("thucnews-10k")
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed)).tolist()
    few = data.train.some(order[:examples])
    dropout = {**_NONE, **dict.fromkeys(ARMS[arm], 0.2)}
    sizes = {"hidden_size": 128, "ffn_size": 256, "dropout": dropout}
    settings = classifier_settings(data.vocab, len(data.labels), sizes)
    model, _ = learned(settings, batches_of(few, 32), Fit(updates), seed)
    return {**measured("train", model, few), **measured("test", model, data.test)}


@torch.inference_mode()
def measured(name: str, model: Bert, examples: Examples) -> Record:
    """Mean loss and share of right answers; no loss where it is no number."""
    loss, right = 0.0, 0
    for first in range(0, len(examples), 128):
        part = examples.some(list(range(first, min(first + 128, len(examples)))))
        scores, gold = logits(model, part), torch.tensor(part.labels)
        loss += float(F.cross_entropy(scores, gold, reduction="sum"))
        right += int((scores.argmax(-1) == gold).sum())
    mean = loss / len(examples)
    return {f"{name}_loss": mean if math.isfinite(mean) else None, f"{name}_right": right / len(examples)}


def _trials(plan: Plan) -> list[Trial]:
    examples, epochs = plan.at(64, 2000), plan.at(2, 12)
    updates = epochs * -(-examples // 32)
    return [
        Trial(
            named(arm, seed),
            partial(trial, arm, updates, examples, seed),
            {"dropout": list(places), "updates": updates, "examples": examples, "seed": seed},
        )
        for seed in range(plan.seeds)
        for arm, places in ARMS.items()
    ]


def conclude_by_place(records: Mapping[str, Record]) -> Conclusion:
    """Every place must lower the test loss, alone and with the others."""
    arms = [arm for arm in ARMS if arm != "none"]
    effects = {arm: conclude_paired(records, arm, "none", "test_loss") for arm in arms}
    sides = {arm: sided(Effect(-one.mean, -one.high, -one.low)) for arm, one in effects.items()}
    kinds = set(sides.values())
    verdict = kinds.pop() if len(kinds) == 1 else Verdict.DEPENDS
    helps, harms = ([arm for arm in arms if sides[arm] == side] for side in (Verdict.SUPPORTED, Verdict.NOT_SUPPORTED))
    best = min(arms, key=lambda arm: effects[arm].mean if math.isfinite(effects[arm].mean) else math.inf)
    plain, gap = conclude_arm(records, "none", "test_loss"), conclude_arm(records, "none", "train_loss")
    lost = conclude_lost(records, "test_loss")
    says = Text(
        f"Without dropout the test loss is {plain} against {gap.mean:.3f} on the headlines learned. Test loss falls "
        f"with dropout at: {', '.join(helps) or 'no place'}; it rises at: {', '.join(harms) or 'no place'} (95 % "
        f"intervals that exclude 0). The largest change is {effects[best].signed()} ({best}), where accuracy goes from "
        f"{conclude_arm(records, 'none', 'test_right', 0.01).mean:.1f} % to "
        f"{conclude_arm(records, best, 'test_right', 0.01).mean:.1f} %.{lost.en}",
        f"不用 dropout 时测试损失 {plain}，而训练过的标题上只有 {gap.mean:.3f}。95 % 区间不含 0 的：损失下降的有 "
        f"{'、'.join(helps) or '无'}，上升的有 {'、'.join(harms) or '无'}。变化最大的是 {best}："
        f"{effects[best].signed()}，准确率从 {conclude_arm(records, 'none', 'test_right', 0.01).mean:.1f} % 变为 "
        f"{conclude_arm(records, best, 'test_right', 0.01).mean:.1f} %。{lost.zh}",
    )
    short = ("none", "input", "residual", "weights", "inner", "all four")
    chinese = ("无", "嵌入", "子层", "权重", "激活后", "四处")
    groups = {
        Text("learned headlines", "训练过的标题"): [conclude_arm(records, arm, "train_loss") for arm in ARMS],
        Text("test headlines", "测试标题"): [conclude_arm(records, arm, "test_loss") for arm in ARMS],
    }
    picture = conclude_bars(
        Text("Loss by the place of dropout", "不同位置的 dropout 与损失"),
        Text("mean loss (nats)", "平均损失（nat）"),
        tuple(map(Text, short, chinese)),
        groups,
        Text(
            "The distance between two bars of a pair is how much is learned by heart.",
            "每对柱子的差距就是死记硬背的程度。",
        ),
    )
    return Conclusion(verdict, says, (picture,))


PARTS = (
    Part("places", _place_trials, conclude_places),
    Part("layer-counts", _call_trials, conclude_calls),
    Part("by-place", _trials, conclude_by_place),
)
