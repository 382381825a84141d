"""Every knob turns something: another value of any setting changes parameters, their first values or the output.

Fields are found by themselves. A switch is tried the other way and a choice with all its options; any other field
needs a value in ALTERNATIVES, and a test fails where it has none.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest
import torch
from torch import Tensor

import unmask.models.settings
import unmask.nn.settings
from unmask.config import Settings
from unmask.models.assign import named_tensors
from unmask.models.bert import Bert
from unmask.models.gpt import Gpt
from unmask.models.init import build_model
from unmask.models.recurrent import LstmSeq2Seq
from unmask.models.settings import (
    BertSettings,
    ClassifySettings,
    GptSettings,
    HeadSettings,
    LstmSettings,
    MaskedTokenSettings,
    StackSettings,
    TagSettings,
    TransformerSettings,
)
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch
from unmask.nn.settings import (
    AdaptiveSettings,
    BucketSettings,
    DropoutSettings,
    LayerSettings,
    NoPositionsSettings,
    PositionSettings,
    RotarySettings,
    ShawSettings,
    SinusoidalSettings,
)

Model = BertSettings | GptSettings | TransformerSettings | LstmSettings

#: Fields that say which class of settings it is, and so have one value.
DISCRIMINATORS = {"kind", "model"}

IDS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [12, 3, 5], [2, 4, 6, 8, 10]]
SEGMENTS = [[0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1], [0, 1, 1], [0, 0, 1, 1, 1]]

LAYER = {"hidden_size": 12, "num_heads": 3, "ffn_size": 17, "init_std": 0.3}
MODELS: dict[str, Model] = {
    "bert": BertSettings(**LAYER, vocab_size=13, num_layers=2),
    "gpt": GptSettings(**LAYER, vocab_size=13, num_layers=2),
    "transformer": TransformerSettings(
        **LAYER, source_vocab_size=13, target_vocab_size=13, num_encoder_layers=2, num_decoder_layers=2
    ),
    "lstm": LstmSettings(source_vocab_size=13, target_vocab_size=13, hidden_size=12),
}
LAYERED = [name for name, settings in MODELS.items() if isinstance(settings, LayerSettings)]


@dataclass(frozen=True)
class Other:
    """Another value, and what else must be set, before and after, for it to matter or to be allowed."""

    value: Any
    base: dict[str, Any] = field(default_factory=dict)


#: By field; by class and field where the same name needs different values.
ALTERNATIVES: dict[str | tuple[type[Settings], str], Other] = {
    "hidden_size": Other(24),
    "num_heads": Other(2),
    "ffn_size": Other(19),
    "head_size": Other(5),
    "positions": Other(NoPositionsSettings()),
    "norm_eps": Other(1e-2),
    "dropout": Other(DropoutSettings.everywhere(0.0)),
    "init_std": Other(0.1, {"init": "truncated_normal"}),
    "init_branches": Other(0.25),
    "vocab_size": Other(14),
    "num_layers": Other(3),
    "max_length": Other(31, {"positions": unmask.nn.settings.LearnedSettings()}),
    "heads_by_layer": Other((2, 1)),
    "ffn_by_layer": Other((17, 5)),
    "num_segments": Other(3),
    "heads": Other((unmask.models.settings.SpanSettings(),)),
    "source_vocab_size": Other(14, {"tie": "target"}),
    "target_vocab_size": Other(14, {"tie": "target"}),
    "num_encoder_layers": Other(3),
    "num_decoder_layers": Other(3),
    (DropoutSettings, "embedding"): Other(0.5),
    (DropoutSettings, "residual"): Other(0.5),
    (DropoutSettings, "attention"): Other(0.5),
    (DropoutSettings, "activation"): Other(0.5),
    (SinusoidalSettings, "start"): Other(2),
    (RotarySettings, "base"): Other(100.0),
    (BucketSettings, "num_buckets"): Other(12),
    (BucketSettings, "max_distance"): Other(6, {"num_buckets": 8}),
    (ShawSettings, "max_distance"): Other(3),
    (ClassifySettings, "labels"): Other(("a", "b", "c")),
    (ClassifySettings, "dropout"): Other(0.5),
    (TagSettings, "labels"): Other(("a", "b", "c")),
    (TagSettings, "dropout"): Other(0.5),
    (LstmSettings, "dropout"): Other(0.5),
    (TransformerSettings, "output"): Other(AdaptiveSettings(cutoffs=(4,)), {"tie": "none"}),
    (MaskedTokenSettings, "output"): Other(AdaptiveSettings(cutoffs=(4,)), {"tied": False}),
    (AdaptiveSettings, "cutoffs"): Other((5,)),
    (AdaptiveSettings, "div_value"): Other(2.0),
}
REQUIRED = {"labels": ("a", "b"), "cutoffs": (4,)}


def every_class() -> list[type[Settings]]:
    """All classes of settings of the two rooms, bases too."""
    found: list[type[Settings]] = []
    waiting: list[type[Settings]] = [Settings]
    while waiting:
        for one in waiting.pop().__subclasses__():
            if one.__module__ in (unmask.nn.settings.__name__, unmask.models.settings.__name__) and one not in found:
                found.append(one)
                waiting.append(one)
    return found


def options_of(union: Any) -> tuple[type[Settings], ...]:
    """The classes of a tagged union."""
    return get_args(get_args(union)[0])


def others(cls: type[Settings], name: str) -> list[Other]:
    """The other values of a field to try."""
    about = cls.model_fields[name]
    registered = ALTERNATIVES.get((cls, name), ALTERNATIVES.get(name))
    if registered is not None:
        return [registered]
    if about.annotation is bool:
        return [Other(not about.default)]
    if get_origin(about.annotation) is Literal:
        return [Other(option) for option in get_args(about.annotation) if option != about.default]
    raise AssertionError(f"{cls.__name__}.{name} is new: give it another value in ALTERNATIVES")


def pairs(cls: type[Settings], name: str) -> list[tuple[Model, Model]]:
    """Whole models that differ in one field of a class of settings."""
    made = []
    for other, model in itertools.product(others(cls, name), MODELS.values()):
        required = {key: value for key, value in REQUIRED.items() if key in cls.model_fields}
        for place in places(cls, model):
            if place is None:
                made.append((model.replace(**other.base), model.replace(**other.base | {name: other.value})))
                continue
            one, two = cls(**required | other.base), cls(**required | other.base | {name: other.value})
            wrap = (lambda part: (part,)) if place == "heads" else (lambda part: part)
            free = {"tie": "none"} if place == "output" else {}
            made.append((model.replace(**{place: wrap(one)} | free), model.replace(**{place: wrap(two)} | free)))
    return made


def places(cls: type[Settings], model: Model) -> list[str | None]:
    """The field of `model` where settings of a class stand; None where the model itself has its fields."""
    if isinstance(model, cls):
        return [None]
    if not isinstance(model, LayerSettings):
        return []
    if cls is DropoutSettings:
        return ["dropout"]
    if cls in options_of(PositionSettings):
        return ["positions"]
    if cls is AdaptiveSettings:
        return ["output"] if isinstance(model, TransformerSettings) else []
    return ["heads"] if cls in options_of(HeadSettings) and isinstance(model, BertSettings) else []


class Fingerprint(NamedTuple):
    shapes: dict[str, torch.Size]
    values: list[Tensor]
    outputs: list[Tensor]


def fingerprint(settings: Model) -> Fingerprint:
    """Names and shapes, first values, and all that the model says in training under a fixed seed."""
    model = build_model(settings, seed=5).train()
    tensors = {name: tensor.detach().clone() for name, tensor in named_tensors(model).items()}
    torch.manual_seed(7)
    with torch.no_grad():
        outputs = say(model)
    return Fingerprint({name: tensor.shape for name, tensor in tensors.items()}, list(tensors.values()), outputs)


def say(model: Bert | Gpt | Transformer | LstmSeq2Seq) -> list[Tensor]:
    batch = Batch.of(IDS, SEGMENTS)
    match model:
        case Gpt():
            return [model(batch)]
        case Transformer() | LstmSeq2Seq():
            return [model(batch, Batch.of(IDS[::-1]))]
        case Bert():
            encoded = model(batch)
            said = [encoded.sequence] if encoded.pooled is None else [encoded.sequence, encoded.pooled]
            if "mlm" in model.heads:
                said.append(model.masked_token_logits(encoded.sequence))
            if "classify" in model.heads:
                logits = model.class_logits(encoded)
                said += [logits, model.class_probabilities(logits)]
            if "tag" in model.heads:
                said.append(model.tag_logits(encoded))
            return said


def same(one: Fingerprint, two: Fingerprint) -> bool:
    if one.shapes != two.shapes or len(one.outputs) != len(two.outputs):
        return False
    tensors = zip(one.values + one.outputs, two.values + two.outputs, strict=True)
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in tensors)


CLASSES = every_class()
BASES = (LayerSettings, StackSettings)  # their fields are tried in each model that inherits them
KNOBS = [(cls, name) for cls in CLASSES if cls not in BASES for name in cls.model_fields if name not in DISCRIMINATORS]


def test_all_classes_are_found_and_hosted() -> None:
    hosted = {*options_of(PositionSettings), *options_of(HeadSettings), *map(type, MODELS.values())}
    assert set(CLASSES) == hosted | {AdaptiveSettings, DropoutSettings, *BASES}
    for base in BASES:
        assert any(issubclass(cls, base) and cls not in BASES for cls in CLASSES)


def test_only_discriminators_are_exempt() -> None:
    for cls in CLASSES:
        for name in DISCRIMINATORS & cls.model_fields.keys():
            assert get_args(cls.model_fields[name].annotation) == (cls.model_fields[name].default,)


@pytest.mark.parametrize("model", MODELS)
def test_nothing_turned_changes_nothing(model: str) -> None:
    """Without this the others would prove nothing."""
    assert same(fingerprint(MODELS[model]), fingerprint(MODELS[model].replace()))


@pytest.mark.parametrize(("cls", "name"), KNOBS, ids=[f"{cls.__name__}.{name}" for cls, name in KNOBS])
def test_every_knob_turns_something(cls: type[Settings], name: str) -> None:
    tried = pairs(cls, name)
    assert tried
    for one, two in tried:
        assert not same(fingerprint(one), fingerprint(two)), f"{one.model}: {name} turns nothing"


@pytest.mark.parametrize("model", LAYERED)
def test_every_kind_of_positions_is_another(model: str) -> None:
    prints = {cls: fingerprint(MODELS[model].replace(positions=cls())) for cls in options_of(PositionSettings)}
    for (one, first), (two, second) in itertools.combinations(prints.items(), 2):
        outputs = zip(first.outputs, second.outputs, strict=True)
        assert not all(torch.equal(a, b) for a, b in outputs), f"{one.__name__} and {two.__name__}"


CHOICES = [name for name, about in LayerSettings.model_fields.items() if get_origin(about.annotation) is Literal]


@pytest.mark.parametrize("name", CHOICES)
def test_choices_differ_from_each_other(name: str) -> None:
    """Not only from the default."""
    options = get_args(LayerSettings.model_fields[name].annotation)
    prints = {option: fingerprint(MODELS["bert"].replace(**{name: option})) for option in options}
    for one, two in itertools.combinations(options, 2):
        assert not same(prints[one], prints[two]), f"{one} and {two}"


def test_a_new_field_without_an_alternative_is_noticed() -> None:
    class Newer(BertSettings):
        temperature: float = 1.0
        quiet: bool = False

    assert others(Newer, "quiet") == [Other(True)]
    with pytest.raises(AssertionError, match=r"Newer\.temperature is new"):
        others(Newer, "temperature")
