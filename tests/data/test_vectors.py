from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from unmask.data.vectors import write_vectors


@pytest.mark.parametrize("sizes", [[], [1], [3, 5, 2], [100_003]])
def test_numpy_reads_what_was_written_in_pieces(sizes: list[int], tmp_path: Path) -> None:
    chunks = [np.random.default_rng(size).normal(size=(size, 7)).astype(np.float32) for size in sizes]
    path = tmp_path / "vectors.npy"
    assert write_vectors(path, chunks, 7) == sum(sizes)
    expected = np.concatenate([np.empty((0, 7), np.float32), *chunks])
    np.testing.assert_array_equal(np.load(path, allow_pickle=False), expected)


def test_nothing_is_left_when_the_vectors_fail(tmp_path: Path) -> None:
    def chunks() -> Iterator[np.ndarray]:
        yield np.zeros((3, 7), np.float32)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        write_vectors(tmp_path / "vectors.npy", chunks(), 7)
    assert list(tmp_path.iterdir()) == []
