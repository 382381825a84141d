"""What BERT is made of: every parameter counted, and a look for parts that belong to the Transformer alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.pictures import Bars, Point, Series
from unmask.lab.words import Text, both
from unmask.models.bert import Bert, num_parameters
from unmask.models.fetch import fetch
from unmask.models.folder import load_model
from unmask.models.init import assemble, build_model
from unmask.models.settings import BertSettings, ModelSettings, TransformerSettings, bert_preset, transformer_preset
from unmask.models.transformer import Transformer
from unmask.models.weights import read_weights
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.batch import Batch
from unmask.nn.block import DecoderBlock, EncoderBlock
from unmask.nn.embeddings import Embeddings
from unmask.nn.ffn import FeedForward

#: Size and vocabulary; then what was published: with the pooler, and with the MLM and NSP heads too (None: not given).
BUILT = {
    "BERT-base": ("base", 30522, 109_482_240, 110_106_428),
    "BERT-large": ("large", 30522, 335_141_888, 336_226_108),
    "BERT-base, Chinese": ("base", 21128, 102_267_648, None),
}
FILES = ("minilm", "mini-zh")
_PRETRAINING = [{"kind": "mlm"}, {"kind": "nsp"}]


def formula(settings: BertSettings) -> Record:
    """What each part must have, from d, L, v and the width of the feed-forward network alone."""
    d, v, f, layers = settings.hidden_size, settings.vocab_size, settings.ffn_size, settings.num_layers
    heads = {"mlm": d * d + d + 2 * d + v, "nsp": 2 * d + 2}
    return {
        "embeddings": (v + 512 + 2) * d + 2 * d,
        "attention": layers * 4 * (d * d + d),
        "feed-forward": layers * (2 * d * f + f + d),
        "norms": layers * 4 * d,
        "pooler": d * d + d if settings.pooler else 0,
        "heads": sum(heads[head.kind] for head in settings.heads),
    }


def counted(model: nn.Module) -> Record:
    """What each part has: every parameter of the model is put down under one of the names."""
    found = dict.fromkeys(("embeddings", "attention", "feed-forward", "norms", "pooler", "heads"), 0)
    for name, parameter in model.named_parameters():
        steps = name.split(".")
        if steps[0] == "heads" or steps[1] in ("embeddings", "pooler"):
            part = "heads" if steps[0] == "heads" else steps[1]
        else:
            part = {"self_attention": "attention", "ffn": "feed-forward"}.get(steps[4], "norms")
        found[part] += parameter.numel()
    return found


def built(name: str) -> Record:
    """A published size, without memory for its weights."""
    size, vocab, encoder, everything = BUILT[name]
    settings = BertSettings.parse({**bert_preset(size, vocab).model_dump(mode="json"), "heads": _PRETRAINING})
    with torch.device("meta"):
        model = assemble(settings)
    return {**_described(model, settings), "published": {"encoder": encoder, "everything": everything}, "file": None}


def stored(name: str) -> Record:
    """A model folder: the tensors in its file against the model they make."""
    folder = fetch(name)
    model, _ = load_model(folder)
    assert isinstance(model, Bert)
    with read_weights(folder) as weights:
        # A row of numbers from 0 to 511, which some files carry, is no parameter.
        file = sum(math.prod(shape) for one, shape in weights.shapes.items() if not one.endswith("position_ids"))
    return {**_described(model, model.settings), "published": {"encoder": None, "everything": None}, "file": file}


def _described(model: nn.Module, settings: BertSettings) -> Record:
    blocks = [block for block in model.modules() if isinstance(block, EncoderBlock)]
    kinds = (MultiHeadAttention, FeedForward, nn.LayerNorm)
    parts = counted(model)
    return {
        "parts": parts,
        "formula": formula(settings),
        "encoder": sum(parts.values()) - parts["heads"],
        "everything": num_parameters(model),
        "layers": len(blocks),
        "each": sorted(
            {tuple(sum(isinstance(one, kind) for one in block.modules()) for kind in kinds) for block in blocks}
        ),
    }


def _table_trials(plan: Plan) -> list[Trial]:
    made = [Trial(name, partial(built, name), {"size": size, "vocab": v}) for name, (size, v, *_) in BUILT.items()]
    return made + [Trial(name, partial(stored, name), {"folder": name}) for name in FILES]


def conclude_counts(records: Mapping[str, Record]) -> Conclusion:
    """Every total must agree to the unit."""
    wrong = [
        f"{name}: {what}"
        for name, record in records.items()
        for what, one, other in (
            *((part, record["parts"][part], record["formula"][part]) for part in record["parts"]),
            *((kind, record[kind], record["published"][kind]) for kind in ("encoder", "everything")),
            ("file", record["everything"], record["file"]),
        )
        if other is not None and one != other
    ]
    base = records["BERT-base"]
    twelve = base["layers"] == 12 and [list(one) for one in base["each"]] == [[1, 1, 2]]
    verdict = Verdict.NOT_SUPPORTED if wrong or not twelve else Verdict.SUPPORTED
    large, chinese = records["BERT-large"], records["BERT-base, Chinese"]
    each = " / ".join("+".join(map(str, one)) for one in base["each"])
    shares = {part: 100 * count / base["everything"] for part, count in base["parts"].items()}
    says = Text(
        f"Counted tensor by tensor: BERT-base has {base['encoder']:,} parameters with its pooler and "
        f"{base['everything']:,} with the MLM and NSP heads, BERT-large {large['encoder']:,} and "
        f"{large['everything']:,}, the Chinese base {chinese['encoder']:,}. "
        + (f"These differ: {'; '.join(wrong)}. " if wrong else "All agree with formula, publication and files. ")
        + f"The base has {base['layers']} layers of (attention + feed-forward + norms) = {each}; "
        f"{shares['feed-forward']:.0f} % of it is feed-forward, {shares['attention']:.0f} % attention, "
        f"{shares['embeddings']:.0f} % embeddings.",
        f"逐个张量计数：BERT-base 含 pooler 共 {base['encoder']:,} 个参数，加上 MLM 与 NSP 头共 "
        f"{base['everything']:,}；"
        f"BERT-large 为 {large['encoder']:,} 与 {large['everything']:,}；中文 base 为 {chinese['encoder']:,}。"
        + (f"不一致的有：{'；'.join(wrong)}。" if wrong else "与公式、公布的数字和文件全部一致。")
        + f"base 有 {base['layers']} 层，每层（注意力 + 前馈 + 归一化）= {each}；其中前馈占 "
        f"{shares['feed-forward']:.0f} %，注意力 {shares['attention']:.0f} %，嵌入 {shares['embeddings']:.0f} %。",
    )
    return Conclusion(verdict, says, (conclude_shares(records),), conclude_table(records))


def conclude_shares(records: Mapping[str, Record]) -> Bars:
    """Where the parameters are."""
    names = {
        "embeddings": Text("embeddings", "嵌入"),
        "attention": Text("attention", "注意力"),
        "feed-forward": Text("feed-forward", "前馈"),
        "norms": Text("norms", "归一化"),
        "pooler": both("pooler"),
        "heads": Text("heads", "任务头"),
    }
    return Bars(
        Text("Where BERT's parameters are", "BERT 的参数在哪里"),
        Text("share of all parameters (%)", "占全部参数的比例（%）"),
        tuple(names.values()),
        tuple(
            Series(
                both(name),
                tuple(
                    Point(place, 100 * record["parts"][part] / record["everything"]) for place, part in enumerate(names)
                ),
            )
            for name, record in records.items()
        ),
        Text("The bars of one colour add up to 100 %.", "同一颜色的柱子合计 100 %。"),
    )


def conclude_table(records: Mapping[str, Record]) -> Table:
    """The counts themselves."""
    parts = ("embeddings", "attention", "feed-forward", "norms", "pooler", "heads")
    chinese = ("嵌入", "注意力", "前馈", "归一化", "pooler", "任务头")
    columns = (
        Text("model", "模型"),
        Text("layers", "层数"),
        *map(Text, parts, chinese),
        Text("with the pooler", "含 pooler"),
        Text("with all heads", "含全部头"),
    )
    rows = []
    for name, record in records.items():
        counts = [*(record["parts"][part] for part in parts), record["encoder"], record["everything"]]
        rows.append((name, str(record["layers"]), *(f"{count:,}" for count in counts)))
    return Table(columns, tuple(rows))


#: What S1 draws, and last what it does not.
LOOKED_FOR = {
    "token embeddings": Text("token embeddings", "词嵌入"),
    "segment embeddings": Text("segment embeddings", "段嵌入"),
    "positions added": Text("positions added to the embeddings", "嵌入上加位置"),
    "sinusoids": Text("fixed sinusoids", "固定的正余弦"),
    "encoder blocks": Text("encoder blocks", "编码器块"),
    "ReLU": Text("ReLU in the feed-forward network", "前馈网络用 ReLU"),
    "causal decoder": Text("decoder that hides later tokens", "遮住后面词的解码器"),
    "cross-attention": Text("cross-attention", "交叉注意力"),
    "output over the vocabulary": Text("output over the vocabulary", "词表上的输出"),
    "learned positions": Text("learned table of positions", "可学习的位置表"),
    "GELU": Text("GELU in the feed-forward network", "前馈网络用 GELU"),
}
NOT_IN_S1 = ("learned positions", "GELU")


def _small(settings: BertSettings | TransformerSettings, changes: Mapping[str, Any]) -> ModelSettings:
    """The same kinds of parts, fewer of them: what they do needs no 100 million parameters."""
    return type(settings).parse({**settings.model_dump(mode="json"), **changes})


@torch.no_grad()
def looked_for(name: str) -> Record:
    """Look for each part in a model: by what is there, and by what it does."""
    if name == "Transformer-base":
        shape = {"source_vocab_size": 100, "target_vocab_size": 100, "num_encoder_layers": 2, "num_decoder_layers": 2}
        small = build_model(_small(transformer_preset("base", 37000), shape)).double().eval()
        assert isinstance(small, Transformer)
        return _transformer(small)
    if name == "BERT-base":
        bert = build_model(_small(bert_preset("base"), {"vocab_size": 100, "num_layers": 2, "heads": _PRETRAINING}))
        bert, tensors = bert.double().eval(), []
    else:
        bert, _ = load_model(fetch(name), dtype=torch.float64)
        with read_weights(fetch(name)) as weights:
            tensors = list(weights.shapes)
    assert isinstance(bert, Bert)
    return _bert(bert, tensors)


def _bert(model: Bert, tensors: list[str]) -> Record:
    ids = [2, 7, 11, 13, 17, 3]
    before, after = (model(Batch.of([[*ids[:-1], last]])).sequence for last in (3, 19))
    named = any("crossattention" in one or "decoder.layer" in one for one in tensors)
    return {
        **_embedded(model.encoder.embeddings),
        **_function(model),
        "encoder blocks": any(isinstance(one, EncoderBlock) for one in model.modules()),
        "causal decoder": not bool((before[:-1] != after[:-1]).any()),
        "cross-attention": named or any(isinstance(one, DecoderBlock) for one in model.modules()),
        "output over the vocabulary": "mlm" in model.heads
        and model.masked_token_logits(before).shape[-1] == model.settings.vocab_size,
    }


def _transformer(model: Transformer) -> Record:
    ids = [2, 7, 11, 13, 17, 3]
    memory = model.encode(Batch.of([ids]))
    before, after = (model.decode(Batch.of([[*ids[:-1], last]]), memory) for last in (3, 19))
    other = model.decode(Batch.of([ids]), model.encode(Batch.of([[19, *ids[1:]]])))
    return {
        **_embedded(model.source_embeddings),
        **_function(model),
        "encoder blocks": any(isinstance(one, EncoderBlock) for one in model.modules()),
        "causal decoder": not bool((before[:-1] != after[:-1]).any()),
        "cross-attention": bool((model.decode(Batch.of([ids]), memory) != other).any()),
        "output over the vocabulary": model.logits(before).shape[-1] == model.settings.target_vocab_size,
    }


def _embedded(embeddings: Embeddings) -> Record:
    """What stands in front of the first block."""
    hidden, places = embeddings.token.embedding_dim, torch.arange(6)
    nothing = torch.zeros(6, hidden, dtype=torch.float64)
    added = embeddings.positions.embed(nothing, places, places, 6)
    waves = [
        [(math.cos if pair % 2 else math.sin)(place / 10000 ** ((pair - pair % 2) / hidden)) for pair in range(hidden)]
        for place in range(6)
    ]
    return {
        "token embeddings": embeddings.token.num_embeddings > 1,
        "segment embeddings": embeddings.segment is not None,
        "positions added": bool(added.any()),
        "sinusoids": bool((added - torch.tensor(waves, dtype=torch.float64)).abs().max() < 1e-5),
        "learned positions": any(one.requires_grad and len(one) > 1 for one in embeddings.positions.parameters()),
    }


def _function(model: nn.Module) -> Record:
    """Which function stands between the two matrices of the feed-forward network, by what comes out."""
    module = next(one for one in model.modules() if isinstance(one, FeedForward))
    rows = torch.randn(4, module.inner.in_features, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inner, out = module.inner(8 * rows), module(8 * rows)

    def same(activated: Tensor) -> bool:
        return bool((module.outer(activated) - out).abs().max() < 1e-10)

    return {"ReLU": same(inner.clamp(min=0)), "GELU": same(inner * (1 + torch.erf(inner / math.sqrt(2))) / 2)}


def _look_trials(plan: Plan) -> list[Trial]:
    return [
        Trial(name, partial(looked_for, name), {"model": name}) for name in ("BERT-base", "Transformer-base", *FILES)
    ]


def conclude_not_bert(records: Mapping[str, Record]) -> Conclusion:
    """S1's parts that BERT has, and those that only the Transformer has."""
    drawn = [part for part in LOOKED_FOR if part not in NOT_IN_S1]
    bert, transformer = records["BERT-base"], records["Transformer-base"]
    has, lacks = [part for part in drawn if bert[part]], [part for part in drawn if not bert[part]]
    verdict = Verdict.DEPENDS if has and lacks else Verdict.SUPPORTED if has else Verdict.NOT_SUPPORTED
    missing = [part for part in NOT_IN_S1 if bert[part]]
    other = [
        (name, part) for name in FILES for part in LOOKED_FOR if records[name][part] != bert[part]
    ]  # files without a head say nothing against BERT
    says = Text(
        f"Of the {len(drawn)} parts that S1 draws, BERT has {len(has)}: {conclude_list(has).en}. It does not have "
        f"{conclude_list(lacks).en}; {sum(transformer[part] for part in lacks)} of these {len(lacks)} are in the "
        f"Transformer. What BERT has and S1 does not draw: {conclude_list(missing).en}. The real files say the same"
        + (f", but for {', '.join(f'{name} ({LOOKED_FOR[part].en})' for name, part in other)}." if other else "."),
        f"S1 画出的 {len(drawn)} 个部件中，BERT 有 {len(has)} 个：{conclude_list(has).zh}。没有的是："
        f"{conclude_list(lacks).zh}；这 {len(lacks)} 个中有 {sum(transformer[part] for part in lacks)} 个在 "
        f"Transformer 里。"
        f"BERT 有而 S1 没画的：{conclude_list(missing).zh}。真实文件的结果与此一致"
        + (f"，例外：{'、'.join(f'{name}（{LOOKED_FOR[part].zh}）' for name, part in other)}。" if other else "。"),
    )
    columns = (Text("part", "部件"), both("S1"), *(both(name) for name in records))
    rows = [
        (
            f"{text.en} · {text.zh}",
            "–" if part in NOT_IN_S1 else "✓",
            *("✓" if record[part] else "–" for record in records.values()),
        )
        for part, text in LOOKED_FOR.items()
    ]
    return Conclusion(verdict, says, (), Table(columns, tuple(rows)))


def conclude_list(parts: list[str]) -> Text:
    """Names of parts."""
    if not parts:
        return Text("none", "无")
    return Text(", ".join(LOOKED_FOR[part].en for part in parts), "、".join(LOOKED_FOR[part].zh for part in parts))


PARTS = (
    Part("parameter-table", _table_trials, conclude_counts),
    Part("not-bert", _look_trials, conclude_not_bert),
)
