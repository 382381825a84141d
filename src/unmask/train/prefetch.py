"""Micro-batches made ahead of time, by torch's own loader, in the order in which they are asked for."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from unmask.train.task import Source


@contextmanager
def prefetched(source: Source, numbers: Sequence[int], workers: int) -> Iterator[Iterator[Any]]:
    """The micro-batches with these numbers, one after another, made by so many processes beside this one."""
    loader = DataLoader(
        _Numbered(source),
        batch_size=None,
        sampler=numbers,
        num_workers=workers,
        worker_init_fn=_keep_working if workers else None,
        # A generator of its own: the loader draws seeds, and must not disturb the one that dropout draws from.
        generator=torch.Generator(),
    )
    batches = iter(loader)
    try:
        yield batches
    finally:
        _end(batches)


class _Numbered(Dataset[Any]):
    """A source as torch's loader wants it."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, number: int) -> Any:
        return self.source[number]


def _end(batches: Any) -> None:
    """End the workers now: left to the garbage collector they could outlive an exception that still holds them."""
    if isinstance(batches, _MultiProcessingDataLoaderIter):
        batches._shutdown_workers()
        for worker in batches._workers:
            if worker.is_alive():  # busy, and deaf to anything less
                worker.kill()


def _keep_working(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal, but the batches of the last update are still needed."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
