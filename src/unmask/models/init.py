"""First values of a model's parameters, as the papers choose them."""

from __future__ import annotations

from typing import Protocol, assert_never, runtime_checkable

import torch
from torch import nn

from unmask.errors import SettingsError
from unmask.models.bert import Bert
from unmask.models.gpt import Gpt
from unmask.models.recurrent import LstmSeq2Seq
from unmask.models.settings import BertSettings, GptSettings, LstmSettings, ModelSettings, TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.embeddings import Embeddings
from unmask.nn.ffn import FeedForward
from unmask.nn.positions.absolute import LearnedPositions, sinusoids
from unmask.nn.settings import LayerSettings

Model = Bert | Gpt | Transformer | LstmSeq2Seq


@runtime_checkable
class SelfInitialised(Protocol):
    """A part that knows its own first values."""

    def initialise(self, generator: torch.Generator) -> None:
        """Set them."""


def build_model(settings: ModelSettings, seed: int = 0) -> Model:
    """A new model with fresh parameters; the same seed gives the same ones."""
    with torch.random.fork_rng(devices=[]):  # torch's own first values would draw from everybody's generator
        model = assemble(settings)
    initialise(model, settings, torch.Generator().manual_seed(seed))
    if isinstance(model, Transformer):
        quieten_branches(model, model.settings.init_branches)
    return model


@torch.no_grad()
def quieten_branches(model: Transformer, factor: float) -> None:
    """Make what each sub-layer adds smaller, at first: its last matrix is multiplied by `factor`.

    With a norm behind every sum, branches as loud as what they are added to drown it a little more in each layer, and
    the source is hardly heard at the other end until they have learned to be quiet.
    """
    for block in (*model.encoder.blocks, *model.decoder.blocks):
        for module in block.modules():
            match module:
                case MultiHeadAttention():
                    module.output.weight.mul_(factor)
                case FeedForward():
                    module.outer.weight.mul_(factor)
                case _:
                    pass


@torch.no_grad()
def start_as_sinusoids(model: Model) -> None:
    """Give a learned table of positions the Transformer's waves as its first values, as large as those of the tokens.

    From random values a model must learn, place by place, which places are neighbours; with waves, one matrix says so
    for all of them. A small model on a small budget otherwise hardly leaves the frequencies of single tokens.
    """
    for embeddings in (module for module in model.modules() if isinstance(module, Embeddings)):
        if not isinstance(embeddings.positions, LearnedPositions):
            raise SettingsError("positions_start: only a learned table of positions can start as sinusoids")
        table = embeddings.positions.table.weight
        places = torch.arange(table.shape[0], device=table.device)
        waves = sinusoids(places, table.shape[1])
        table.copy_(waves * (embeddings.token.weight.square().mean().sqrt() / waves.square().mean().sqrt()))


def assemble(settings: ModelSettings) -> Model:
    """A new model whose parameters are whatever torch left there."""
    match settings:
        case BertSettings():
            return Bert(settings)
        case GptSettings():
            return Gpt(settings)
        case TransformerSettings():
            return Transformer(settings)
        case LstmSettings():
            return LstmSeq2Seq(settings)
        case _:
            assert_never(settings)


def initialise(model: nn.Module, settings: LayerSettings | LstmSettings, generator: torch.Generator) -> None:
    """Set every parameter of `model`, in place. Draws only from `generator`."""
    std = _deviation(settings)
    for module in model.modules():
        match module:
            case nn.Linear():
                _matrix(module.weight, std, generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            case nn.Embedding():
                _embedding(module.weight, std, generator)
            case nn.LayerNorm() | nn.BatchNorm1d() | nn.RMSNorm():
                module.reset_parameters()
            case _:
                pass
    for module in model.modules():  # parts with first values of their own have the last word
        if isinstance(module, SelfInitialised):
            module.initialise(generator)


def _deviation(settings: LayerSettings | LstmSettings) -> float | None:
    """The standard deviation of a truncated normal; None for Xavier's rule, whose ranges follow from the shapes."""
    if isinstance(settings, LstmSettings):  # as the Transformer's, so that no comparison is one of first values
        return None
    match settings.init:
        case "truncated_normal":
            return settings.init_std
        case "xavier":
            return None
        case _:
            assert_never(settings.init)


def _matrix(weight: torch.Tensor, std: float | None, generator: torch.Generator) -> None:
    if std is None:
        nn.init.xavier_uniform_(weight, generator=generator)
    else:
        _truncated(weight, std, generator)


def _embedding(weight: torch.Tensor, std: float | None, generator: torch.Generator) -> None:
    if std is None:
        # N(0, 1/d): multiplied by sqrt(d) where embeddings are scaled, right as it is for the output layer.
        nn.init.normal_(weight, std=weight.shape[-1] ** -0.5, generator=generator)
    else:
        _truncated(weight, std, generator)


def _truncated(weight: torch.Tensor, std: float, generator: torch.Generator) -> None:
    """Normal, nothing beyond two standard deviations, as in Google's BERT."""
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)
