"""Drawing: by the right probabilities, and the same for a sentence whatever stands beside it."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from unmask.decode.sample import draw
from unmask.decode.search import decode
from unmask.decode.settings import DecodeSettings, SamplingSettings
from unmask.decode.stepping import TargetIds
from unmask.models.init import build_model
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch

LOGITS = torch.tensor([0.3, -0.5, 1.2, 0.3, -2.0, 0.9])
COUNT = 4000
IDS = TargetIds(1, 2)


def expected(settings: SamplingSettings) -> Tensor:
    """The probabilities by their definition."""
    chances = (LOGITS.double() / settings.temperature).softmax(-1)
    order = sorted(range(6), key=lambda token: (-float(chances[token]), token))
    order = order[: settings.top_k]
    chances = chances / chances[order].sum()
    kept, total = [], 0.0
    for token in order:
        if total < settings.top_p:
            kept.append(token)
            total += float(chances[token])
    only = torch.zeros(6, dtype=torch.float64)
    only[kept] = chances[kept]
    return only / only.sum()


@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(),
        SamplingSettings(temperature=0.5),
        SamplingSettings(temperature=2.0),
        SamplingSettings(top_k=3),
        SamplingSettings(top_k=1),
        SamplingSettings(top_p=0.6),
        SamplingSettings(top_p=1e-9),
        SamplingSettings(top_k=4, top_p=0.8, temperature=1.5),
    ],
    ids=str,
)
def test_even_numbers_give_the_wanted_shares(settings: SamplingSettings) -> None:
    chances = (torch.arange(COUNT, dtype=torch.float64) + 0.5) / COUNT  # as even as can be, so nothing is left to luck
    found = draw(LOGITS.log_softmax(-1).expand(COUNT, -1), chances, settings).bincount(minlength=6)
    wanted = expected(settings)
    assert (found[wanted == 0] == 0).all()
    assert (found - wanted * COUNT).abs().max() < 1.01


def test_what_is_forbidden_is_never_drawn() -> None:
    row = LOGITS.log_softmax(-1).clone()
    row[[0, 2, 5]] = float("-inf")
    chances = torch.cat([torch.linspace(0, 1, 999, dtype=torch.float64)[:-1], torch.tensor([1 - 1e-17])])
    found = draw(row.expand(999, -1), chances.double(), SamplingSettings())
    assert set(found.tolist()) == {1, 3, 4}


def transformer() -> Transformer:
    sizes = {"hidden_size": 12, "num_heads": 3, "ffn_size": 17, "num_encoder_layers": 1, "num_decoder_layers": 1}
    vocabulary = {"source_vocab_size": 40, "target_vocab_size": 40}
    model = build_model(TransformerSettings.parse(sizes | vocabulary), seed=1)
    assert isinstance(model, Transformer)
    return model.eval()


def sampled(sources: list[list[int]], batch_size: int = 64, seed: int = 0, num_best: int = 3) -> list[list[list[int]]]:
    settings = DecodeSettings(beam=1, num_best=num_best, max_length=9, sampling=SamplingSettings(seed=seed))
    found = decode(transformer(), sources, IDS, settings, batch_size=batch_size)
    return [[one.ids for one in outputs] for outputs in found]


def test_a_sentence_is_drawn_alike_in_any_company() -> None:
    sources = [[3 + number, *range(3, 3 + number % 7)] for number in range(25)]
    together = sampled(sources)
    assert sampled(sources, batch_size=4) == together
    assert sampled(sources[::-1], batch_size=7)[::-1] == together
    assert [sampled([source])[0] for source in sources] == together
    assert [outputs[:2] for outputs in together] == sampled(sources, num_best=2)


def test_seeds_sentences_and_draws_differ() -> None:
    sources = [[3, 4], [4, 3], [5]]
    one, two = sampled(sources), sampled(sources, seed=1)
    assert one == sampled(sources)
    everything = [str(ids) for found in (one, two) for outputs in found for ids in outputs]
    assert len(set(everything)) == len(everything) == 18


def test_first_tokens_of_many_sentences_follow_the_model() -> None:
    """All the way through: the seeds of sentences make even numbers."""
    model = transformer()
    sources = [[3, 7]]
    settings = DecodeSettings(num_best=1000, max_length=1, sampling=SamplingSettings(seed=3))
    (found,) = decode(model, sources, IDS, settings)
    counts = torch.tensor([one.ids[0] if one.ids else IDS.end for one in found]).bincount(minlength=40)
    (every,) = decode(model, sources, IDS, DecodeSettings(beam=40, num_best=40, max_length=1, max_ratio=None))
    wanted = torch.zeros(40, dtype=torch.float64)
    for one in every:
        wanted[one.ids[0] if one.ids else IDS.end] = one.log_probability
    assert chisquare(counts.numpy(), (wanted.exp() / wanted.exp().sum() * 1000).numpy()).pvalue > 0.01


def test_log_probabilities_are_the_models_own() -> None:
    """Not those that temperature and top_k make of them."""
    model, settings = transformer(), SamplingSettings(temperature=0.3, top_k=5)
    sources = [[3, 4, 5], [6]]
    found = decode(model, sources, IDS, DecodeSettings(num_best=4, max_length=6, sampling=settings))
    for source, outputs in zip(sources, found, strict=True):
        for one in outputs:
            said = [*one.ids, IDS.end][: len(one.ids) + one.finished]
            logits = model(Batch.of([source]), Batch.of([[IDS.start, *said[:-1]]])).log_softmax(-1)
            total = float(logits[range(len(said)), said].detach().sum())
            assert one.log_probability == pytest.approx(total, abs=1e-4)
