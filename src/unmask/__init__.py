"""Unmask: the Transformer and BERT, from tokenizer to fast CPU inference.

import unmask

bert = unmask.load("minilm")
vectors = bert.embed(["first text", "second text"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unmask import errors

if TYPE_CHECKING:
    from unmask.bundle import Bundle, load

__version__ = "0.1.0"
__all__ = ["Bundle", "__version__", "errors", "load"]


def __getattr__(name: str) -> object:
    """Bring in torch only when it is needed, so that `unmask --help` and the text room stay quick."""
    if name in ("Bundle", "load"):
        from unmask import bundle

        return getattr(bundle, name)
    raise AttributeError(f"module 'unmask' has no attribute {name!r}")
