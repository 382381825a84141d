"""Rows computed alone and in any order, and the time that waiting for the row before costs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.by_hand import plain_attention, plain_ffn, plain_norm
from unmask.lab.kit.speeds import Quartiles, quartiles, timed
from unmask.lab.pictures import Lines, Series
from unmask.lab.words import Text
from unmask.models.init import build_model
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Memory, Transformer
from unmask.nn.batch import Batch
from unmask.nn.block import DecoderBlock, EncoderBlock
from unmask.nn.layout import Layout
from unmask.nn.norm import PostNorm
from unmask.nn.plan import AttentionPlan

TOKENS, VOCAB = 16, 1000
LENGTHS, BATCHES = (16, 32, 64, 128, 256), (1, 16)
FROM = 32  # lengths from here on decide


def model_of(hidden: int) -> Transformer:
    """Two layers on either side, no dropout."""
    sizes = {"hidden_size": hidden, "num_heads": 4, "ffn_size": 4 * hidden, "max_length": 512, "activation": "gelu"}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    vocabularies = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB}
    dropout = {"embedding": 0.0, "residual": 0.0, "attention": 0.0}
    model = build_model(TransformerSettings.parse({**sizes, **layers, **vocabularies, "dropout": dropout}), seed=0)
    assert isinstance(model, Transformer)
    return model.eval()


@torch.no_grad()
def rows(side: str) -> Record:
    """Each row of a layer computed alone, in a random order, against the single pass."""
    model, generator = model_of(64).double(), torch.Generator().manual_seed(3)
    x, memory = torch.randn(2, TOKENS, 64, generator=generator, dtype=torch.float64).unbind(0)
    layout = Layout.ragged([TOKENS])
    block = (model.encoder if side == "encoder" else model.decoder).blocks[0]
    if isinstance(block, DecoderBlock):
        plans = [AttentionPlan.between(layout, layout, causal=causal) for causal in (True, False)]
        whole = block(x, plans[0], memory, plans[1])
    else:
        whole = block(x, AttentionPlan.between(layout, layout))
    order = torch.randperm(TOKENS, generator=generator).tolist()
    found = torch.empty_like(whole)
    for row in order:
        found[row] = alone(block, x, row, memory)
    return {"order": order, "apart": (found - whole).abs().amax(-1).tolist(), "size": float(whole.abs().max())}


def alone(block: object, x: Tensor, row: int, memory: Tensor) -> Tensor:
    """One row of a layer's output from the layer's input, and from no other row of its output."""
    assert isinstance(block, EncoderBlock | DecoderBlock)
    seen = x[: row + 1] if isinstance(block, DecoderBlock) else x
    out = _normed(block.around_attention, x[row : row + 1], plain_attention(block.self_attention, x[[row]], seen))
    if isinstance(block, DecoderBlock):
        out = _normed(block.around_cross, out, plain_attention(block.cross_attention, out, memory))
    return _normed(block.around_ffn, out, plain_ffn(block.ffn, out))[0]


def _normed(around: object, x: Tensor, out: Tensor) -> Tensor:
    assert isinstance(around, PostNorm)
    return plain_norm(around.norm, x + out)


@torch.inference_mode()
def seconds(batch: int, rounds: int) -> Record:
    """Of the encoder in both modes, of the decoder at once and step by step."""
    model, found = model_of(128), {}
    for length in LENGTHS:
        ids = torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(length))
        texts = Batch.of(ids.tolist())
        memory = model.encode(texts)
        runs = {
            "encoder, training": partial(_encode, model, texts, True),
            "encoder, evaluation": partial(_encode, model, texts, False),
            "decoder at once": partial(_at_once, model, texts, memory),
            "decoder in steps": partial(_steps, model, ids, memory),
        }
        found[str(length)] = timed(runs, rounds)
    return {"seconds": found, "threads": torch.get_num_threads()}


def _encode(model: Transformer, texts: Batch, training: bool) -> None:
    model.train(training)
    model.encode(texts)
    model.eval()


def _at_once(model: Transformer, texts: Batch, memory: Memory) -> None:
    model.logits(model.decode(texts, memory))


def _steps(model: Transformer, ids: Tensor, memory: Memory) -> None:
    state = model.start(memory)
    for place in range(ids.shape[1]):
        _, state = model.step(ids[:, place], state)


def _row_trials(plan: Plan) -> list[Trial]:
    return [Trial(f"{side} layer", partial(rows, side), {"side": side}) for side in ("encoder", "decoder")]


def _time_trials(plan: Plan) -> list[Trial]:
    rounds = plan.at(3, 7)
    return [Trial(f"batch of {size}", partial(seconds, size, rounds), {"rounds": rounds}) for size in BATCHES]


def conclude_rows(records: Mapping[str, Record]) -> Conclusion:
    """No row waits for another row of its own layer."""
    most = {name: max(record["apart"]) for name, record in records.items()}
    right = max(most.values()) <= 1e-12
    encoder, decoder = most["encoder layer"], most["decoder layer"]
    says = Text(
        f"Each of {TOKENS} rows computed alone, in a random order and by hand from the layer's input, is the row of "
        f"the single pass: within {encoder:.0e} in an encoder layer and {decoder:.0e} in a decoder layer. No row waits "
        "for another row of its own layer, so that self-attention is parallel in the full sense: its tokens depend on "
        "each other's input, not on each other's result."
        if right
        else f"A row computed alone is not that of the single pass: differences up to {encoder:.1e} in an encoder "
        f"layer and {decoder:.1e} in a decoder layer. Rows of one layer would have to wait for each other.",
        f"{TOKENS} 行各自单独计算（随机顺序，从该层输入手工算出），与一次算完的结果一致：编码器层相差不超过 "
        f"{encoder:.0e}，解码器层不超过 {decoder:.0e}。没有哪一行要等本层的另一行，自注意力是完全意义上的并行："
        "token 之间依赖的是彼此的输入，而不是彼此的结果。"
        if right
        else f"单独算出的行与一次算完的不一致：编码器层最多相差 {encoder:.1e}，解码器层最多相差 {decoder:.1e}。"
        "也就是说同一层的行要互相等待。",
    )
    return Conclusion(Verdict.SUPPORTED if right else Verdict.NOT_SUPPORTED, says)


def conclude_time(records: Mapping[str, Record]) -> Conclusion:
    """Both modes of the encoder cost the same; steps cost more than the single pass."""
    cells = {(size, length): _cell(records, size, length) for size in BATCHES for length in LENGTHS}
    modes = [cell["encoder, training"].median / cell["encoder, evaluation"].median for cell in cells.values()]
    ratios = {where: cell["decoder in steps"].median / cell["decoder at once"].median for where, cell in cells.items()}
    deciding = [ratio for (_, length), ratio in ratios.items() if length >= FROM]
    apart = [cell["decoder at once"].below(cell["decoder in steps"]) for cell in cells.values()]
    alike = all(1 / 1.2 <= mode <= 1.2 for mode in modes)
    if max(ratios.values()) < 1.1:
        verdict = Verdict.NOT_SUPPORTED
    elif not any(apart):
        verdict = Verdict.NOT_VISIBLE
    else:
        verdict = Verdict.SUPPORTED if alike and min(deciding) >= 2 else Verdict.DEPENDS
    threads, longest = next(iter(records.values()))["threads"], LENGTHS[-1]
    english = "stays within 20 % of" if alike else "does not stay within 20 % of"
    chinese = "相差都在 20 % 以内" if alike else "相差不都在 20 % 以内"
    low, high = min(deciding), max(deciding)
    says = Text(
        f"The encoder in training mode {english} evaluation mode (ratios {min(modes):.2f} to {max(modes):.2f}). "
        f"Decoding step by step takes {low:.1f} to {high:.1f} times the time of the single pass at lengths from {FROM} "
        f"on ({ratios[1, longest]:.1f} for one text of {longest} tokens, {ratios[16, longest]:.1f} for a batch of 16; "
        f"{threads} threads). Passes that must wait for each other: 1 for the encoder and for the decoder over a known "
        f"target, {longest} for writing {longest} tokens.",
        f"编码器在训练模式和评估模式下的时间{chinese}（比值 {min(modes):.2f} 到 {max(modes):.2f}）。"
        f"长度 {FROM} 及以上时，解码器逐步算的时间是一次算完的 {low:.1f} 到 {high:.1f} 倍（{longest} 个 token，单句 "
        f"{ratios[1, longest]:.1f} 倍，每批 16 句 {ratios[16, longest]:.1f} 倍；{threads} 个线程）。"
        f"必须依次进行的前向次数：编码器 1 次，目标已知的解码器 1 次，写 {longest} 个 token 则要 {longest} 次。",
    )
    return Conclusion(verdict, says, tuple(_picture(size, cells) for size in BATCHES))


def _cell(records: Mapping[str, Record], size: int, length: int) -> dict[str, Quartiles]:
    found = records[f"batch of {size}"]["seconds"][str(length)]
    return {name: quartiles(values, 1e-3) for name, values in found.items()}


def _picture(size: int, cells: Mapping[tuple[int, int], Mapping[str, Quartiles]]) -> Lines:
    names = {
        "encoder, evaluation": Text("encoder", "编码器"),
        "decoder at once": Text("decoder, target known", "解码器，目标已知"),
        "decoder in steps": Text("decoder, step by step", "解码器，逐步"),
    }
    return Lines(
        Text(f"Time of a batch of {size}", f"一批 {size} 句的时间"),
        Text("tokens a text", "每句 token 数"),
        Text("milliseconds", "毫秒"),
        tuple(
            Series(name, tuple(cells[size, length][way].point(length) for length in LENGTHS))
            for way, name in names.items()
        ),
        Text(
            "What is computed at once lies below; the uppermost line waits for every token.",
            "一次算完的在下面；最上面的线每个 token 都要等。",
        ),
        log_x=True,
        log_y=True,
    )


PARTS = (
    Part("rows", _row_trials, conclude_rows),
    Part("time", _time_trials, conclude_time),
)
