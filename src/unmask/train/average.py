"""An exponential moving average of a model's weights, which often predicts better than the last ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unmask.errors import ModelError
from unmask.models.assign import named_tensors
from unmask.train.world import part_like


class Average:
    """average ← decay · average + (1 − decay) · weights, after each update of the model.

    With `warmup` the decay is at most (1 + n) / (10 + n), where n counts the updates before this one: so the first
    values, which know nothing, are soon forgotten. Parameters and floating-point buffers are averaged; buffers of other
    kinds stay the model's own. Averages have at least 32 bits, as small changes would vanish in fewer. Each process
    averages its own shards.
    """

    def __init__(self, model: nn.Module, decay: float, *, warmup: bool = False) -> None:
        self.decay = decay
        self.warmup = warmup
        self.updates = 0
        self._averages = {name: _wide(tensor.detach()).clone() for name, tensor in _floating(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights as they are now."""
        live = self._matched(model)
        own = [_local(average) for average in self._averages.values()]
        new = [_wide(_local(tensor.detach())) for tensor in live]
        torch._foreach_lerp_(own, new, 1 - self.decay_now)
        self.updates += 1

    @property
    def decay_now(self) -> float:
        """The decay of the next update."""
        return min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint needs: each average as `weights.NAME`, and `updates`."""
        averages = {f"weights.{name}": average for name, average in self._averages.items()}
        return {"updates": torch.tensor(self.updates), **averages}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave. Whole tensors are cut into shards where the model's are."""
        own = self.tensors()
        if set(own) != set(tensors):
            different = sorted(set(own) ^ set(tensors))
            raise ModelError(
                f"the stored average belongs to another model: {len(different)} tensors differ, as {different[0]}; "
                "go on with the model and settings that the run began with"
            )
        for name, average in own.items():
            if average.shape != tensors[name].shape:
                raise ModelError(
                    f"the stored average of {name} has shape {tuple(tensors[name].shape)} but the model's is "
                    f"{tuple(average.shape)}; go on with the model that the run began with"
                )
        for name, average in self._averages.items():
            average.copy_(part_like(tensors[f"weights.{name}"], average))
        self.updates = int(tensors["updates"])

    @contextmanager
    def standing_in(self, model: nn.Module) -> Iterator[None]:
        """Within the block the model has the averaged weights; afterwards its own again, to the last bit."""
        live = self._matched(model)
        saved = [tensor.detach().clone() for tensor in live]
        try:
            _copy(live, list(self._averages.values()))
            yield
        finally:
            _copy(live, saved)
        if any(now is not before for now, before in zip(self._matched(model), live, strict=True)):
            # FSDP2 has put its shards together and would go on with these, which hold the averages.
            raise RuntimeError("parameters were left unsharded: use fully_shard(…, reshard_after_forward=True)")

    def hand_over(self, model: nn.Module) -> None:
        """Give a model the averaged weights for good."""
        _copy(self._matched(model), list(self._averages.values()))

    def _matched(self, model: nn.Module) -> list[Tensor]:
        """The model's tensors in the order of the averages."""
        found = _floating(model)
        if found.keys() != self._averages.keys():
            raise ValueError(
                "the average was made of a model with other names: use the same model, or the same wrapper"
            )
        return [found[name] for name in self._averages]


def _floating(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in named_tensors(model).items() if tensor.is_floating_point()}


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _local(tensor: Tensor) -> Tensor:
    """The shard that this process holds, which shares its memory; an ordinary tensor is its own.

    torch's many-tensor functions want plain tensors, all of a kind, and an average needs no other process.
    """
    shard = getattr(tensor, "to_local", None)
    return tensor if shard is None else shard()


@torch.no_grad()
def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
