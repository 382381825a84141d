"""Where queries, keys and values come from, and whether the decoder looks where a translator would."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.by_hand import difference, heads_of, plain_linear, plain_weights
from unmask.lab.kit.effects import by_seed, named, paired, sided
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.pictures import Heat
from unmask.lab.words import Text
from unmask.models.init import build_model
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch
from unmask.nn.block import DecoderBlock
from unmask.nn.record import record_attention

SOURCE, TARGET, HIDDEN, HEADS = 11, 7, 60, 5
TOLERANCE = 1e-12
#: The made-up language: a start sign, then so many words on either side.
START, WORDS = 0, 30
LAYERS = 2
#: A sentence is drawn and counted with this many words.
SHORTEST, LONGEST, SHOWN = 6, 12, 9
TESTED = 300  # sentences


def model_of(hidden: int, heads: int, vocab: int, seed: int) -> Transformer:
    """Two layers on either side."""
    sizes = {"hidden_size": hidden, "num_heads": heads, "ffn_size": 2 * hidden, "max_length": 64}
    layers = {"num_encoder_layers": LAYERS, "num_decoder_layers": LAYERS}
    vocabularies = {"source_vocab_size": vocab, "target_vocab_size": vocab}
    dropout = {"embedding": 0.0, "residual": 0.0, "attention": 0.0}
    model = build_model(TransformerSettings.parse({**sizes, **layers, **vocabularies, "dropout": dropout}), seed=seed)
    assert isinstance(model, Transformer)
    return model.eval()


class Watched:
    """What goes into a decoder block, through its parts, and out of them."""

    def __init__(self, block: DecoderBlock) -> None:
        self.seen: dict[str, Tensor] = {}
        self.handles = [
            block.register_forward_pre_hook(lambda _, given: self._keep("input", given[0])),
            block.around_attention.register_forward_hook(lambda _, __, out: self._keep("normed", out)),
            block.cross_attention.attend.register_forward_hook(self._attended),
            block.cross_attention.register_forward_hook(lambda _, __, out: self._keep("output", out)),
        ]

    def _keep(self, name: str, value: Tensor) -> None:
        self.seen[name] = value.detach()

    def _attended(self, _: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        for name, value in zip(("q", "k", "v"), given, strict=False):
            self._keep(name, value[0])  # (N, T or S, D)
        self._keep("mixed", out[0])


@torch.no_grad()
def shapes(layer: int) -> Record:
    """One decoder block, its parts by hand beside the library's."""
    model = model_of(HIDDEN, HEADS, 50, 0).double()
    block = model.decoder.blocks[layer]
    assert isinstance(block, DecoderBlock)
    watched, generator = Watched(block), torch.Generator().manual_seed(5)
    source, target, other = (torch.randint(50, (n,), generator=generator).tolist() for n in (SOURCE, TARGET, TARGET))
    with record_attention(model) as trace:
        model(Batch.of([source]), Batch.of([target]))
    weights = trace.attention[f"decoder.blocks.{layer}.cross_attention"].weights[0]
    one = dict(watched.seen)
    memory, made = model.encode(Batch.of([source])).rows, block.cross_attention.projections
    model(Batch.of([source]), Batch.of([other]))
    moved = max(difference(watched.seen[name], one[name]) for name in ("k", "v"))

    def projected(rows: Tensor, linear: nn.Linear) -> Tensor:
        return heads_of(plain_linear(rows, linear), HEADS)

    formula = plain_weights(one["q"], one["k"])
    plain = one["q"] @ one["k"].transpose(1, 2) @ one["v"]
    return {
        "shapes": {name: list(one[name].shape) for name in ("q", "k", "v", "output")} | {"weights": [*weights.shape]},
        "q_from_same_block": difference(one["q"], projected(one["normed"], made.query)),
        "q_from_block_before": difference(one["q"], projected(one["input"], made.query)),
        "k_from_encoder": difference(one["k"], projected(memory, made.key)),
        "v_from_encoder": difference(one["v"], projected(memory, made.value)),
        "k_minus_v": difference(one["k"], one["v"]),
        "weights_by_hand": difference(weights, formula),
        "row_sums": difference(weights.sum(-1), torch.ones(HEADS, TARGET, dtype=torch.float64)),
        "mixed_by_hand": difference(one["mixed"], formula @ one["v"]),
        "without_softmax": difference(one["mixed"], plain),
        "moved_with_target": moved,
    }


def sentences(count: int, generator: torch.Generator) -> list[tuple[list[int], list[int]]]:
    """Words of a made-up language and their translation: each has one word for it, and the order is turned round."""
    found = []
    for _ in range(count):
        length = int(torch.randint(SHORTEST, LONGEST + 1, (1,), generator=generator))
        words = (torch.randperm(WORDS, generator=generator)[:length] + 1).tolist()
        found.append((words, [word + WORDS for word in reversed(words)]))
    return found


def alignment(updates: int, seed: int) -> Record:
    """Learn to translate, then see which source word each target row looks at most."""
    generator = seeded(seed)
    model = model_of(128, 4, 2 * WORDS + 1, seed)

    def loss(_: int) -> Tensor:
        source, target, told = _batch(sentences(64, generator))
        return F.cross_entropy(model(source, target), told)

    fit(model, loss, Fit(updates))
    held_out = torch.Generator().manual_seed(777)
    chosen, tested = (_looks(model, sentences(TESTED, held_out)) for _ in range(2))
    better = max(range(LAYERS), key=lambda layer: chosen["hits"][layer])
    example = ([*range(1, SHOWN + 1)], [word + WORDS for word in range(SHOWN, 0, -1)])
    with torch.inference_mode(), record_attention(model) as trace:
        model(*_batch([example])[:2])
    shown = [trace.attention[_name(layer)].weights[0].mean(0) for layer in range(LAYERS)]
    return {
        "hits": tested["hits"][better],
        "by_layer": tested["hits"],
        "better": better,
        "chance": tested["chance"],
        "words": tested["words"],
        "right": tested["right"],
        "shown": [[[round(value, 4) for value in row] for row in one.tolist()] for one in shown],
    }


def _batch(some: list[tuple[list[int], list[int]]]) -> tuple[Batch, Batch, Tensor]:
    target = Batch.of([[START, *words[:-1]] for _, words in some])
    return Batch.of([words for words, _ in some]), target, torch.tensor([word for _, words in some for word in words])


def _name(layer: int) -> str:
    return f"decoder.blocks.{layer}.cross_attention"


@torch.inference_mode()
def _looks(model: Transformer, some: list[tuple[list[int], list[int]]]) -> dict[str, Any]:
    """Shares of rows whose largest weight lies on the word that they must translate; the middle word does not count."""
    source, target, told = _batch(some)
    with record_attention(model) as trace:
        right = float((model(source, target).argmax(-1) == told).float().mean())
    hits, chance, words = [0] * LAYERS, 0.0, 0
    for number, (given, _) in enumerate(some):
        length = len(given)
        rows = [row for row in range(length) if length - 1 - row != row]
        words, chance = words + len(rows), chance + len(rows) / length
        for layer in range(LAYERS):
            most = trace.attention[_name(layer)].weights[number].mean(0).argmax(-1).tolist()
            hits[layer] += sum(most[row] == length - 1 - row for row in rows)
    return {"hits": [one / words for one in hits], "chance": chance / words, "words": words, "right": right}


def _shape_trials(plan: Plan) -> list[Trial]:
    return [Trial(f"decoder block {layer + 1}", partial(shapes, layer), {"layer": layer}) for layer in range(LAYERS)]


def _alignment_trials(plan: Plan) -> list[Trial]:
    updates = plan.at(20, 400)
    return [
        Trial(named("translator", seed), partial(alignment, updates, seed), {"updates": updates}) for seed in range(3)
    ]


def conclude_shapes(records: Mapping[str, Record]) -> Conclusion:
    """Where each comes from, block by block, and the details on which the notes differ."""
    found = list(records.values())
    names = [name for name in found[0] if name != "shapes"]
    most = {name: max(record[name] for record in found) for name in names}
    least = {name: min(record[name] for record in found) for name in names}
    head = HIDDEN // HEADS
    wanted = {"q": [HEADS, TARGET, head], "k": [HEADS, SOURCE, head], "v": [HEADS, SOURCE, head]}
    wanted |= {"output": [TARGET, HIDDEN], "weights": [HEADS, TARGET, SOURCE]}
    shaped = all(record["shapes"] == wanted for record in found)
    same, before = most["q_from_same_block"] <= TOLERANCE, most["q_from_block_before"] <= TOLERANCE
    encoder = max(most["k_from_encoder"], most["v_from_encoder"], most["moved_with_target"]) <= TOLERANCE
    right = shaped and encoder and (same or before)
    facts = (
        (Text("Q from the same block's self-attention (S1)", "Q 取自同一块的自注意力（S1）"), same),
        (Text("Q from the block before (S3-5.2)", "Q 取自上一个块（S3-5.2）"), before),
        (Text("K and V from the encoder's output, whatever the target", "K、V 取自编码器输出，与目标无关"), encoder),
        (Text("K = V after projection", "投影之后 K = V"), most["k_minus_v"] <= TOLERANCE),
        (
            Text("q·kᵀ·v without softmax is the output (S2-17)", "不做 softmax 的 q·kᵀ·v 就是输出（S2-17）"),
            most["without_softmax"] <= TOLERANCE,
        ),
        (Text("rows of weights sum to 1", "权重每行和为 1"), most["row_sums"] <= TOLERANCE),
    )
    true, false = (
        Text(
            "; ".join(one.en for one, holds in facts if holds is wish) or "none",
            "；".join(one.zh for one, holds in facts if holds is wish) or "无",
        )
        for wish in (True, False)
    )
    says = Text(
        f"In both decoder blocks {TARGET} target rows look at {SOURCE} source rows: weights "
        f"{'have' if shaped else 'do not have'} the shape {TARGET} × {SOURCE} a head. Within {TOLERANCE:.0e}, true: "
        f"{true.en}. Not true: {false.en}. Recomputed by hand, Q differs by {most['q_from_same_block']:.1g} under S1 "
        f"and by at least {least['q_from_block_before']:.2g} under S3-5.2.",
        f"两个解码器块里都是 {TARGET} 个目标行看 {SOURCE} 个源行：每个头的权重形状"
        f"{'是' if shaped else '不是'} {TARGET} × {SOURCE}。在 {TOLERANCE:.0e} 以内成立的：{true.zh}。不成立的："
        f"{false.zh}。"
        f"手工重算的 Q，按 S1 相差 {most['q_from_same_block']:.1g}，按 S3-5.2 至少相差 "
        f"{least['q_from_block_before']:.2g}。",
    )
    rows = tuple((name.replace("_", " "), *(f"{record[name]:.1e}" for record in found)) for name in names)
    columns = (Text("largest difference", "最大差"), Text("block 1", "第 1 块"), Text("block 2", "第 2 块"))
    return Conclusion(Verdict.SUPPORTED if right else Verdict.NOT_SUPPORTED, says, (), Table(columns, rows))


def conclude_alignment(records: Mapping[str, Record]) -> Conclusion:
    """Does the largest weight lie on the word that is being translated, more often than by place or by chance?"""
    hits, chance = (by_seed(records, "translator", name) for name in ("hits", "chance"))
    effect = paired(hits, chance)
    words = min(int(record["words"]) for record in records.values())
    signs = {hit > record["chance"] for record in records.values() for hit in record["by_layer"]}
    verdict = sided(effect) if words >= 50 else Verdict.NOT_VISIBLE
    if verdict is Verdict.SUPPORTED and len(signs) > 1:
        verdict = Verdict.DEPENDS
    first = records[named("translator", 0)]
    share, right = 100 * sum(hits) / len(hits), 100 * sum(by_seed(records, "translator", "right")) / len(hits)
    layers = [
        100 * sum(record["by_layer"][layer] for record in records.values()) / len(hits) for layer in range(LAYERS)
    ]
    english = {
        Verdict.SUPPORTED: "Cross-attention aligns words here.",
        Verdict.NOT_SUPPORTED: "Cross-attention does not align words here.",
        Verdict.DEPENDS: "One layer aligns words, not every one.",
        Verdict.NOT_VISIBLE: "No alignment can be told from chance.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "这里的交叉注意力确实对齐了词。",
        Verdict.NOT_SUPPORTED: "这里的交叉注意力没有对齐词。",
        Verdict.DEPENDS: "有的层对齐了词，有的层没有。",
        Verdict.NOT_VISIBLE: "看不出与随机有别的对齐。",
    }[verdict]
    says = Text(
        f"{english} In the better layer the largest weight lies on the very word that the row must translate in "
        f"{share:.1f} % of {words} words, against {100 * chance[0]:.1f} % by chance (and none at the same place); "
        f"difference {effect.signed()}. Layer by layer: {layers[0]:.1f} % and {layers[1]:.1f} %. The translators get "
        f"{right:.1f} % of words right.",
        f"{chinese}较好的一层里，最大权重正落在该行要译的那个词上的，占 {words} 个词的 {share:.1f} %，随机是 "
        f"{100 * chance[0]:.1f} %，同一位置为零；差 {effect.signed()}。逐层看：{layers[0]:.1f} % 和 "
        f"{layers[1]:.1f} %。翻译模型译对 {right:.1f} % 的词。",
    )
    return Conclusion(verdict, says, tuple(_heat(first, layer) for layer in range(LAYERS)))


def _heat(record: Record, layer: int) -> Heat:
    words = tuple(f"w{number}" for number in range(1, SHOWN + 1))
    return Heat(
        Text(f"Cross-attention of decoder layer {layer + 1}", f"解码器第 {layer + 1} 层的交叉注意力"),
        words[::-1],
        words,
        tuple(tuple(row) for row in record["shown"][layer]),
        Text(
            "Words stand in reverse order in the other language: a translator that looks at the word in question "
            "draws the falling diagonal backwards, from upper right to lower left.",
            "另一种语言里词序相反：如果每行都看自己要译的词，就会画出从右上到左下的对角线。",
        ),
        Text("source word", "源词"),
        Text("word to be written", "要写的词"),
        Text("weight, mean over heads", "权重（各头平均）"),
    )


PARTS = (
    Part("shapes", _shape_trials, conclude_shapes),
    Part("alignment", _alignment_trials, conclude_alignment),
)
