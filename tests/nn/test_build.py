"""Which part stands where, for what a fingerprint of the whole model cannot tell apart."""

from __future__ import annotations

import pytest
from torch import nn

from unmask.nn.build import build_decoder, build_encoder
from unmask.nn.positions import BucketPositions, NoPositions
from unmask.nn.settings import LayerSettings, LayerShape

SHAPES = (LayerShape(3, 17), LayerShape(3, 5))


def layer(**changes: object) -> LayerSettings:
    return LayerSettings.parse({"hidden_size": 12, "num_heads": 3, "ffn_size": 17} | changes)


@pytest.mark.parametrize("share", [False, True])
def test_buckets_look_back_only_where_the_stack_does(share: bool) -> None:
    settings = layer(positions={"kind": "buckets", "share_layers": share})
    stacks = {
        False: build_encoder(settings, SHAPES),
        True: build_encoder(settings, SHAPES, causal=True),
        "decoder": build_decoder(settings, SHAPES),
    }
    for causal, stack in stacks.items():
        found = [block.self_attention.attend.positions for block in stack.blocks]
        for positions in found:
            assert isinstance(positions, BucketPositions)
            assert positions.causal is bool(causal)
        assert (found[0] is found[1]) == share


def test_cross_attention_has_no_positions() -> None:
    for kind in ("rotary", "alibi", "buckets", "shaw", "transformer_xl"):
        for block in build_decoder(layer(positions={"kind": kind}), SHAPES).blocks:
            assert isinstance(block.cross_attention.attend.positions, NoPositions)
            assert not isinstance(block.self_attention.attend.positions, NoPositions)


def test_every_layer_has_its_own_shape() -> None:
    blocks = build_encoder(layer(), (LayerShape(3, 17), LayerShape(2, 5))).blocks
    assert [block.self_attention.num_heads for block in blocks] == [3, 2]
    assert [block.ffn.inner.out_features for block in blocks] == [17, 5]
    assert [block.self_attention.output.in_features for block in blocks] == [12, 8]


def test_the_last_norm_is_there_when_asked_for() -> None:
    for build in (build_encoder, build_decoder):
        assert isinstance(build(layer(), SHAPES).norm, nn.Identity)
        assert isinstance(build(layer(final_norm=True), SHAPES).norm, nn.LayerNorm)
        assert isinstance(build(layer(final_norm=True, norm="rms"), SHAPES).norm, nn.RMSNorm)


def test_without_feed_forward_nothing_is_left_of_it() -> None:
    for block in build_encoder(layer(ffn=False), SHAPES).blocks:
        assert not list(block.ffn.parameters())
        assert not list(block.around_ffn.parameters())
