"""Watch a model run, from outside: module by module, or call by call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Step(NamedTuple):
    """One module of a pass, with what it was given first and what it gave."""

    name: str
    module: nn.Module
    given: Tensor
    gave: Tensor


def passed(model: nn.Module, run: Callable[[], Tensor], also: tuple[type[nn.Module], ...] = ()) -> list[Step]:
    """The modules that a pass runs, in its order: those without parts of their own, and some kinds besides."""
    steps: list[Step] = []

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, given, gave: steps.append(Step(name, module, given[0], gave))

    modules = [(name, one) for name, one in model.named_modules() if isinstance(one, also) or not any(one.children())]
    handles = [module.register_forward_hook(note(name)) for name, module in modules]
    try:
        with torch.no_grad():
            answer = run()
    finally:
        for handle in handles:
            handle.remove()
    return [*steps, Step("answer", model, answer, answer)]


def first_difference(one: list[Step], other: list[Step]) -> int | None:
    """The number of the first module that gave two different things in two passes."""
    pairs = enumerate(zip(one, other, strict=True))
    return next((number for number, (a, b) in pairs if not torch.equal(a.gave, b.gave)), None)


class Calls(TorchFunctionMode):
    """Counts which of torch's layers are called, whatever module calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.kinds = {F.linear: "linear", F.layer_norm: "norm", F.embedding: "embedding", F.dropout: "dropout"}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call more."""
        kwargs = kwargs or {}
        if func in self.kinds:
            self.counts[self.kinds[func]] += 1
        elif func is F.scaled_dot_product_attention:
            self.counts["attention"] += 1
            self.counts["dropout"] += kwargs.get("dropout_p", 0.0) > 0  # on the weights, inside the kernel
        return func(*args, **kwargs)
