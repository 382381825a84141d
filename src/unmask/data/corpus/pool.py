"""Several worker processes, and their answers in the order of the questions."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, cast

from unmask.data.corpus.format import CorpusSettings
from unmask.data.corpus.inputs import Chunk
from unmask.data.corpus.worker import ChunkEncoder, EncodedChunk, receive_encoded, send_chunk
from unmask.errors import FetchError

# How many chunks wait beyond those at work: enough to keep every worker busy while one answer is written.
_AHEAD = 2


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encoded_chunks(
    chunks: Iterable[Chunk], tokenizer_folder: Path, settings: CorpusSettings, workers: int
) -> Generator[tuple[Chunk, EncodedChunk]]:
    """Every chunk with its tokens, in order, whatever worker was first; never more than a few in memory."""
    if workers == 1:
        encoder = ChunkEncoder(tokenizer_folder, settings)
        for chunk in chunks:
            yield chunk, encoder.encode(chunk)
        return
    free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    processes: list[_Worker] = []
    # Each thread only waits for its process, so that writing to one never blocks reading from another.
    threads = ThreadPoolExecutor(workers)
    waiting: deque[tuple[Chunk, Future[EncodedChunk]]] = deque()

    def ask(chunk: Chunk) -> EncodedChunk:
        worker = free.get()
        try:
            return worker.encode(chunk)
        finally:
            free.put(worker)

    try:
        for _ in range(workers):
            processes.append(_Worker(tokenizer_folder, settings))
            free.put(processes[-1])
        for chunk in chunks:
            waiting.append((chunk, threads.submit(ask, chunk)))
            while len(waiting) >= workers + _AHEAD:
                asked, answer = waiting.popleft()
                yield asked, answer.result()
        while waiting:
            asked, answer = waiting.popleft()
            yield asked, answer.result()
    finally:
        for process in processes:
            process.end()
        threads.shutdown(cancel_futures=True)


class _Worker:
    """One process that encodes."""

    def __init__(self, tokenizer_folder: Path, settings: CorpusSettings) -> None:
        command = [sys.executable, "-m", "unmask.data.corpus.worker", str(tokenizer_folder.absolute())]
        # The processes are what runs at the same time; threads of the tokenizer would only get in their way.
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [*command, json.dumps(settings.model_dump(mode="json"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # so that Ctrl-C does not reach it before it can say that it minds not
        )
        self._requests = cast(BinaryIO, self._process.stdin)
        self._answers = cast(BinaryIO, self._process.stdout)

    def encode(self, chunk: Chunk) -> EncodedChunk:
        """The tokens of a chunk."""
        try:
            send_chunk(self._requests, chunk)
            answer = receive_encoded(self._answers)
        except BrokenPipeError:
            answer = None
        if answer is not None:
            return answer
        code = self._process.wait()
        if code < 0:
            raise FetchError(f"a worker was ended by signal {-code}; if memory ran out, use fewer workers")
        raise RuntimeError(f"a worker ended with code {code}; what it said is above")

    def end(self) -> None:
        """Stop the process and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        for stream in (self._requests, self._answers):
            with contextlib.suppress(OSError):  # what was not written any more need not be
                stream.close()
