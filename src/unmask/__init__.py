"""Unmask: the Transformer and BERT, from tokenizer to fast CPU inference."""

from __future__ import annotations

__version__ = "0.1.0"
