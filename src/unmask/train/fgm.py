"""FGM: train also on embeddings moved a little in the direction that hurts most (Miyato et al. 2017).

How a training step uses it, so that accumulation stays exact:

    backward over the whole window                  gradients g, summed over micro-batches and processes
    with perturbed(embedding_parameters(model), ε): E ← E + ε · g/‖g‖
        backward over the whole window again        adds the gradients at the moved embeddings
    clip, step                                      E is as before, to the last bit

The direction needs the gradient of the whole window. So the second backward starts after the first has ended, and
gradients are dropped (`freeze.drop_gradients`) or clipped only afterwards. A scale on the gradients, as fp16 needs,
does not change the direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unmask.errors import TaskError
from unmask.nn.embeddings import Embeddings


def embedding_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The tables of token embeddings that learn, each once. TaskError if there are none.

    A table that is tied to the output layer moves there too.
    """
    modules = [module.token for module in model.modules() if isinstance(module, Embeddings)]
    if not modules:
        raise TaskError("the model has no token embeddings for FGM to move; train it without FGM")
    tables = {id(table): table for module in modules for table in module.parameters()}
    learning = [table for table in tables.values() if table.requires_grad]
    if not learning:
        raise TaskError("the token embeddings are frozen, so FGM has no gradient to follow; let them learn or drop FGM")
    return learning


@contextmanager
def perturbed(parameters: Iterable[nn.Parameter], epsilon: float) -> Iterator[None]:
    """Within the block each parameter is moved by epsilon along its gradient; afterwards it is exactly what it was.

    The norm is that of the parameter's whole gradient, also where it is sharded over processes. A parameter stays where
    it is if its gradient is missing, zero or not finite.
    """
    saved: list[tuple[nn.Parameter, Tensor]] = []
    try:
        with torch.no_grad():
            for parameter in parameters:
                norm = _norm(parameter.grad)
                if parameter.grad is not None and 0.0 < norm < float("inf"):
                    saved.append((parameter, parameter.detach().clone()))
                    parameter.add_(parameter.grad / norm, alpha=epsilon)
        yield
    finally:
        with torch.no_grad():
            for parameter, before in saved:
                parameter.copy_(before)


def _norm(gradient: Tensor | None) -> float:
    """The norm of a gradient; 0 where there is none. NaN stays NaN."""
    if gradient is None:
        return 0.0
    found = torch.linalg.vector_norm(gradient, dtype=torch.promote_types(gradient.dtype, torch.float32))
    # A sharded tensor knows the norm of its shard; `full_tensor` puts them together, on every process the same.
    whole = getattr(found, "full_tensor", None)
    return float(found if whole is None else whole())
