"""Vectors to a file, as many as there are, without holding them all."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unmask.storage import replacing


def write_vectors(path: Path, chunks: Iterable[npt.NDArray[np.float32]], width: int) -> int:
    """Write (any number, width) chunks as one .npy file, which appears when it is complete; gives the rows."""
    rows = 0
    with replacing(path) as draft, draft.open("wb") as file:
        file.write(_header(rows, width))
        for chunk in chunks:
            file.write(chunk.astype("<f4").tobytes())
            rows += len(chunk)
        file.seek(0)
        file.write(_header(rows, width))  # only the end of the texts tells how many there were
    return rows


def _header(rows: int, width: int) -> bytes:
    """The start of a version 1.0 .npy file, of the same length whatever `rows` is."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    text = text.ljust(128 - 10 - 1) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()
