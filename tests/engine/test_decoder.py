"""Decoding by the kernels against torch: the same outputs, the same numbers, and the same in any company."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.decode.coverage import align
from unmask.decode.hypothesis import Hypothesis
from unmask.decode.search import decode
from unmask.decode.settings import DecodeSettings, SamplingSettings
from unmask.decode.stepping import TargetIds
from unmask.engine.choose import accelerated_transformer, choose, kernels, unfit_transformer
from unmask.engine.steps import FastSteps
from unmask.engine.translator import FastTransformer
from unmask.errors import TaskError, UserError
from unmask.models.init import build_model
from unmask.models.settings import LstmSettings, TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler here")
INT8 = kernels() is not None and bool(kernels().unmask_has_int8())  # type: ignore[union-attr]
PRECISIONS = ["fp32", pytest.param("int8", marks=pytest.mark.skipif(not INT8, reason="no int8 on this processor"))]

V, START, END, UNKNOWN = 150, 1, 2, 3
IDS = TargetIds(START, END, UNKNOWN, never=(0, START))


def transformer(*, lively: float = 1.0, **changes: Any) -> Transformer:
    sizes = {"hidden_size": 24, "num_heads": 3, "ffn_size": 40, "num_encoder_layers": 2, "num_decoder_layers": 2}
    vocabularies = {"source_vocab_size": V, "target_vocab_size": V, "tie": "none", "output_bias": True}
    model = build_model(TransformerSettings.parse(sizes | vocabularies | changes), seed=0)
    assert isinstance(model, Transformer)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():  # norms and biases that do something, and sentences that end at different times
        for name, tensor in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                tensor.add_(0.2 * torch.randn(tensor.shape, generator=generator))
            tensor.mul_(lively)
        if model.output_bias is not None:
            model.output_bias[END] = 2.5
    return model.eval()


def lively() -> Transformer:
    """Sentences differ, and end at different times."""
    model = transformer(lively=1.7)
    with torch.no_grad():
        assert model.output_bias is not None
        model.output_bias[END], model.output_bias[UNKNOWN] = 6.0, 6.0
    return model


def sources_of(count: int, seed: int = 0, longest: int = 37) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(4, V) for _ in range(draw.randint(1, longest))] for _ in range(count)]


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre-norm": {"norm_place": "pre", "final_norm": True},
    "pre-norm, no last norm": {"norm_place": "pre"},
    "gelu": {"activation": "gelu"},
    "swish": {"activation": "silu"},
    "no bias": {"bias": False},
    "unscaled": {"score": "dot"},
    "learned positions": {"positions": {"kind": "learned"}, "max_length": 60},
    "no positions": {"positions": {"kind": "none"}},
    "waves from 2 on": {"positions": {"kind": "sinusoidal", "order": "concatenated", "start": 2}},
    "tied": {"tie": "all", "output_bias": False},
    "two vocabularies": {"source_vocab_size": 201, "tie": "target"},
    "embedding norm": {"embedding_norm": True},
    "heads of another size": {"head_size": 20},
    "wide": {"hidden_size": 96, "num_heads": 1, "ffn_size": 200},
    "many tokens": {"target_vocab_size": 1300},
    "odd sizes": {"hidden_size": 21, "ffn_size": 33, "positions": {"kind": "learned"}},
    "one and three layers": {"num_encoder_layers": 1, "num_decoder_layers": 3},
}


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_equal_the_full_pass(variant: str) -> None:
    """Three rows a source that change places at every step, over more steps than the past has room for at first."""
    model, draw = transformer(**VARIANTS[variant]), random.Random(0)
    assert unfit_transformer(model) is None
    steps = accelerated_transformer(model, "fp32").quick()
    assert steps is not None
    exact = copy.deepcopy(model).double()
    sources, kept = sources_of(4, seed=2), list(range(4))
    targets = [[START] for _ in range(12)]
    state = steps.start(steps.encode(Batch.of(sources))).reorder(torch.arange(4).repeat_interleave(3))
    with torch.inference_mode():
        for t in range(37):
            logits, state = steps.step(torch.tensor([target[-1] for target in targets]), state)
            for row, target in enumerate(targets if t in (0, 1, 15, 16, 36) else []):
                close(logits[row], exact(Batch.of([sources[kept[row // 3]]]), Batch.of([target]))[-1])
            rows = [3 * (row // 3) + draw.randrange(3) for row in range(3 * len(kept))]
            if t == 20:  # the second source is done
                rows, kept = rows[:3] + rows[6:], [kept[0], *kept[2:]]
                state = state.reorder(torch.tensor(rows), torch.tensor([0, 2, 3]))
            else:
                state = state.reorder(torch.tensor(rows))
            targets = [[*targets[row], draw.randrange(4, V)] for row in rows]


def test_a_state_can_be_continued_twice() -> None:
    model = transformer()
    steps = accelerated_transformer(model, "fp32").quick()
    assert steps is not None
    state = steps.start(steps.encode(Batch.of([[5, 6, 7]])))
    for token in (START, 9, 10):
        _, state = steps.step(torch.tensor([token]), state)
    one, two = (steps.step(torch.tensor([token]), state)[1] for token in (11, 12))
    for state, token in ((one, 11), (two, 12)):
        logits, _ = steps.step(torch.tensor([13]), state)
        expected = model(Batch.of([[5, 6, 7]]), Batch.of([[START, 9, 10, token, 13]]))[-1:].detach()
        close(logits, expected)


def told(found: list[list[Hypothesis]]) -> list[list[tuple[list[int], bool]]]:
    return [[(one.ids, one.finished) for one in outputs] for outputs in found]


SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4},
    "n best": {"beam": 8, "num_best": 8},
    "wide": {"beam": 33, "num_best": 3, "max_length": 20},
    "plain penalty": {"beam": 3, "length_formula": "plain", "length_penalty": 1.5},
    "no penalty": {"beam": 5, "num_best": 2, "length_penalty": 0.0},
    "short": {"beam": 4, "num_best": 4, "max_length": 3},
    "one token": {"beam": 3, "num_best": 3, "max_length": 1},
    "long": {"beam": 4, "min_length": 12},
    "no token twice": {"beam": 4, "num_best": 2, "no_repeat_ngram": 1},
    "no pair twice": {"beam": 4, "no_repeat_ngram": 2, "min_length": 9},
    "no unknown": {"beam": 4, "forbid_unknown": True},
}


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_search_finds_what_torch_finds(kind: str) -> None:
    model, sources = lively(), sources_of(40)
    settings = DecodeSettings(**SEARCHES[kind])
    expected = decode(model, sources, IDS, settings)
    found = decode(accelerated_transformer(model, "fp32"), sources, IDS, settings)
    assert told(found) == told(expected)
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            near = 5e-5 * (len(a.ids) + 1)  # logits up to 20: rounding makes 2e-5 of a token's
            assert a.score == pytest.approx(b.score, abs=near)
            assert a.log_probability == pytest.approx(b.log_probability, abs=near)


def test_searches_are_not_all_alike() -> None:
    """What the comparison above rests on: outputs of many lengths, some of them cut off."""
    model, sources = accelerated_transformer(lively(), "fp32"), sources_of(40)
    found = decode(model, sources, IDS, DecodeSettings(beam=4, num_best=4))
    lengths = {len(one.ids) for outputs in found for one in outputs}
    assert len(lengths) > 8
    kinds = {str(told(decode(model, sources, IDS, DecodeSettings(**given)))) for given in SEARCHES.values()}
    assert len(kinds) == len(SEARCHES)


def test_beginnings_that_are_given() -> None:
    model, sources, draw = lively(), sources_of(20), random.Random(1)
    prefixes = [[draw.randrange(4, V) for _ in range(draw.randint(0, 5))] for _ in sources]
    settings = DecodeSettings(beam=4, num_best=2, no_repeat_ngram=1)
    expected = decode(model, sources, IDS, settings, prefixes=prefixes)
    found = decode(accelerated_transformer(model, "fp32"), sources, IDS, settings, prefixes=prefixes)
    assert told(found) == told(expected)
    assert all(outputs[0].ids[: len(prefix)] == prefix for outputs, prefix in zip(found, prefixes, strict=True))


def test_no_token_is_allowed() -> None:
    model, nothing = transformer(), TargetIds(START, END, None, tuple(range(V)))
    for settings in (DecodeSettings(beam=1), DecodeSettings(beam=3, num_best=3)):
        expected = decode(model, [[5, 6]], nothing, settings)
        assert told(decode(accelerated_transformer(model, "fp32"), [[5, 6]], nothing, settings)) == told(expected)


def test_equal_scores_go_to_the_earlier_beginning_and_the_lower_id() -> None:
    model = transformer()
    with torch.no_grad():
        assert model.output is not None
        assert model.output_bias is not None
        model.output.weight[40:60] = model.output.weight[30]
        model.output_bias[40:60] = model.output_bias[30] = 3.0
    for settings in (DecodeSettings(beam=1), DecodeSettings(beam=5, num_best=5, max_length=6)):
        expected = decode(model, sources_of(9), IDS, settings)
        assert told(decode(accelerated_transformer(model, "fp32"), sources_of(9), IDS, settings)) == told(expected)


def test_draws_are_the_same() -> None:
    model, sources = lively(), sources_of(12)
    settings = DecodeSettings(num_best=3, beam=1, sampling=SamplingSettings(top_k=20, seed=4))
    expected = decode(model, sources, IDS, settings)
    assert told(decode(accelerated_transformer(model, "fp32"), sources, IDS, settings)) == told(expected)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("beam", [1, 4, 8])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_same_in_any_company(precision: Any, beam: int, threads: int) -> None:
    """To the last bit: every sentence alone, and in batches of any size and order."""
    fast, sources, draw = accelerated_transformer(lively(), precision), sources_of(30), random.Random(0)
    settings = DecodeSettings(beam=beam, num_best=beam)
    alone = [decode(fast, [source], IDS, settings)[0] for source in sources]
    fast.threads = threads
    for size in (1, 3, 16, None):
        order = draw.sample(range(30), 30)
        found = decode(fast, [sources[number] for number in order], IDS, settings, batch_size=size)
        assert all(one == alone[number] for one, number in zip(found, order, strict=True))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_draws_are_the_same_in_any_company(precision: Any) -> None:
    fast, sources = accelerated_transformer(lively(), precision), sources_of(12)
    settings = DecodeSettings(num_best=2, beam=1, sampling=SamplingSettings(seed=3))
    alone = [decode(fast, [source], IDS, settings)[0] for source in sources]
    assert decode(fast, sources, IDS, settings) == alone


@pytest.mark.skipif(not INT8, reason="no int8 on this processor")
@pytest.mark.parametrize("variant", VARIANTS)
def test_int8_comes_close(variant: str) -> None:
    model, sources = transformer(**VARIANTS[variant]), sources_of(8)
    steps = accelerated_transformer(model, "int8").quick()
    assert steps is not None
    with torch.inference_mode():
        ours, theirs = steps.start(steps.encode(Batch.of(sources))), model.start(model.encode(Batch.of(sources)))
        for token in (START, 7, 8, 9):
            found, ours = steps.step(torch.full((8,), token), ours)
            expected, theirs = model.step(torch.full((8,), token), theirs)
            assert torch.cosine_similarity(found, expected, dim=-1).mean() > 0.99
            assert not torch.equal(found, expected)


def test_whoever_watches_inside_gets_torch() -> None:
    model, sources = transformer(), sources_of(3)
    fast, seen = accelerated_transformer(model, "fp32"), []
    handle = model.decoder.blocks[0].register_forward_pre_hook(lambda *_: seen.append("called"))
    assert fast.quick() is None
    handle.remove()
    assert fast.quick() is not None
    settings = DecodeSettings(beam=3, coverage_penalty=0.4)
    assert decode(fast, sources, IDS, settings) == decode(model, sources, IDS, settings)
    pairs = [[5, 6]], [[7, 8, 9]]
    assert torch.equal(align(fast, *pairs, start_id=START)[0], align(model, *pairs, start_id=START)[0])


UNFIT: dict[str, dict[str, Any]] = {
    "positions in attention": {"positions": {"kind": "rotary"}},
    "projections": {"projections": "shared_qk"},
    "score": {"score": "additive"},
    "feed-forward network": {"gated": True},
    "norm": {"residual": False},
    "RMSNorm": {"norm": "rms", "final_norm": True},
    "ComplexPositions": {"positions": {"kind": "complex"}},
    "adaptive output": {"output": {"kind": "adaptive", "cutoffs": [40]}},
}


@pytest.mark.parametrize("part", UNFIT)
def test_what_the_kernels_do_not_know_stays_with_torch(part: str) -> None:
    chosen = choose(transformer(**UNFIT[part]), "fp32")
    assert chosen.engine == "torch"
    assert part in chosen.why


def test_other_models_stay_with_torch() -> None:
    lstm = build_model(LstmSettings(source_vocab_size=9, target_vocab_size=9, hidden_size=8))
    assert "LstmSeq2Seq" in choose(lstm, "int8").why
    assert "float64" in choose(transformer().double(), "fp32").why
    assert choose(transformer(), "fp32").engine in ("fp32", "torch")


def test_errors_are_torchs() -> None:
    fast = accelerated_transformer(transformer(positions={"kind": "learned"}, max_length=30), "fp32")
    with pytest.raises(UserError, match="id 999"):
        decode(fast, [[5, 999]], IDS)
    with pytest.raises(UserError, match="40 tokens"):
        decode(fast, [[5] * 40], IDS)
    with pytest.raises(UserError, match="id 999"):
        decode(fast, [[5]], IDS, prefixes=[[999]])
    assert len(decode(fast, [[5] * 30], IDS, DecodeSettings(min_length=29, max_ratio=None))[0][0].ids) == 29
    assert decode(fast, [[], [5]], IDS)[0][0].ids == []
    assert decode(fast, [], IDS) == []


@pytest.mark.parametrize(
    "where", ["output.weight", "decoder.blocks.0.ffn.inner.weight", "encoder.blocks.1.ffn.outer.bias"]
)
def test_not_a_number(where: str) -> None:
    model = transformer()
    with torch.no_grad():
        model.get_parameter(where).view(-1)[7] = float("nan")
    for beam in (1, 3):
        with pytest.raises(TaskError, match="earlier checkpoint"):
            decode(accelerated_transformer(model, "fp32"), [[5, 6]], IDS, DecodeSettings(beam=beam))


def test_many_threads_of_python_at_once() -> None:
    fast, sources = accelerated_transformer(lively(), "fp32"), sources_of(16)
    expected = decode(fast, sources, IDS)
    found: list[Any] = []
    workers = [
        threading.Thread(target=lambda: found.extend(decode(fast, sources, IDS) for _ in range(5))) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 20
    assert all(one == expected for one in found)


def test_modules_stay_as_they_were() -> None:
    model = transformer().train()
    fast = accelerated_transformer(model, "fp32")
    decode(fast, sources_of(3), IDS)
    assert isinstance(fast, FastTransformer)
    assert isinstance(fast.quick(), FastSteps)
    assert all(module.training for module in model.modules())
    assert [id(tensor) for tensor in fast.parameters()] == [id(tensor) for tensor in model.parameters()]


FORKED = """
import os, random, sys, torch
sys.path.insert(0, sys.argv[1])
from test_decoder import IDS, accelerated_transformer, decode, lively, sources_of
fast, sources = accelerated_transformer(lively(), "fp32"), sources_of(20)
expected = decode(fast, sources, IDS)
child = os.fork()
if not child:
    os._exit(0 if decode(fast, sources, IDS) == expected else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_process_that_was_forked_off() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, os.path.dirname(__file__)]
    subprocess.run(command, check=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "2"})


LEAK = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from test_decoder import IDS, DecodeSettings, accelerated_transformer, decode, lively, sources_of
fast, sources = accelerated_transformer(lively(), "fp32"), sources_of(60)
sizes = []
for _ in range(60):
    decode(fast, sources, IDS, DecodeSettings(beam=6, num_best=3, no_repeat_ngram=2))
    sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
assert sizes[-1] - sizes[19] < 2000, sizes
"""


def test_no_memory_is_lost() -> None:
    command = [sys.executable, "-W", "ignore", "-c", LEAK, os.path.dirname(__file__)]
    subprocess.run(command, check=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "2"})
