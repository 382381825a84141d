"""Where BERT is bidirectional: which outputs depend on which inputs, by gradients, number by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.pictures import Bars, Point, Series
from unmask.lab.words import Text, both
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.folder import load_model
from unmask.models.gpt import Gpt
from unmask.models.init import build_model
from unmask.models.recurrent import LstmStack
from unmask.models.settings import BertSettings, GptSettings
from unmask.nn.batch import Batch
from unmask.nn.block import EncoderStack
from unmask.nn.layout import Layout
from unmask.nn.plan import AttentionPlan
from unmask.text import Tokenizer

TOKENS, HIDDEN = 9, 32
SENTENCE = "我们在北京开会"  # seven characters, nine tokens with [CLS] and [SEP]
_SIZES = {"vocab_size": 50, "hidden_size": HIDDEN, "num_layers": 2, "num_heads": 4, "ffn_size": 64, "max_length": 16}
#: Nobody asks for every number of a wide trained model: one in so many of them tells the same.
_EVERY = {"mini-zh": 8}


class Reader(NamedTuple):
    """A network as a function from embedded tokens to what each of its layers says, rows in and rows out."""

    vectors: Tensor  # (T, H) of one sequence
    layers: Callable[[Tensor, Layout], list[Tensor]]


def reader(name: str) -> Reader:
    """A network by its name, in double precision, with nothing random left."""
    ids = Batch.of([torch.randint(50, (TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()])
    match name:
        case "BERT":
            bert = build_model(BertSettings.parse({**_SIZES, "init_std": 0.2}), seed=0)
            assert isinstance(bert, Bert)
            bert = bert.double().eval()
            return Reader(bert.encoder.embeddings(ids), partial(_stack, bert.encoder.stack, False))
        case "mini-zh":
            folder = fetch(name)
            bert, _ = load_model(folder, dtype=torch.float64)
            assert isinstance(bert, Bert)
            vectors = bert.encoder.embeddings(Batch.of([Tokenizer.from_folder(folder).encode(SENTENCE).ids]))
            return Reader(vectors, partial(_stack, bert.encoder.stack, False))
        case "GPT":
            gpt = build_model(GptSettings.parse({**_SIZES, "init_std": 0.2}), seed=0)
            assert isinstance(gpt, Gpt)
            gpt = gpt.double().eval()
            return Reader(gpt.embeddings(ids), partial(_stack, gpt.stack, True))
        case _:
            generator = torch.Generator().manual_seed(0)
            stacks = [LstmStack(HIDDEN, 1, bidirectional=True, dropout=0.0).double() for _ in range(_depth(name))]
            for stack in stacks:
                stack.initialise(generator)
            vectors = torch.randn(TOKENS, HIDDEN, dtype=torch.float64, generator=generator)
            return Reader(vectors, partial(_lstm, stacks))


def _depth(name: str) -> int:
    return int(name.removeprefix("BiLSTM of "))


def _stack(stack: EncoderStack, causal: bool, rows: Tensor, layout: Layout) -> list[Tensor]:
    plan, found = AttentionPlan.between(layout, layout, causal=causal), []
    for block in stack.blocks:
        rows = block(rows, plan)
        found.append(rows)
    return found


def _lstm(stacks: list[LstmStack], rows: Tensor, layout: Layout) -> list[Tensor]:
    found = []
    for stack in stacks:
        rows, _ = stack(rows, layout)
        found.append(rows)
    return found


def gradients(name: str) -> Record:
    """How each layer's numbers depend on each input vector: which are zero, and on which sides they lie."""
    vectors, layers = reader(name)
    vectors = vectors.detach()
    tokens, hidden = vectors.shape
    numbers = torch.arange(0, hidden, _EVERY.get(name, 1))
    # As many copies of the sequence as numbers: each copy gives the gradient of one number, all in one pass.
    layout = Layout.ragged([tokens] * len(numbers))
    found: list[list[Tensor]] = []
    for place in range(tokens):
        leaf = vectors.repeat(len(numbers), 1).requires_grad_()
        rows = torch.arange(len(numbers)) * tokens + place
        for depth, out in enumerate(layers(leaf, layout)):
            (slope,) = torch.autograd.grad(out[rows, numbers].sum(), leaf, retain_graph=True)
            if place == 0:
                found.append([])
            found[depth].append(slope.view(len(numbers), tokens, hidden).abs().amax(-1))
    return {
        "tokens": tokens,
        "numbers": len(numbers),
        "hidden": hidden,
        "layers": [_counted(torch.stack(slopes)) for slopes in found],
    }


def _counted(slopes: Tensor) -> Record:
    """Of slopes (T, K, T), |∂| of each number of each output with respect to each input, what is exactly zero."""
    tokens = slopes.shape[0]
    place = torch.arange(tokens)
    left, right = place[None] < place[:, None], place[None] > place[:, None]
    zero = slopes.amax(1) == 0  # (T, T)
    inner = slopes[1:-1] != 0  # tokens that have both sides
    on_left, on_right = (inner & left[1:-1, None]).any(-1), (inner & right[1:-1, None]).any(-1)
    return {
        "zero": {"left": _share(zero[left]), "on": _share(zero.diagonal()), "right": _share(zero[right])},
        "left_only": _share(on_left & ~on_right),
        "right_only": _share(on_right & ~on_left),
        "both": _share(on_left & on_right),
        "zero_numbers": _share(slopes == 0),  # single numbers, not whole vectors
        "table": slopes.amax(1).tolist(),
    }


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())


NAMES = ("BERT", "mini-zh", "GPT", "BiLSTM of 1", "BiLSTM of 2")


def _trials(plan: Plan) -> list[Trial]:
    return [Trial(name, partial(gradients, name), {"model": name, "tokens": TOKENS}) for name in NAMES]


def conclude_gradients(records: Mapping[str, Record]) -> Conclusion:
    """BERT must depend on everything from its first layer on, a BiLSTM's first layer on one side a number."""
    berts = [layer for name in ("BERT", "mini-zh") for layer in records[name]["layers"]]
    everywhere = all(layer["zero_numbers"] == 0 for layer in berts)
    first, second = records["BiLSTM of 1"]["layers"][0], records["BiLSTM of 2"]["layers"][1]
    one_sided = first["both"] == 0
    control = all(one["zero"]["right"] == 1 and one["zero"]["left"] == 0 for one in records["GPT"]["layers"])
    verdict = Verdict.SUPPORTED if everywhere and one_sided and control else Verdict.NOT_SUPPORTED
    least = min(min(map(min, layer["table"])) for layer in berts)
    says = Text(
        f"{'Supported' if verdict == Verdict.SUPPORTED else 'Not supported'}: of all gradients of BERT's layers, "
        f"random and trained, {100 * max(one['zero_numbers'] for one in berts):.3g} % are exactly 0 (the least in the "
        f"tables is {least:.1g}), and {100 * min(one['both'] for one in berts):.3g} % of the numbers depend on both "
        f"sides already in layer 1. In a BiLSTM's first layer {100 * first['both']:.3g} % do: "
        f"{100 * first['left_only']:.3g} % of the numbers depend on the left only, {100 * first['right_only']:.3g} % "
        f"on the right only. {conclude_second(second).en} GPT has exactly 0 at "
        f"{100 * min(one['zero']['right'] for one in records['GPT']['layers']):.3g} % of the places to the right.",
        f"{'成立' if verdict == Verdict.SUPPORTED else '不成立'}：BERT（随机与训练好的）各层的所有梯度中，恰好为 0 的"
        f"占 {100 * max(one['zero_numbers'] for one in berts):.3g} %（表中最小值 {least:.1g}）；从第 1 层起就有 "
        f"{100 * min(one['both'] for one in berts):.3g} % 的数同时依赖两侧。BiLSTM 第一层只有 "
        f"{100 * first['both']:.3g} %：{100 * first['left_only']:.3g} % 的数只依赖左边，"
        f"{100 * first['right_only']:.3g} % 只依赖右边。{conclude_second(second).zh}GPT 对右侧的梯度有 "
        f"{100 * min(one['zero']['right'] for one in records['GPT']['layers']):.3g} % 恰好为 0。",
    )
    return Conclusion(verdict, says, (conclude_bars(records),), conclude_table(records))


def conclude_second(layer: Record) -> Text:
    """What the second layer of a BiLSTM does to the claim."""
    share = 100 * layer["both"]
    if layer["both"] < 1:
        return Text(
            f"In its second layer {share:.3g} % do, so that even two layers are not what BERT is.",
            f"第二层为 {share:.3g} %，可见叠两层也不等于 BERT。",
        )
    return Text(
        "But in its second layer all of them do: two layers of BiLSTM are as bidirectional as BERT, and only the "
        "single layer is “shallow”.",
        "但到第二层就全部依赖两侧了：叠两层的 BiLSTM 与 BERT 同样是双向的，只有单层才是“浅层”双向。",
    )


def conclude_bars(records: Mapping[str, Record]) -> Bars:
    """Shares of numbers by what they depend on, layer by layer."""
    shown = [(name, number) for name in ("BERT", "GPT", "BiLSTM of 2") for number in range(2)]
    layers = [records[name]["layers"][number] for name, number in shown]
    kinds = {
        "left_only": Text("left side only", "只依赖左侧"),
        "right_only": Text("right side only", "只依赖右侧"),
        "both": Text("both sides", "依赖两侧"),
    }
    return Bars(
        Text("On which side of a token its numbers depend", "一个词的各个数依赖哪一侧"),
        Text("share of numbers (%)", "数的占比（%）"),
        tuple(both(f"{name.partition(' of')[0]} {number + 1}") for name, number in shown),
        tuple(
            Series(text, tuple(Point(place, 100 * layer[kind]) for place, layer in enumerate(layers)))
            for kind, text in kinds.items()
        ),
        Text(
            "The figure after a name is the layer: compare the first layers of BERT and of the BiLSTM.",
            "名称后的数字是层号：比较 BERT 与 BiLSTM 的第一层。",
        ),
    )


def conclude_table(records: Mapping[str, Record]) -> Table:
    """Exact zeros by place."""
    rows = []
    for name in NAMES:
        for number, layer in enumerate(records[name]["layers"]):
            zero = [f"{100 * layer['zero'][place]:.4g}" for place in ("left", "on", "right")]
            rows.append((name, str(number + 1), *zero, f"{100 * layer['both']:.4g}"))
    columns = (
        Text("model", "模型"),
        Text("layer", "层"),
        Text("zero left of the diagonal (%)", "对角线左侧为零（%）"),
        Text("zero on it (%)", "对角线上为零（%）"),
        Text("zero right of it (%)", "右侧为零（%）"),
        Text("numbers that depend on both sides (%)", "依赖两侧的数（%）"),
    )
    return Table(columns, tuple(rows))


PARTS = (Part("gradients", _trials, conclude_gradients),)
