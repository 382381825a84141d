"""Decoding, cross-attention, blocks and positions: exact parts are run, conclusions are drawn for every outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from unmask.lab.catalogue import entry_of, parts_of
from unmask.lab.draw import draw
from unmask.lab.entry import Conclusion, Plan, Record, Verdict
from unmask.lab.kit.by_hand import plain_attention, plain_ffn, plain_norm
from unmask.lab.kit.effects import named
from unmask.lab.kit.newspaper import best_rate, held_out, transformer
from unmask.lab.kit.speeds import quartiles
from unmask.lab.questions import (
    add_norm,
    cross_attention,
    ffn,
    layernorm_vs_batchnorm,
    nonlinearity,
    norm_place,
    parallelism,
    positions_kinds,
    positions_learned,
    train_vs_test_decoding,
    vs_rnn,
    vs_seq2seq,
)
from unmask.models.recurrent import LstmSeq2Seq
from unmask.nn.block import EncoderBlock

SUPPORTED, NOT_SUPPORTED, DEPENDS, NOT_VISIBLE = (
    Verdict.SUPPORTED,
    Verdict.NOT_SUPPORTED,
    Verdict.DEPENDS,
    Verdict.NOT_VISIBLE,
)
#: Differences over three seeds: surely above zero, surely below, neither; and surely next to nothing.
UP, DOWN, ZERO, NOTHING = (0.3, 0.31, 0.32), (-0.3, -0.31, -0.32), (-0.3, 0.0, 0.3), (0.001, 0.0, -0.001)
Values = tuple[float, ...]


def run(question: str, part: str) -> tuple[dict[str, Record], Conclusion]:
    """All trials of a part, and what follows from them."""
    found = parts_of(entry_of(question))[part]
    records = {trial.name: trial.job() for trial in found.trials(Plan())}
    return records, checked(found.conclude(records))


def checked(conclusion: Conclusion) -> Conclusion:
    """With words in both languages, and pictures that can be drawn."""
    assert len(conclusion.says.en) > 60
    assert len(conclusion.says.zh) > 30
    assert not any("nan" in text for text in conclusion.says)
    for picture in conclusion.pictures:
        assert "<svg" in draw(picture, "en")
        assert "<svg" in draw(picture, "zh")
    if conclusion.table is not None:
        assert all(len(row) == len(conclusion.table.columns) for row in conclusion.table.rows)
    return conclusion


def arms(values: Mapping[str, Values], key: str, **rest: Any) -> dict[str, Record]:
    """Records of arms, one value a seed."""
    return {named(arm, seed): {key: one, **rest} for arm, some in values.items() for seed, one in enumerate(some)}


def above(base: float, by: Values) -> Values:
    return tuple(base + one for one in by)


def test_every_part_has_trials_of_its_own_name() -> None:
    for module in (train_vs_test_decoding, cross_attention, parallelism, add_norm, norm_place, vs_rnn, vs_seq2seq):
        name = module.__name__.rpartition(".")[2].replace("_", "-")
        for part in parts_of(entry_of(name)).values():
            for plan in (Plan("small", 2), Plan("default", 3)):
                names = [trial.name for trial in part.trials(plan)]
                assert len(set(names)) == len(names) > 0


def test_what_is_written_out_by_hand_is_what_torch_computes() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, activation="gelu", batch_first=True).double()
    model = transformer({"hidden_size": 12, "num_heads": 3, "ffn_size": 20, "num_layers": 1, "norm_eps": 1e-5}, 0)
    block = model.double().stack.blocks[0]
    assert isinstance(block, EncoderBlock)
    made, ours = block.self_attention.projections, block.around_attention
    with torch.no_grad():
        layer.self_attn.in_proj_weight.copy_(torch.cat([made.query.weight, made.key.weight, made.value.weight]))
        layer.self_attn.out_proj.weight.copy_(block.self_attention.output.weight)
        for theirs, our in ((layer.linear1, block.ffn.inner), (layer.linear2, block.ffn.outer)):  # type: ignore[union-attr]
            theirs.weight.copy_(our.weight)  # type: ignore[arg-type,union-attr]
            theirs.bias.zero_()
        layer.self_attn.in_proj_bias.zero_()
        layer.self_attn.out_proj.bias.zero_()
        x = torch.randn(7, 12, dtype=torch.float64)
        normed = plain_norm(ours.norm, x + plain_attention(block.self_attention, x, x))
        found = plain_norm(block.around_ffn.norm, normed + plain_ffn(block.ffn, normed))  # type: ignore[arg-type]
        torch.testing.assert_close(found, layer(x[None])[0], rtol=0, atol=1e-12)


def test_quartiles_are_those_of_numpy_and_rates_that_fail_are_not_chosen() -> None:
    values = [5.0, 1.0, 2.0, 9.0, 4.0, 7.0, 3.0]
    found = quartiles(values, 2.0)
    assert (found.low, found.median, found.high) == tuple(np.quantile(values, [0.25, 0.5, 0.75]) / 2)
    assert best_rate({1e-3: lambda: math.nan, 3e-3: lambda: 5.0, 1e-2: lambda: 6.0}) == 3e-3


def test_who_knows_nothing_loses_the_logarithm_of_the_vocabulary() -> None:
    class Uniform(torch.nn.Module):
        def forward(self, batch: Any) -> torch.Tensor:
            return torch.zeros(len(batch.ids), 4000)

    assert held_out(Uniform(), 16, 32) == pytest.approx(math.log(4000), abs=1e-5)


def test_one_pass_equals_steps_equals_fresh_prefixes() -> None:
    record = train_vs_test_decoding.same_logits(0)
    assert record["float64"]["passes"] == [1, train_vs_test_decoding.LONGEST]
    assert record["float64"]["same"] == record["float64"]["choices"] == 200 * 20
    assert max(record["float64"][way] for way in ("steps", "fresh")) < 1e-12
    assert 0 < max(record["float32"][way] for way in ("steps", "fresh")) < 1e-4
    wrong = {**record, "float64": {**record["float64"], "steps": 0.1}}
    for other, verdict in ((record, SUPPORTED), (wrong, DEPENDS)):
        both = {"random weights": record, "trained weights": other}
        assert checked(train_vs_test_decoding.conclude_same(both)).verdict == verdict
    both = {"random weights": wrong, "trained weights": wrong}
    assert checked(train_vs_test_decoding.conclude_same(both)).verdict == NOT_SUPPORTED


@pytest.mark.parametrize(
    ("at_once", "steps", "verdict"),
    [
        ((1.0, 1.0, 1.0), (2.0, 2.1, 2.2), SUPPORTED),
        ((2.0, 2.0, 2.1), (1.0, 1.0, 1.0), NOT_SUPPORTED),
        ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0), NOT_VISIBLE),
    ],
)
def test_speed_of_decoding(at_once: Values, steps: Values, verdict: Verdict) -> None:
    cell = {"at once": list(at_once), "steps": list(steps), "afresh": [9.0, 9.0, 9.0]}
    seconds = {str(length): cell for length in train_vs_test_decoding.LENGTHS}
    records = {f"batch of {size}": {"seconds": seconds, "threads": 2} for size in (1, 32)}
    assert checked(train_vs_test_decoding.conclude_speed(records)).verdict == verdict
    turned = {**cell, "at once": cell["steps"], "steps": cell["at once"]}
    if verdict is not NOT_VISIBLE:
        records["batch of 1"] = {"seconds": {**seconds, "16": turned}, "threads": 2}
        assert checked(train_vs_test_decoding.conclude_speed(records)).verdict == DEPENDS


def test_queries_come_from_the_same_block_and_keys_from_the_encoder() -> None:
    records, conclusion = run("cross-attention", "shapes")
    assert conclusion.verdict == SUPPORTED
    for record in records.values():
        assert record["shapes"] == {"q": [5, 7, 12], "k": [5, 11, 12], "v": [5, 11, 12], "output": [7, 60],
                                    "weights": [5, 7, 11]}  # fmt: skip
        assert max(record["q_from_same_block"], record["k_from_encoder"], record["moved_with_target"]) < 1e-12
        assert min(record["q_from_block_before"], record["k_minus_v"], record["without_softmax"]) > 0.1
    assert "S1" in conclusion.says.en.partition("Not true")[0]
    assert "S3-5.2" in conclusion.says.en.partition("Not true")[2]
    other = {name: {**record, "k_from_encoder": 1.0} for name, record in records.items()}
    assert checked(cross_attention.conclude_shapes(other)).verdict == NOT_SUPPORTED


@pytest.mark.parametrize(
    ("hits", "layers", "verdict"),
    [
        ((0.9, 0.91, 0.92), (0.5, 0.9), SUPPORTED),
        ((0.9, 0.91, 0.92), (0.05, 0.9), DEPENDS),
        ((0.01, 0.011, 0.012), (0.01, 0.01), NOT_SUPPORTED),
        ((0.01, 0.1, 0.19), (0.01, 0.1), NOT_VISIBLE),
    ],
)
def test_alignment(hits: Values, layers: Values, verdict: Verdict) -> None:
    shown = [[[0.1] * 9] * 9] * 2
    rest = {"by_layer": list(layers), "chance": 0.1, "words": 2500, "right": 0.9, "shown": shown}
    assert checked(cross_attention.conclude_alignment(arms({"translator": hits}, "hits", **rest))).verdict == verdict


def test_the_made_up_language_is_turned_round() -> None:
    for source, target in cross_attention.sentences(20, torch.Generator().manual_seed(0)):
        assert [word + cross_attention.WORDS for word in source] == target[::-1]
        assert len(set(source)) == len(source)


def test_no_row_waits_for_another_of_its_layer() -> None:
    records, conclusion = run("parallelism", "rows")
    assert conclusion.verdict == SUPPORTED
    assert all(sorted(record["order"]) == list(range(16)) != record["order"] for record in records.values())
    assert all(max(record["apart"]) < 1e-13 * record["size"] for record in records.values())
    worse = {name: {**record, "apart": [0.1]} for name, record in records.items()}
    assert checked(parallelism.conclude_rows(worse)).verdict == NOT_SUPPORTED


@pytest.mark.parametrize(
    ("training", "steps", "verdict"),
    [(1.0, 5.0, SUPPORTED), (1.0, 1.5, DEPENDS), (1.5, 5.0, DEPENDS), (1.0, 1.0, NOT_SUPPORTED)],
)
def test_time_of_waiting(training: float, steps: float, verdict: Verdict) -> None:
    medians = {"encoder, training": training, "encoder, evaluation": 1, "decoder at once": 1, "decoder in steps": steps}
    cell = {name: [value, value, value * 1.01] for name, value in medians.items()}
    seconds = {str(length): cell for length in parallelism.LENGTHS}
    records = {f"batch of {size}": {"seconds": seconds, "threads": 2} for size in parallelism.BATCHES}
    assert checked(parallelism.conclude_time(records)).verdict == verdict


def test_time_of_waiting_may_not_be_visible() -> None:
    cell = {"encoder, training": [1.0] * 3, "encoder, evaluation": [1.0] * 3}
    cell |= {"decoder at once": [1.0, 2.0, 9.0], "decoder in steps": [1.0, 3.0, 9.0]}
    seconds = {str(length): cell for length in parallelism.LENGTHS}
    records = {f"batch of {size}": {"seconds": seconds, "threads": 2} for size in parallelism.BATCHES}
    assert checked(parallelism.conclude_time(records)).verdict == NOT_VISIBLE


def _layers(gradient: float, rows: float) -> Record:
    """A record of 24 layers: first gradient over last, last rows over first."""
    one = {"gradient": [gradient, 1.0], "rows": [1.0, rows], "value": [1.0, 1.0]}
    return {depth: [one, one, one] for depth in ("2", "6", "12", "24")}


def test_gradients_by_layer() -> None:
    good = {"neither": (1e-9, 1e-9), "residual": (5.0, 40.0), "norm": (1e-3, 1.0), "both": (0.5, 1.0)}
    flat = dict.fromkeys(good, (1.0, 1.0))
    cases = (({"Xavier": good, "BERT": good}, SUPPORTED), ({"Xavier": good, "BERT": flat}, DEPENDS))
    for rules, verdict in (*cases, ({"Xavier": flat, "BERT": flat}, NOT_SUPPORTED)):
        records = {f"{arm}, {rule}": _layers(*pair) for rule, some in rules.items() for arm, pair in some.items()}
        assert checked(add_norm.conclude_gradients(records)).verdict == verdict
    gone = {**good, "neither": (0.0, 0.0)}
    records = {f"{arm}, {rule}": _layers(*pair) for rule in add_norm.RULES for arm, pair in gone.items()}
    assert checked(add_norm.conclude_gradients(records)).verdict == SUPPORTED


def test_rows_after_a_norm_have_size_one_and_every_layer_is_measured() -> None:
    found = add_norm.layers({**add_norm.ARMS["both"], "num_layers": 2, "hidden_size": 8, "ffn_size": 8}, 0)
    assert len(found["gradient"]) == len(found["rows"]) == len(found["value"]) == 2
    assert found["rows"] == pytest.approx([1.0, 1.0], abs=1e-4)
    assert min(found["gradient"] + found["value"]) > 0


@pytest.mark.parametrize(
    ("residual", "norm", "shallow", "verdict"),
    [
        (UP, UP, UP, SUPPORTED),
        (UP, DOWN, ZERO, NOT_SUPPORTED),
        (UP, ZERO, UP, DEPENDS),
        (UP, UP, DOWN, DEPENDS),
        (ZERO, ZERO, ZERO, NOT_VISIBLE),
    ],
)
def test_depth(residual: Values, norm: Values, shallow: Values, verdict: Verdict) -> None:
    values = {"both, 2 layers": above(6, (0, 0, 0)), "both, 8 layers": above(6, (0, 0, 0))}
    values |= {"neither, 2 layers": above(6, UP), "neither, 8 layers": above(6, UP)}
    values |= {"norm, 2 layers": above(6, shallow), "residual, 2 layers": above(6, norm)}
    values |= {"norm, 8 layers": above(6, residual), "residual, 8 layers": above(6, norm)}
    assert checked(add_norm.conclude_depth(arms(values, "loss", failed=True))).verdict == verdict


def test_published_models_are_post_norm() -> None:
    records, conclusion = run("norm-place", "place")
    assert conclusion.verdict == SUPPORTED
    assert [records[name]["layers"] for name in ("minilm", "mini-zh")] == [6, 4]
    for record in records.values():
        assert max(record["apart"]["post"]) < 1e-12
        assert min(record["apart"]["pre"] + record["apart"]["once"]) > 0.1
    turned = {name: {**one, "apart": {**one["apart"], "post": [1.0]}} for name, one in records.items()}
    assert checked(norm_place.conclude_place(turned)).verdict == NOT_SUPPORTED


@pytest.mark.parametrize(
    ("deep", "shallow", "cold", "verdict"),
    [
        (UP, UP, UP, SUPPORTED),
        (DOWN, ZERO, DOWN, SUPPORTED),
        (NOTHING, NOTHING, UP, SUPPORTED),
        (UP, DOWN, UP, DEPENDS),
        (NOTHING, NOTHING, NOTHING, NOT_SUPPORTED),
        (ZERO, ZERO, ZERO, NOT_VISIBLE),
    ],
)
def test_place_of_the_norm(deep: Values, shallow: Values, cold: Values, verdict: Verdict) -> None:
    values = {norm_place._arm("pre", layers, warm): above(5, (0, 0, 0)) for layers in (2, 8) for warm in (0, 40)}
    values |= {norm_place._arm("post", 2, warm): above(5, shallow) for warm in (0, 40)}
    values |= {norm_place._arm("post", 8, 40): above(5, deep), norm_place._arm("post", 8, 0): above(5, cold)}
    records = arms(values, "loss", failed=False, gradients=[1.0] * 8)
    assert checked(norm_place.conclude_train(records)).verdict == verdict
    failed = arms(values, "loss", failed=True, gradients=[1.0] * 8)
    assert checked(norm_place.conclude_train(failed)).verdict == NOT_VISIBLE


@pytest.mark.parametrize(
    ("transformer_seconds", "lstm", "verdict"),
    [
        ((1.0, 1.0, 1.0), (3.0, 3.0, 3.0), SUPPORTED),
        ((3.0, 3.0, 3.0), (1.0, 1.0, 1.0), NOT_SUPPORTED),
        ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0), NOT_VISIBLE),
    ],
)
def test_time_of_an_lstm(transformer_seconds: Values, lstm: Values, verdict: Verdict) -> None:
    cell = {"texts": 1, "transformer": list(transformer_seconds), "lstm": list(lstm)}
    record = {"seconds": {str(length): cell for length in vs_rnn.LENGTHS}, "threads": 2, "parameters": [5, 5]}
    records = {name: {**record, "width": 157} for name in vs_rnn.BATCHES}
    assert checked(vs_rnn.conclude_time(records)).verdict == verdict
    if verdict is not NOT_VISIBLE:
        turned = {**cell, "transformer": list(lstm), "lstm": list(transformer_seconds)}
        records["one text"] = {**records["one text"], "seconds": {str(length): turned for length in vs_rnn.LENGTHS}}
        assert checked(vs_rnn.conclude_time(records)).verdict == DEPENDS


def test_lstm_and_transformer_have_equal_parameters() -> None:
    stack, lstm = vs_rnn.stacks()
    ours, theirs = (sum(one.numel() for one in part.parameters()) for part in (stack, lstm))
    assert theirs == 2 * (8 * vs_rnn.width_of(False) ** 2 + 8 * vs_rnn.width_of(False))
    assert abs(ours - theirs) < 0.02 * ours
    half = vs_rnn.width_of(True) // 2
    assert abs(2 * 2 * (4 * half * 3 * half + 8 * half) - ours) < 0.02 * ours


OUTCOMES = [
    (UP, UP, SUPPORTED),
    (DOWN, DOWN, NOT_SUPPORTED),
    (UP, ZERO, DEPENDS),
    (UP, DOWN, DEPENDS),
    (ZERO, ZERO, NOT_VISIBLE),
]


@pytest.mark.parametrize(("text", "topics", "verdict"), OUTCOMES)
def test_lstm_at_equal_parameters(text: Values, topics: Values, verdict: Verdict) -> None:
    losses = {"lstm, text": above(5, text), "transformer, text": (5.0, 5.0, 5.0)}
    right = {"lstm, headlines": (0.5, 0.5, 0.5), "transformer, headlines": above(0.5, topics)}
    records = arms(losses, "loss", train_seconds=3.0) | arms(right, "accuracy", train_seconds=3.0)
    assert checked(vs_rnn.conclude_equal(records)).verdict == verdict


@pytest.mark.parametrize(
    ("long", "short", "verdict"),
    [(UP, 0.9, SUPPORTED), (DOWN, 0.9, NOT_SUPPORTED), (ZERO, 0.9, NOT_VISIBLE), (UP, 0.2, NOT_VISIBLE)],
)
def test_reverse(long: Values, short: float, verdict: Verdict) -> None:
    groups = [vs_seq2seq._group(group) for group in vs_seq2seq.GROUPS]
    records = {}
    for arm in vs_seq2seq.ARMS:
        for seed, one in enumerate(long):
            last = 0.4 + (one if arm == "attention" else 0.0)
            record = dict(zip(groups, (short, 0.5, last), strict=True))
            records[named(arm, seed)] = {**record, "parameters": 1000}
    assert checked(vs_seq2seq.conclude_reverse(records)).verdict == verdict


def test_strings_are_counted_symbol_by_symbol() -> None:
    class Parrot:
        """Writes 1, always."""

        def encode(self, source: object) -> None: ...

        def start(self, memory: object) -> int:
            return 0

        def step(self, ids: torch.Tensor, state: int) -> tuple[torch.Tensor, int]:
            return torch.nn.functional.one_hot(torch.ones_like(ids), 21), state

    assert vs_seq2seq.written(Parrot(), [[1, 2, 3], [1], [5, 1]]) == 3 / 6  # type: ignore[arg-type]
    assert isinstance(vs_seq2seq.build_model(vs_seq2seq.settings_of("attention")), LstmSeq2Seq)


def _company(median: float, still: float = 1e-7) -> Record:
    moved = {"largest": 2 * median, "median": median, "short_to_long": median}
    return {"training": moved, "evaluation": {**moved, "largest": still}, "earlier_row": median}


@pytest.mark.parametrize(
    ("first", "second", "still", "verdict"),
    [
        (0.1, 0.2, 1e-7, SUPPORTED),
        (1e-4, 1e-4, 1e-7, NOT_SUPPORTED),
        (0.1, 0.005, 1e-7, DEPENDS),
        (0.1, 0.2, 0.1, DEPENDS),
    ],
)
def test_company(first: float, second: float, still: float, verdict: Verdict) -> None:
    records = {f"BatchNorm, {state}": _company(value) for state, value in (("untrained", first), ("trained", second))}
    records |= {f"LayerNorm, {state}": _company(still) for state in ("untrained", "trained")}
    assert checked(layernorm_vs_batchnorm.conclude_composition(records)).verdict == verdict


def test_batch_norm_sees_later_tokens_past_the_mask_and_layer_norm_does_not() -> None:
    assert layernorm_vs_batchnorm.earlier_row("layer") < 1e-5
    assert layernorm_vs_batchnorm.earlier_row("batch") > 1e-3


@pytest.mark.parametrize(("text", "topics", "verdict"), OUTCOMES)
def test_norms_in_training(text: Values, topics: Values, verdict: Verdict) -> None:
    losses = {"batch, text": above(5, text), "layer, text": (5.0, 5.0, 5.0)}
    records = arms(losses, "loss", failed=False, with_batch_statistics=5.0)
    for batch in (8, 64):
        right = {f"batch, headlines, {batch}": (0.5,) * 3, f"layer, headlines, {batch}": above(0.5, topics)}
        records |= arms(right, "accuracy")
    assert checked(layernorm_vs_batchnorm.conclude_train(records)).verdict == verdict


def test_attention_is_not_linear_unless_its_weights_are_frozen() -> None:
    records, conclusion = run("ffn", "linearity")
    assert conclusion.verdict == NOT_SUPPORTED
    for record in records.values():
        assert record["by_hand"] < 1e-12
        for kind in ("superposition", "scaling"):
            assert max(record[kind][name] for name in ("frozen", "identity")) < 1e-12
            assert min(record[kind][name] for name in ("attention", "gelu")) > 0.05
    linear = {**records["random weights"], "superposition": dict.fromkeys(ffn.MAPS, 0.0)}
    linear["scaling"] = linear["superposition"]
    both = {"random weights": linear, "mini-zh weights": linear}
    assert checked(ffn.conclude_linearity(both)).verdict == SUPPORTED
    assert checked(ffn.conclude_linearity({**records, "random weights": linear})).verdict == DEPENDS


@pytest.mark.parametrize(
    ("depth", "weights", "verdict"),
    [
        (UP, UP, SUPPORTED),
        (UP, DOWN, NOT_SUPPORTED),
        (UP, ZERO, DEPENDS),
        (ZERO, UP, DEPENDS),
        (ZERO, ZERO, NOT_VISIBLE),
    ],
)
def test_without_feed_forward(depth: Values, weights: Values, verdict: Verdict) -> None:
    values = {"a": (5.0,) * 3, "b": above(5, UP), "c": above(5, depth), "d": above(5, weights)}
    assert checked(ffn.conclude_without(arms(values, "loss", failed=False))).verdict == verdict


def test_three_parts_of_the_encoder_are_not_affine() -> None:
    records, conclusion = run("nonlinearity", "sources")
    record = records["mini-zh"]
    assert conclusion.verdict == DEPENDS
    assert record["from_library"] < 1e-10
    assert max(record["alone"]["linear"], record["encoder"]["none"]) < 1e-10
    assert min(record["alone"][name] for name in ("gelu", "attention", "norm", "tanh")) > 1e-3
    assert min(record["encoder"][name] for name in ("gelu", "attention", "norm", "all")) > 1e-3
    alone = {"mini-zh": {**record, "encoder": {**record["encoder"], "norm": 0.0}}}
    assert checked(nonlinearity.conclude_sources(alone)).verdict == SUPPORTED
    none = {"mini-zh": {**record, "alone": {**record["alone"], "gelu": 0.0}}}
    assert checked(nonlinearity.conclude_sources(none)).verdict == NOT_SUPPORTED
    missed = {"mini-zh": {**record, "encoder": {**record["encoder"], "none": 0.1}}}
    assert "overlooked" in checked(nonlinearity.conclude_sources(missed)).says.en


@pytest.mark.parametrize(("text", "topics", "verdict"), OUTCOMES)
def test_activation(text: Values, topics: Values, verdict: Verdict) -> None:
    records = {}
    for name in nonlinearity.ACTIVATIONS:
        for seed in range(3):
            by = (text[seed], topics[seed]) if name == "identity" else (0.0, 0.0)
            records[named(name, seed)] = {"loss": 5 + by[0], "accuracy": 0.5 - by[1], "failed": False}
    assert checked(nonlinearity.conclude_activation(records)).verdict == verdict


@pytest.mark.parametrize(
    ("some", "others", "base", "verdict"),
    [
        (UP, UP, 0.4, SUPPORTED),
        (UP, DOWN, 0.6, NOT_SUPPORTED),
        (UP, ZERO, 0.4, DEPENDS),
        (ZERO, ZERO, 0.4, NOT_VISIBLE),
        (UP, UP, 0.1, NOT_VISIBLE),
    ],
)
def test_kinds_of_positions(some: Values, others: Values, base: float, verdict: Verdict) -> None:
    records: dict[str, Record] = {}
    for kind in positions_kinds.KINDS:
        by = (0.0,) * 3 if kind == "none" else others if kind == "shaw" else some
        for seed in range(3):
            now = base + by[seed]
            longer = None if kind == "learned" else now - (0.01 if kind == "rotary" else 0.2)
            records[named(kind, seed)] = {"accuracy_32": now, "accuracy_64": longer, "accuracy_128": longer}
    conclusion = checked(positions_kinds.conclude_distance(records))
    assert conclusion.verdict == verdict
    if verdict is SUPPORTED:
        assert conclusion.says.en.endswith("for rotary.")
    losses = {
        name: {**dict.fromkeys(("loss", "pieces"), 6 - record["accuracy_32"]), "longer": record["accuracy_128"]}
        for name, record in records.items()
    }
    expected = SUPPORTED if base == 0.1 else verdict
    assert checked(positions_kinds.conclude_text(losses)).verdict == expected


def test_the_answer_stands_five_places_before() -> None:
    class Told:
        """Knows the answer."""

        def __call__(self, batch: Any) -> Any:
            return batch

        def tag_logits(self, batch: Any) -> torch.Tensor:
            ids = batch.ids.view(len(batch), -1)
            return torch.nn.functional.one_hot(ids.roll(5, dims=1), 16).flatten(0, 1).float()

    assert positions_kinds._accuracy(Told(), 32) == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "last", "best", "verdict"),
    [
        (UP, NOTHING, 5.0, SUPPORTED),
        (UP, UP, 5.0, NOT_SUPPORTED),
        (DOWN, UP, 5.0, DEPENDS),
        (ZERO, ZERO, 5.0, NOT_VISIBLE),
        (UP, UP, 6.4, NOT_VISIBLE),
    ],
)
def test_learned_positions(first: Values, last: Values, best: float, verdict: Verdict) -> None:
    records = {}
    for arm in positions_learned.ARMS:
        for seed in range(3):
            by = (first[seed], last[seed]) if arm == "random table" else (0.0, 0.0)
            losses = {"loss_0": 6 + by[0], "loss_1": 6.0, "loss_2": best + by[1]}
            records[named(arm, seed)] = {**losses, "moments": [75, 150, 300], "frequencies": 6.45}
    assert checked(positions_learned.conclude_mlm(records)).verdict == verdict
