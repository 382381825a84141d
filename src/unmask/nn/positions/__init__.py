"""Where a token stands: every scheme the papers discuss, behind one interface."""

from unmask.nn.positions.absolute import ComplexPositions, LearnedPositions, SinusoidalPositions, sinusoids
from unmask.nn.positions.base import NoPositions, Positions
from unmask.nn.positions.relative import (
    AlibiPositions,
    BucketPositions,
    RotaryPositions,
    ShawPositions,
    TransformerXLPositions,
)

__all__ = [
    "AlibiPositions",
    "BucketPositions",
    "ComplexPositions",
    "LearnedPositions",
    "NoPositions",
    "Positions",
    "RotaryPositions",
    "ShawPositions",
    "SinusoidalPositions",
    "TransformerXLPositions",
    "sinusoids",
]
