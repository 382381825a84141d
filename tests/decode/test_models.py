"""Decoding real models: steps equal the full pass, batches do not matter, and the attention is where it should be."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from unmask.decode.coverage import align
from unmask.decode.hypothesis import Hypothesis
from unmask.decode.search import decode
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import StepModel, TargetIds
from unmask.errors import SettingsError, TaskError
from unmask.models.init import build_model
from unmask.models.recurrent import LstmSeq2Seq
from unmask.models.settings import LstmSettings, TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch
from unmask.nn.record import record_attention

V, START, END = 61, 1, 2
IDS = TargetIds(START, END)


def transformer(seed: int = 0, *, lively: float = 1.7, **changes: object) -> Transformer:
    sizes = {"hidden_size": 24, "num_heads": 3, "ffn_size": 40, "num_encoder_layers": 2, "num_decoder_layers": 2}
    vocabularies = {"source_vocab_size": V, "target_vocab_size": V, "tie": "none", "output_bias": True}
    model = build_model(TransformerSettings.parse(sizes | vocabularies | changes), seed=seed)
    assert isinstance(model, Transformer)
    with torch.no_grad():  # livelier than first values, so that sentences differ and end at different times
        for parameter in model.parameters():
            parameter.mul_(lively)
        model.output_bias[END] = 4.0
    return model.eval()


def lstm(attention: bool = True) -> LstmSeq2Seq:
    sizes = {"source_vocab_size": V, "target_vocab_size": V, "hidden_size": 12}
    model = build_model(LstmSettings.parse(sizes | {"attention": attention, "tie": "none"}), seed=3)
    assert isinstance(model, LstmSeq2Seq)
    with torch.no_grad():  # livelier, as above
        for parameter in model.parameters():
            parameter.mul_(2.5)
    return model.eval()


def sources_of(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, V) for _ in range(draw.randint(1, 21))] for _ in range(count)]


def full_pass(model: StepModel, source: list[int], target: list[int]) -> Tensor:
    """Logits after each target token, by the model's own forward pass."""
    assert isinstance(model, Transformer | LstmSeq2Seq)
    return model(Batch.of([source]), Batch.of([target])).detach()


MODELS = {
    "transformer": transformer,
    "rotary": lambda: transformer(positions={"kind": "rotary"}, norm_place="pre", final_norm=True),
    "shaw": lambda: transformer(positions={"kind": "shaw"}),
    "additive": lambda: transformer(score="additive"),
    "lstm with attention": lstm,
    "lstm": lambda: lstm(attention=False),
}


@pytest.mark.parametrize("kind", MODELS)
def test_steps_of_reordered_beams_equal_the_full_pass(kind: str) -> None:
    """In double precision, where nothing but a mistake could make a difference."""
    steps_equal_the_full_pass(MODELS[kind]().double(), 1e-10)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi", "buckets", "shaw", "transformer_xl"])
def test_steps_of_reordered_beams_equal_the_full_pass_in_single_precision(positions: str) -> None:
    steps_equal_the_full_pass(transformer(positions={"kind": positions}, lively=1.0), 1e-5)


def steps_equal_the_full_pass(model: Transformer | LstmSeq2Seq, tolerance: float) -> None:
    """Three rows a source that change places at every step, over more steps than the past has room for at first."""
    draw = random.Random(0)
    sources = sources_of(4, seed=2)
    targets = [[START] for _ in range(12)]
    kept = list(range(4))
    with torch.inference_mode():
        state = model.start(model.encode(Batch.of(sources)))
        state = state.reorder(torch.arange(4).repeat_interleave(3))
        for t in range(37):
            logits, state = model.step(torch.tensor([target[-1] for target in targets]), state)
            for row, target in enumerate(targets if t % 6 == 0 or t > 34 else []):
                expected = full_pass(model, sources[kept[row // 3]], target)[-1]
                torch.testing.assert_close(logits[row], expected, rtol=0, atol=tolerance)
            rows = [3 * (row // 3) + draw.randrange(3) for row in range(3 * len(kept))]
            if t == 20:  # the second source is done
                rows, kept = rows[:3] + rows[6:], [kept[0], *kept[2:]]
                state = state.reorder(torch.tensor(rows), torch.tensor([0, 2, 3]))
            else:
                state = state.reorder(torch.tensor(rows))
            targets = [[*targets[row], draw.randrange(3, V)] for row in rows]


def test_a_state_can_be_continued_twice() -> None:
    """Steps are written in place, but never over somebody else's."""
    model = transformer()
    with torch.inference_mode():
        state = model.start(model.encode(Batch.of([[5, 6, 7]])))
        for token in (START, 9, 10):
            _, state = model.step(torch.tensor([token]), state)
        one = model.step(torch.tensor([11]), state)[1]
        two = model.step(torch.tensor([12]), state)[1]
        for state, token in ((one, 11), (two, 12)):
            logits, _ = model.step(torch.tensor([13]), state)
            expected = full_pass(model, [5, 6, 7], [START, 9, 10, token, 13])[-1:]
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["transformer", "rotary", "shaw", "additive"])
def test_rows_that_are_not_wanted_are_missed_by_nobody(kind: str) -> None:
    """Two of three targets a source, now these and now those, over two clearings of cells that nobody needs."""
    model, draw = MODELS[kind]().double(), random.Random(1)
    sources = sources_of(3, seed=4)
    targets = [[START] for _ in range(9)]
    with torch.inference_mode():
        state = model.start(model.encode(Batch.of(sources)))
        state = state.reorder(torch.arange(3).repeat_interleave(3))
        for t in range(35):
            wanted = [3 * number + place for number in range(3) for place in draw.sample(range(3), 2)]
            ids = torch.tensor([target[-1] for target in targets])
            logits, state = model.step_some(ids, state, torch.tensor(wanted))
            for row, found in zip(wanted, logits, strict=True) if t % 7 == 0 or t > 32 else []:
                expected = full_pass(model, sources[row // 3], targets[row])[-1]
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
            rows = [
                draw.choice([row for row in wanted if row // 3 == number]) for number in (0, 0, 0, 1, 1, 1, 2, 2, 2)
            ]
            state = state.reorder(torch.tensor(rows))
            targets = [[*targets[row], draw.randrange(3, V)] for row in rows]


def test_cells_in_nobodys_past_are_cleared_away() -> None:
    model = transformer()
    with torch.inference_mode():
        state = model.start(model.encode(Batch.of([[5, 6, 7]]))).reorder(torch.zeros(8, dtype=torch.long))
        for _ in range(100):
            _, state = model.step(torch.full((8,), 9), state)
            state = state.reorder(torch.zeros(8, dtype=torch.long))  # all go on from the first
    assert 100 < state.tree.seen.shape[2] <= 112 + 16 * 8  # of 800 that were written
    assert state.tree.seen.sum(-1).tolist() == [[100] * 8]


def test_sources_are_filled_up_to_whole_registers() -> None:
    model = transformer()
    for longest, width in ((1, 16), (16, 16), (17, 32)):
        state = model.start(model.encode(Batch.of([[3], [4] * longest])))
        assert state.blocks[0].memory.keys.shape[2] == width


@pytest.mark.parametrize("kind", MODELS)
def test_log_probabilities_are_those_of_the_full_pass(kind: str) -> None:
    model, sources = MODELS[kind](), sources_of(5)
    found = decode(model, sources, IDS, DecodeSettings(beam=3, num_best=3, max_length=12))
    for source, outputs in zip(sources, found, strict=True):
        assert len({str(one.ids) for one in outputs}) == 3
        for one in outputs:
            said = [*one.ids, END][: len(one.ids) + one.finished]
            logits = full_pass(model, source, [START, *said[:-1]]).log_softmax(-1)
            assert one.log_probability == pytest.approx(float(logits[range(len(said)), said].sum()), abs=1e-4)


@pytest.mark.parametrize("kind", MODELS)
def test_a_beam_of_one_is_the_argmax_of_full_passes(kind: str) -> None:
    model, sources = MODELS[kind](), sources_of(6)
    for source, (found,) in zip(
        sources, decode(model, sources, IDS, DecodeSettings(beam=1, max_length=9)), strict=True
    ):
        ids: list[int] = []
        while len(ids) < 9:
            best = int(full_pass(model, source, [START, *ids])[-1].argmax())
            if best == END:
                break
            ids.append(best)
        assert found.ids == ids


def test_wider_beams_find_more_probable_outputs() -> None:
    model, sources = transformer(), sources_of(30)
    means = []
    for beam in (1, 4, 16):
        settings = DecodeSettings(beam=beam, length_penalty=0.0, max_length=30)
        means.append(sum(found[0].score for found in decode(model, sources, IDS, settings)))
    assert means[0] < means[1] <= means[2]


BATCHES = [
    DecodeSettings(beam=5, num_best=3, max_length=15),
    DecodeSettings(beam=1, max_length=15),
    DecodeSettings(beam=4, coverage_penalty=0.3, no_repeat_ngram=2, max_length=15),
]


@pytest.mark.parametrize("settings", BATCHES, ids=["beam", "greedy", "coverage"])
@pytest.mark.parametrize("kind", ["transformer", "lstm with attention"])
def test_neither_batch_nor_order_matters(kind: str, settings: DecodeSettings) -> None:
    if kind != "transformer":
        settings = settings.replace(coverage_penalty=0.0)
    model, sources = MODELS[kind](), sources_of(70, seed=1)
    expected = decode(model, sources, IDS, settings)
    assert len({str(outputs[0].ids) for outputs in expected}) > 25
    for size in (1, 8, 64):
        order = list(range(70))
        random.Random(size).shuffle(order)
        found = decode(model, [sources[number] for number in order], IDS, settings, batch_size=size)
        for number, outputs in zip(order, found, strict=True):
            assert [one.ids for one in outputs] == [one.ids for one in expected[number]]
            scores = [one.score for one in expected[number]]
            assert [one.score for one in outputs] == pytest.approx(scores, abs=1e-5)


def slow_coverage(model: Transformer, source: list[int], one: Hypothesis, layer: int, beta: float) -> float:
    said = [*one.ids, END][: len(one.ids) + one.finished]
    with record_attention(model) as trace:
        model(Batch.of([source]), Batch.of([[START, *said[:-1]]]))
    weights = trace.attention[f"decoder.blocks.{layer}.cross_attention"].weights[0].detach()
    total = 0.0
    for place in range(len(source)):
        looked = sum(float(weights[head, t, place]) for head in range(3) for t in range(len(said))) / 3
        total += math.log(min(looked, 1.0))
    return one.log_probability / ((5 + len(said)) / 6) ** 0.6 + beta * total


@pytest.mark.parametrize("layer", [0, 1])
def test_coverage_equals_the_formula(layer: int) -> None:
    model, sources = transformer(), sources_of(9)
    settings = DecodeSettings(beam=4, num_best=4, coverage_penalty=0.7, attention_layer=layer, max_length=12)
    found = decode(model, sources, IDS, settings, batch_size=5)
    for source, outputs in zip(sources, found, strict=True):
        for one in outputs:
            assert one.score == pytest.approx(slow_coverage(model, source, one, layer, 0.7), abs=1e-4)
    plain = decode(model, sources, IDS, settings.replace(coverage_penalty=0.0))
    assert [outputs[0].ids for outputs in plain] != [outputs[0].ids for outputs in found]


def test_coverage_needs_attention_that_is_there() -> None:
    with pytest.raises(TaskError, match="LstmSeq2Seq has no cross-attention"):
        decode(lstm(), [[3]], IDS, DecodeSettings(coverage_penalty=0.1))
    with pytest.raises(SettingsError, match="attention_layer: 2 is no layer of a decoder with 2"):
        decode(transformer(), [[3]], IDS, DecodeSettings(coverage_penalty=0.1, attention_layer=2))


def test_alignments_are_the_weights_of_each_step() -> None:
    model = transformer()
    sources, targets = [[5, 6, 7, 8], [9], [10, 11], []], [[12, 13], [14, 15, 16], [], [3]]
    found = align(model, sources, targets, start_id=START, layer=-2)
    assert [tuple(matrix.shape) for matrix in found] == [(2, 4), (3, 1), (0, 2), (1, 0)]
    torch.testing.assert_close(found[0].sum(-1), torch.ones(2))
    with record_attention(model) as trace:
        model(Batch.of([sources[0]]), Batch.of([[START, 12]]))
    expected = trace.attention["decoder.blocks.0.cross_attention"].weights[0].mean(0).detach()
    torch.testing.assert_close(found[0], expected)
    # The row of a token is what was seen before it was written, so the last token itself changes nothing.
    again = align(model, sources[:1], [[12, 50]], start_id=START, layer=0)
    torch.testing.assert_close(again[0], found[0])
    assert not torch.allclose(align(model, sources[:1], [[12, 13]], start_id=START)[0], found[0])
    assert align(model, [], [], start_id=START) == []


def test_a_table_of_positions_ends_the_output() -> None:
    model = transformer(positions={"kind": "learned"}, max_length=22)
    found = decode(model, sources_of(5), IDS, DecodeSettings(beam=2, min_length=200))
    assert {len(outputs[0].ids) for outputs in found} == {22}


def test_dropout_is_off_and_training_goes_on() -> None:
    model = transformer()
    expected = decode(model, sources_of(5), IDS)
    model.train()
    assert decode(model, sources_of(5), IDS) == expected
    assert model.training
    model(Batch.of([[3]]), Batch.of([[1]])).sum().backward()


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("settings", [DecodeSettings(beam=1), DecodeSettings(beam=3, num_best=3)], ids=["one", "three"])
def test_threads_give_what_one_gives(settings: DecodeSettings) -> None:
    model, sources = transformer(), sources_of(40)
    seen: set[str] = set()
    step = model.step_some

    def watched(*inputs: object) -> object:
        seen.add(threading.current_thread().name)
        return step(*inputs)  # type: ignore[arg-type]

    model.step_some = watched  # type: ignore[method-assign, assignment]
    found = decode(model, sources, IDS, settings, batch_size=8)
    assert len(seen) == 2, "it did run in two threads"
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    alone = decode(model, sources, IDS, settings, batch_size=8)
    assert [[(one.ids, one.score) for one in outputs] for outputs in found] == [
        [(one.ids, one.score) for one in outputs] for outputs in alone
    ]


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_thread_is_told_and_threads_are_restored() -> None:
    model = transformer()
    with torch.no_grad():
        model.output_bias.fill_(float("nan"))
    with pytest.raises(TaskError, match="not a number"):
        decode(model, sources_of(20), IDS, DecodeSettings(beam=2), batch_size=4)
    assert torch.get_num_threads() == 2
    assert not model.training
    assert not [one for one in threading.enumerate() if one.name.startswith("decode")]


@pytest.mark.usefixtures("two_threads")
def test_what_watches_one_model_stays_in_one_thread() -> None:
    model, sources = transformer().double(), sources_of(20)
    settings = DecodeSettings(beam=2, coverage_penalty=0.2)
    found = decode(model, sources, IDS, settings, batch_size=4)
    torch.set_num_threads(1)
    alone = decode(model, sources, IDS, settings, batch_size=4)
    assert [one[0].ids for one in found] == [one[0].ids for one in alone]
    # How torch's two threads share a sum is its own choice, and not the same on all processors.
    assert [one[0].score for one in found] == pytest.approx([one[0].score for one in alone], rel=1e-12)
