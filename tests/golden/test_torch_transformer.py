"""The encoder-decoder against `torch.nn.Transformer` with the same weights: outputs and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unmask.models.init import build_model
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch
from unmask.nn.settings import DropoutSettings

SOURCE, TARGET = (7, 3, 11, 5), (5, 2, 7, 13)
HIDDEN, HEADS, FFN, LAYERS = 70, 5, 53, 3


def settings(norm_place: str, tie: str = "none") -> TransformerSettings:
    return TransformerSettings(
        source_vocab_size=43,
        target_vocab_size=43,
        hidden_size=HIDDEN,
        num_heads=HEADS,
        ffn_size=FFN,
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        norm_place=norm_place,
        final_norm=True,  # torch's stacks end with one, pre-norm or not
        tie=tie,
        dropout=DropoutSettings.everywhere(0.0),
    )


def copy_weights(ours: Transformer, theirs: nn.Transformer) -> list[tuple[str, nn.Parameter, nn.Parameter, slice]]:
    """Ours into theirs; gives (name, our parameter, theirs, the rows that are ours) for comparing gradients."""
    hidden = ours.settings.hidden_size
    pairs: list[tuple[str, nn.Parameter, nn.Parameter, slice]] = []
    everything = slice(None)

    def attention(name: str, mine: nn.Module, their: nn.MultiheadAttention) -> None:
        for part, layer in enumerate((mine.projections.query, mine.projections.key, mine.projections.value)):
            rows = slice(part * hidden, (part + 1) * hidden)
            pairs.append((f"{name}.{part}.weight", layer.weight, their.in_proj_weight, rows))
            pairs.append((f"{name}.{part}.bias", layer.bias, their.in_proj_bias, rows))
        pairs.append((f"{name}.output.weight", mine.output.weight, their.out_proj.weight, everything))
        pairs.append((f"{name}.output.bias", mine.output.bias, their.out_proj.bias, everything))

    def layer(name: str, mine: nn.Module, their: nn.Module) -> None:
        pairs.append((f"{name}.weight", mine.weight, their.weight, everything))
        pairs.append((f"{name}.bias", mine.bias, their.bias, everything))

    for number, (block, their) in enumerate(zip(ours.encoder.blocks, theirs.encoder.layers, strict=True)):
        attention(f"encoder.{number}", block.self_attention, their.self_attn)
        layer(f"encoder.{number}.inner", block.ffn.inner, their.linear1)
        layer(f"encoder.{number}.outer", block.ffn.outer, their.linear2)
        layer(f"encoder.{number}.norm1", block.around_attention.norm, their.norm1)
        layer(f"encoder.{number}.norm2", block.around_ffn.norm, their.norm2)
    for number, (block, their) in enumerate(zip(ours.decoder.blocks, theirs.decoder.layers, strict=True)):
        attention(f"decoder.{number}.self", block.self_attention, their.self_attn)
        attention(f"decoder.{number}.cross", block.cross_attention, their.multihead_attn)
        layer(f"decoder.{number}.inner", block.ffn.inner, their.linear1)
        layer(f"decoder.{number}.outer", block.ffn.outer, their.linear2)
        layer(f"decoder.{number}.norm1", block.around_attention.norm, their.norm1)
        layer(f"decoder.{number}.norm2", block.around_cross.norm, their.norm2)
        layer(f"decoder.{number}.norm3", block.around_ffn.norm, their.norm3)
    layer("encoder.norm", ours.encoder.norm, theirs.encoder.norm)
    layer("decoder.norm", ours.decoder.norm, theirs.decoder.norm)
    with torch.no_grad():
        for _, mine, their, rows in pairs:
            their[rows] = mine
    return pairs


def batch(lengths: tuple[int, ...], seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch.of([torch.randint(3, 43, (length,), generator=generator).tolist() for length in lengths])


def their_logits(ours: Transformer, theirs: nn.Transformer, source: Batch, target: Batch) -> Tensor:
    """The padded way: masks for padding and for the future, our embeddings before and our output after."""
    x = source.layout.pad(ours.source_embeddings(source))
    y = target.layout.pad(ours.target_embeddings(target))
    no_source = ~source.layout.key_mask(x.device)
    no_target = ~target.layout.key_mask(x.device)
    future = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
    out = theirs(
        x,
        y,
        tgt_mask=future,
        src_key_padding_mask=no_source,
        tgt_key_padding_mask=no_target,
        memory_key_padding_mask=no_source,
    )
    return ours.logits(out[~no_target])


@pytest.mark.parametrize("norm_place", ["post", "pre"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_outputs_and_gradients_equal_torch(norm_place: str, training: bool) -> None:
    """In double precision, so that what is compared is the formula and not how a processor rounds."""
    ours = build_model(settings(norm_place), seed=5).train(training).double()
    assert isinstance(ours, Transformer)
    with torch.no_grad():
        for parameter in ours.parameters():  # norms and biases too: ones and zeros would hide a mistake
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    theirs = nn.Transformer(
        d_model=ours.settings.hidden_size,
        nhead=HEADS,
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        dim_feedforward=FFN,
        dropout=0.0,
        batch_first=True,
        norm_first=norm_place == "pre",
        dtype=torch.float64,
    ).train(training)
    pairs = copy_weights(ours, theirs)
    assert len({id(parameter) for _, parameter, _, _ in pairs}) == len(pairs)
    source, target = batch(SOURCE, 1), batch(TARGET, 2)
    labels = (target.ids * 3 + 1) % 43
    mine = ours(source, target)
    torch.nn.functional.cross_entropy(mine, labels).backward()
    own = {name: parameter.grad.clone() for name, parameter, _, _ in pairs}
    ours.zero_grad()
    expected = their_logits(ours, theirs, source, target)
    torch.testing.assert_close(mine, expected, atol=1e-12, rtol=1e-12)
    torch.nn.functional.cross_entropy(expected, labels).backward()
    for name, _, their, rows in pairs:
        gradient = their.grad[rows]
        floor = 1e-15 if name.endswith(".1.bias") else 0.0  # keys' biases: zero but for rounding
        assert (own[name] - gradient).abs().max() <= 1e-10 * gradient.abs().max() + floor, name


def test_one_set_of_weights_gives_the_same_padded_and_ragged() -> None:
    ours = build_model(settings("post", tie="all"), seed=5).eval()
    source, target = batch(SOURCE, 1), batch(TARGET, 2)
    with torch.inference_mode():
        ragged = ours(source, target)
        padded = ours(source.padded(), target.padded())
    keep = target.padded().layout.token_rows(torch.device("cpu"))
    torch.testing.assert_close(ragged, padded[keep], atol=1e-5, rtol=0)
