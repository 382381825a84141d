from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from unmask.errors import TaskError
from unmask.models.init import build_model
from unmask.models.recurrent import LstmEncoder
from unmask.models.settings import BertSettings, GptSettings, TransformerSettings
from unmask.nn.batch import Batch
from unmask.nn.block import EncoderBlock
from unmask.nn.settings import DropoutSettings, RotarySettings
from unmask.train.memory import checkpoint_activations

SIZES = {"hidden_size": 24, "num_heads": 3, "ffn_size": 40, "dropout": DropoutSettings.everywhere(0.2)}
BATCH = Batch.of([[1, 2, 3, 4, 5, 6, 7], [4, 5], [9, 8, 7]])
TARGET = Batch.of([[3, 1], [2, 7, 1, 8], [5]])

Say = Callable[[nn.Module], Tensor]


def bert(**changes: object) -> nn.Module:
    return build_model(BertSettings(**SIZES, vocab_size=13, num_layers=3).replace(**changes), seed=1)


def gpt() -> nn.Module:
    return build_model(GptSettings(**SIZES, vocab_size=13, num_layers=3), seed=1)


def transformer() -> nn.Module:
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 3, "source_vocab_size": 13, "target_vocab_size": 13}
    return build_model(TransformerSettings(**SIZES, **layers), seed=1)


MODELS: dict[str, tuple[Callable[[], nn.Module], Say]] = {
    "bert": (bert, lambda model: model(BATCH).pooled),
    "bert-batch-norm": (lambda: bert(norm="batch"), lambda model: model(BATCH).pooled),
    "bert-rotary-pre": (
        lambda: bert(positions=RotarySettings(), norm_place="pre", final_norm=True),
        lambda model: model(BATCH).sequence,
    ),
    "gpt": (gpt, lambda model: model(BATCH)),
    "transformer": (transformer, lambda model: model(BATCH, TARGET)),
}


def loss_of(output: Tensor) -> Tensor:
    """Any function with a gradient of its own for each number; a norm makes plain squares the same for any weights."""
    return (output * torch.linspace(-1, 1, output.numel()).view_as(output).sin()).sum()


def run(model: nn.Module, say: Say, seed: int = 3) -> tuple[Tensor, dict[str, Tensor], int]:
    """Loss, gradients, and the bytes that were kept for the backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    model.zero_grad()
    torch.manual_seed(seed)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of(say(model))
    before = sum(kept.values())
    loss.backward()
    # A generator that was left elsewhere would change all that follows.
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return torch.stack([loss.detach(), torch.rand(())]), gradients, before


@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits_with_less_memory(name: str) -> None:
    build, say = MODELS[name]
    plain, sparing = build().train(), build().train()
    checkpoint_activations(sparing)
    for seed in (3, 4):
        expected, wanted, much = run(plain, say, seed)
        found, gradients, little = run(sparing, say, seed)
        assert torch.equal(found, expected)
        assert gradients.keys() == wanted.keys()
        for parameter, gradient in gradients.items():
            assert torch.equal(gradient, wanted[parameter]), parameter
        assert little < 0.5 * much
    buffers = dict(plain.named_buffers())
    for buffer, value in sparing.named_buffers():
        assert torch.equal(value, buffers[buffer]), buffer
    torch.manual_seed(5)
    other = loss_of(say(plain))
    assert not torch.equal(other.detach(), expected[0])  # dropout was on


def blocks_run(model: nn.Module, step: Callable[[], None]) -> int:
    count = 0

    def see(*_: object) -> None:
        nonlocal count
        count += 1

    handles = [m.register_forward_pre_hook(see) for m in model.modules() if isinstance(m, EncoderBlock)]
    step()
    for handle in handles:
        handle.remove()
    return count


def test_blocks_run_twice_only_in_training_with_gradients() -> None:
    model = bert()
    assert not any(stack.recompute for stack in model.modules() if hasattr(stack, "recompute"))

    def learn() -> None:
        model(BATCH).pooled.sum().backward()

    def look() -> None:
        with torch.no_grad():
            model(BATCH)

    assert blocks_run(model, learn) == 3
    checkpoint_activations(model)
    assert blocks_run(model, learn) == 6
    assert blocks_run(model, look) == 3
    model.eval()
    assert blocks_run(model, learn) == 3
    model.train()
    checkpoint_activations(model, on=False)
    assert blocks_run(model, learn) == 3


def test_a_frozen_bottom_and_two_windows_of_accumulation() -> None:
    plain, sparing = bert(), bert()
    checkpoint_activations(sparing)
    for model in (plain, sparing):
        model.encoder.embeddings.requires_grad_(False)
        model.encoder.stack.blocks[0].requires_grad_(False)
        torch.manual_seed(0)
        for _ in range(2):
            model(BATCH).pooled.square().sum().backward()
    wanted = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for name, parameter in sparing.named_parameters():
        if wanted[name] is None:
            assert parameter.grad is None
        else:
            assert torch.equal(parameter.grad, wanted[name]), name


def test_few_digits_are_computed_again_with_as_few() -> None:
    plain, sparing = bert(), bert()
    checkpoint_activations(sparing)
    for model in (plain, sparing):
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(BATCH).pooled.float().square().sum()
        loss.backward()
    for one, two in zip(plain.parameters(), sparing.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)


def test_a_model_without_blocks_is_told() -> None:
    with pytest.raises(TaskError, match="no stack of blocks"):
        checkpoint_activations(LstmEncoder(11, 8))
    checkpoint_activations(LstmEncoder(11, 8), on=False)
