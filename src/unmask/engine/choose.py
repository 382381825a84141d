"""Which engine runs a model here: what was asked for, what the kernels can do, and what a short measurement says."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import time
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import torch
from torch import nn

from unmask.engine.binding import declare
from unmask.engine.compile import native
from unmask.engine.decoder import TABLED
from unmask.engine.encoder import ACTIVATIONS, FastEncoder, Precision
from unmask.engine.translator import FastTransformer
from unmask.errors import TaskError
from unmask.models.bert import Bert, BertEncoder, device_of
from unmask.models.init import build_model
from unmask.models.settings import BertSettings
from unmask.models.transformer import Transformer
from unmask.nn.attention import Projections
from unmask.nn.batch import Batch
from unmask.nn.block import DecoderBlock, DecoderStack, EncoderBlock, EncoderStack
from unmask.nn.embeddings import Embeddings
from unmask.nn.ffn import FeedForward
from unmask.nn.modes import evaluating, one_thread
from unmask.nn.positions import NoPositions
from unmask.nn.scores import Dot, ScaledDot

#: auto: the fastest that gives the same answers as torch.
Engine = Literal["auto", "torch", "fp32", "int8"]


@dataclass(frozen=True)
class Choice:
    """The engine that was chosen, and why, where it is not the one asked for."""

    engine: Literal["torch", "fp32", "int8"]
    why: str = ""

    def __str__(self) -> str:
        return f"engine {self.engine}" + (f" ({self.why})" if self.why else "")


def check_engine(engine: str) -> None:
    """TaskError for a word that is no engine."""
    if engine not in get_args(Engine):
        raise TaskError(f"engine is {', '.join(get_args(Engine))}; given {engine!r}")


@cache
def kernels() -> ctypes.CDLL | None:
    """The compiled kernels, ready to be called."""
    code = native().code
    return None if code is None else declare(code)


def choose(model: nn.Module, engine: Engine) -> Choice:
    """The engine for a model on this machine."""
    check_engine(engine)
    if engine == "torch":
        return Choice("torch")
    if kernels() is None:
        return Choice("torch", native().reason)
    if not isinstance(model, Bert | Transformer):
        return Choice("torch", f"the kernels know BERT and the Transformer, and this is a {type(model).__name__}")
    if device_of(model).type != "cpu":
        return Choice("torch", f"the kernels are for the CPU, and this model is on {device_of(model)}")
    if reason := unfit(model.encoder) if isinstance(model, Bert) else unfit_transformer(model):
        return Choice("torch", reason)
    return _faster(engine)


def _faster(engine: Engine) -> Choice:
    found = speeds()
    if engine == "int8":
        if "int8" not in found:
            why = "int8 needs a processor with AVX-512 VNNI"
        elif found["int8"] <= found["fp32"]:
            why = f"int8 is no faster here: {found['int8']:,.0f} tokens/s against {found['fp32']:,.0f}"
        else:
            return Choice("int8")
        return Choice(_faster("fp32").engine, why)
    if found["fp32"] <= found["torch"]:
        why = f"the kernels are no faster here: {found['fp32']:,.0f} tokens/s against {found['torch']:,.0f}"
        return Choice("torch", why)
    return Choice("fp32")


def unfit(encoder: nn.Module) -> str | None:
    """What of an encoder the kernels do not know; None if they know it all."""
    if not isinstance(encoder, BertEncoder):
        return "its encoder is not BERT's"
    return _unfit_kind(encoder) or _unfit_stack(encoder.stack, encoder.embeddings)


def unfit_transformer(model: Transformer) -> str | None:
    """The same of an encoder-decoder."""
    if type(model) is not Transformer or not isinstance(model.output, nn.Linear | None):
        return f"the kernels do not know what is special about a {type(model).__name__}"
    if model.adaptive is not None:
        return "the kernels know no adaptive output"
    for embeddings in (model.source_embeddings, model.target_embeddings):
        if type(embeddings.positions) not in TABLED:
            return f"the kernels know no {type(embeddings.positions).__name__} of a decoder"
    sides = ((model.encoder, model.source_embeddings), (model.decoder, model.target_embeddings))
    reasons = (_unfit_stack(stack, embeddings) for stack, embeddings in sides)
    return _unfit_kind(model) or next((reason for reason in reasons if reason), None)


def _unfit_kind(model: nn.Module) -> str | None:
    kinds = {tensor.dtype for tensor in model.parameters()}
    if kinds != {torch.float32}:
        return f"the kernels start from fp32, and this model has {', '.join(sorted(map(str, kinds)))}"
    return None


def _unfit_stack(stack: EncoderStack | DecoderStack, embeddings: Embeddings) -> str | None:
    for norm in (stack.norm, embeddings.norm):
        if not isinstance(norm, nn.LayerNorm | nn.Identity):
            return f"the kernels know no {type(norm).__name__}"
    first = stack.blocks[0]
    for block in stack.blocks:
        assert isinstance(block, EncoderBlock | DecoderBlock)
        reason = _unfit_block(block)
        if reason is None and type(block.around_attention) is not type(first.around_attention):
            reason = "its layers differ in where they normalise"
        if reason:
            return reason
    return None


def _unfit_block(block: EncoderBlock | DecoderBlock) -> str | None:
    attentions, around = [block.self_attention], [block.around_attention, block.around_ffn]
    if isinstance(block, DecoderBlock):
        attentions.append(block.cross_attention)
        around.append(block.around_cross)
    parts = {
        "projections": all(type(one.projections) is Projections for one in attentions),
        "score": all(type(one.attend.score) in (ScaledDot, Dot) for one in attentions),
        "positions in attention": all(type(one.attend.positions) is NoPositions for one in attentions),
        "feed-forward network": isinstance(block.ffn, FeedForward) and block.ffn.gate is None,
        "activation": getattr(block.ffn, "activation", None) in ACTIVATIONS,
        "norm": all(
            isinstance(getattr(one, "norm", None), nn.LayerNorm) and getattr(one, "residual", False) for one in around
        ),
    }
    unknown = [name for name, known in parts.items() if not known]
    return f"the kernels do not know its {unknown[0]}" if unknown else None


def accelerated_transformer(model: Transformer, precision: Precision) -> FastTransformer:
    """A model with the same torch modules, whose outputs are searched for by the kernels."""
    code = kernels()
    assert code is not None
    return FastTransformer.of(model, precision, code)


@torch.no_grad()
def accelerated(model: Bert, precision: Precision, *, spend: bool = False) -> Bert:
    """A model with the same heads on an encoder that computes with the kernels.

    With `spend` the given model's blocks are given up one by one as they are packed, so that memory holds each once.
    """
    code = kernels()
    assert code is not None
    fast = copy.copy(model)
    fast._modules = dict(model._modules)
    fast._modules["encoder"] = FastEncoder(model.encoder, precision, code, spend=spend)
    return fast.eval()


@cache
def speeds() -> dict[str, float]:
    """Tokens per second of each engine on one small block: what a processor can do, found out in some milliseconds.

    In one thread and by its own clock: what else the machine is doing must not decide.
    """
    settings = BertSettings(vocab_size=100, num_layers=1, hidden_size=384, num_heads=12, ffn_size=1536, max_length=64)
    model = build_model(settings)
    code = kernels()
    assert isinstance(model, Bert)
    assert code is not None
    batch = Batch.of([[7] * 32] * 2)
    with one_thread():
        encoders: dict[str, nn.Module] = {"fp32": FastEncoder(model.encoder, "fp32", code)}
        if code.unmask_has_int8():
            encoders["int8"] = FastEncoder(model.encoder, "int8", code)
        encoders["torch"] = model.encoder
        return {name: len(batch.ids) / seconds for name, seconds in _seconds(encoders, batch).items()}


@torch.inference_mode()
def _seconds(encoders: dict[str, nn.Module], batch: Batch) -> dict[str, float]:
    """The best time of each, taken in turns: what is slow for a while is slow for all."""
    best = dict.fromkeys(encoders, float("inf"))
    with contextlib.ExitStack() as modes:
        for encoder in encoders.values():
            modes.enter_context(evaluating(encoder))
        for _ in range(8):
            for name, encoder in encoders.items():
                started = time.thread_time()
                encoder(batch)
                best[name] = min(best[name], time.thread_time() - started)
    return best
