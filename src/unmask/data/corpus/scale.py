"""A corpus from more text than one machine can encode: the build's middle part as a Ray Data pipeline.

    build_with(on_ray(address="auto"), files, tokenizer, out)

    files ──read──▶ requests ──encode──▶ answers ──write──▶ shards
            tasks of the cluster, in order         here, as ever

Requests and answers are the frames that the worker processes of one machine use, so both ways run the same code and
give the same bytes. What is wrong with a file comes back as an answer, too, and is said in the order of the text. An
interrupted build goes on, on a cluster or without one: `OUT.partial` does not know who encoded.

What scales: encoding, nearly all of the work, with the cores of the cluster. And reading, with the number of files: one
is read by one task, and others are read ahead as far as the cluster's memory goes, so many files of some hundred
megabytes are better than one of a terabyte. What does not scale: one process, this one, writes the shards, because
where a shard ends depends on all text before it. It keeps up with some seventy cores (twenty if no words are looked
for, which is quicker); more cores than that wait for it. Its memory stays as it is, but for some kilobytes that Ray
remembers of every block: readers and encoders are slowed down when answers pile up.

Every machine must find the files under the same path, and have the same versions of this package and of those that
decide about tokens. The tokenizer is sent along. Ray moves functions and rows between its own processes with its own
serialisation, a form of pickle: connect only to a cluster that you trust. Nothing of ours is stored or read that way.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import logging
import os
import platform
import signal
import socket
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from unmask.data.corpus.build import Encode
from unmask.data.corpus.draft import Draft, Task
from unmask.data.corpus.format import TOKENIZER, CorpusSettings
from unmask.data.corpus.inputs import Chunk, Input, Place, read_chunks
from unmask.data.corpus.pool import available_cores
from unmask.data.corpus.worker import ChunkEncoder, EncodedChunk, receive_encoded, send_chunk, send_error, serve
from unmask.errors import DataError, FetchError, SettingsError, UserError

#: About so many bytes are handed over at once: little enough that one file keeps many cores busy, but not less, since
#: Ray remembers some kilobytes of every block until the end.
BLOCK_BYTES = 1 << 23
#: A task goes on with the next file until it has read so much.
RUN_BYTES = 1 << 26
# One reader feeds a dozen encoders, or four that look for no words.
_CORES_A_READER = 4
# Seconds that a cluster may take to open the door.
_PATIENCE = 10
# What decides about tokens; two machines that differ in one of these could differ in their answers.
_DECIDING = ("unmask", "tokenizers", "rjieba")


@dataclass(frozen=True)
class Shipped:
    """What a machine needs to encode, and what it must have itself."""

    tokenizer: tuple[tuple[str, bytes], ...]
    """The names and contents of its files."""
    settings: CorpusSettings
    versions: tuple[str, ...]


def on_ray(workers: int | None = None, *, address: str | None = None) -> Encode:
    """Encoding on a Ray cluster, for `build_with`; at most so many workers, as many as it has cores if it is None.

    The cluster is the one that this program is connected to, or else that at `address` (`auto` for one on this
    machine), or in the environment variable RAY_ADDRESS, or a new one of this machine alone, which ends with the build.
    """
    if workers is not None and workers < 1:
        raise SettingsError(f"workers: {workers} is too few; at least 1 is needed")
    _import("ray.data")  # said now if it is missing, before anything is begun

    def encode(draft: Draft) -> Generator[tuple[Chunk, EncodedChunk]]:
        if draft.place.file == len(draft.journal.task.inputs):
            return  # an earlier build had read everything
        with _connected(workers, address) as ray, _cluster_trouble(ray):
            answers = _answers(ray, draft, workers)
            # Blocks as they come, and one more on its way while one is written.
            batches = iter(answers.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=2))
            with contextlib.closing(batches):
                yield from _received(batches, draft.journal.task)

    return encode


def _answers(ray: Any, draft: Draft, workers: int | None) -> Any:
    """The data set of all answers, in order; nothing is done before it is asked for them."""
    task, runs = draft.journal.task, _runs(draft)
    cores = int(ray.cluster_resources().get("CPU", 1))
    readers = min(len(runs), max(2, cores // _CORES_A_READER))
    folder = draft.corpus / TOKENIZER
    tokenizer = tuple((path.name, path.read_bytes()) for path in sorted(folder.iterdir()))
    context = ray.data.DataContext.get_current().copy()
    context.execution_options.preserve_order = True
    if workers is not None:
        context.execution_options.resource_limits = ray.data.ExecutionResources(cpu=workers)
    context.enable_progress_bars = False
    context.target_max_block_size = BLOCK_BYTES
    with ray.data.DataContext.current(context):
        # Readers claim no core (they mostly wait), so that a small machine has all of its own for encoding. That they
        # claim something else than the encoders also keeps Ray from joining both into one step.
        requests = ray.data.from_items(runs, override_num_blocks=len(runs)).map_batches(
            requests_of,
            batch_format="pyarrow",
            fn_args=(task.inputs, task.settings),
            num_cpus=0,
            compute=ray.data.TaskPoolStrategy(size=readers),
        )
        return requests.map_batches(
            answers_to,
            batch_format="pyarrow",
            fn_args=(Shipped(tokenizer, task.settings, _versions()),),
            num_cpus=1,
        )


def _runs(draft: Draft) -> list[dict[str, int]]:
    """What one task reads, from a place up to a file: small files together, since a task has its price."""
    inputs, start = draft.journal.task.inputs, draft.place
    runs: list[dict[str, int]] = []
    size = 0
    for number in range(start.file, len(inputs)):
        if not runs or size >= RUN_BYTES:
            runs.append({"file": number, "line": start.line if number == start.file else 1})
            size = 0
        runs[-1]["end"] = number + 1
        size += inputs[number].bytes
    return runs


def requests_of(runs: Any, inputs: Sequence[Input], settings: CorpusSettings) -> Iterator[Any]:
    """The chunks of files, read on a machine of the cluster: a table of one row for each."""
    for run in runs.to_pylist():
        start = Place(run["file"], run["line"])
        try:
            for chunk in read_chunks(inputs[: run["end"]], settings, start):
                frame = io.BytesIO()
                send_chunk(frame, chunk)
                yield _row(chunk, frame, answered=False)
        except UserError as error:
            frame = io.BytesIO()
            send_error(frame, _explained(error))
            yield _row(Chunk(start, "", "text", False, "", 0), frame, answered=True)


def answers_to(requests: Any, shipped: Shipped) -> Any:
    """The same rows with answers in place of requests, encoded on a machine of the cluster."""
    arrow = _import("pyarrow")
    rows = requests.select(["frame", "answered"]).to_pylist()
    frames = [row["frame"] if row["answered"] else _answer(row["frame"], shipped) for row in rows]
    column = requests.schema.get_field_index("frame")
    return requests.set_column(column, "frame", arrow.array(frames, arrow.large_binary()))


def _answer(request: bytes, shipped: Shipped) -> bytes:
    answer = io.BytesIO()
    try:
        encoder = _encoder(shipped)
    except UserError as error:
        send_error(answer, error)
    else:
        serve(io.BytesIO(request), answer, encoder)
    return answer.getvalue()


@functools.lru_cache(maxsize=1)
def _encoder(shipped: Shipped) -> ChunkEncoder:
    """The encoder of this process, kept so that its memory of words lasts; UserError if it could give other tokens."""
    for ours, theirs in zip(_versions(), shipped.versions, strict=True):
        if ours != theirs:
            raise UserError(
                f"{platform.node()} has {ours} but the build was started with {theirs}; "
                "install the same versions on every machine of the cluster"
            )
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a core each; threads would only get in each other's way
    with tempfile.TemporaryDirectory() as folder:
        for name, content in shipped.tokenizer:
            (Path(folder) / name).write_bytes(content)
        return ChunkEncoder(Path(folder), shipped.settings)


def _received(batches: Iterable[Any], task: Task) -> Iterator[tuple[Chunk, EncodedChunk]]:
    """The rows of tables of answers; a DataError that was sent is raised here."""
    last = (0, 0)
    for batch in batches:
        for row in batch.to_pylist():
            encoded = receive_encoded(io.BytesIO(row["frame"]))
            place = Place(row["file"], row["line"])
            if encoded is None or (place.file, place.line) <= last:
                raise RuntimeError(f"an answer from the cluster is cut off or comes after a later one: {place}")
            last = place.file, place.line
            name = task.inputs[place.file].path
            yield Chunk(place, name, row["kind"], row["continues"], "", row["bytes_read"]), encoded


def _row(chunk: Chunk, frame: io.BytesIO, *, answered: bool) -> Any:
    arrow = _import("pyarrow")
    columns = {
        "file": arrow.array([chunk.place.file], arrow.int64()),
        "line": arrow.array([chunk.place.line], arrow.int64()),
        "kind": arrow.array([chunk.kind], arrow.string()),
        "continues": arrow.array([chunk.continues], arrow.bool_()),
        "bytes_read": arrow.array([chunk.bytes_read], arrow.int64()),
        "answered": arrow.array([answered], arrow.bool_()),
        "frame": arrow.array([frame.getvalue()], arrow.large_binary()),
    }
    return arrow.table(columns)


def _explained(error: UserError) -> UserError:
    """The same error, unless the file is only missing on this machine."""
    file = getattr(error, "file", None)
    if file is None or file.exists():
        return error
    told = f"is not there on {platform.node()}; every machine of the cluster must find the files under the same path"
    return DataError(told, file=file)


def _versions() -> tuple[str, ...]:
    return tuple(f"{name} {metadata.version(name)}" for name in _DECIDING)


@contextlib.contextmanager
def _connected(workers: int | None, address: str | None) -> Iterator[Any]:
    """Ray, connected and quiet; what was started for the build is ended after it."""
    ray = _import("ray")
    with _silent(logging.getLogger("ray.data")), _no_telemetry():
        if ray.is_initialized():
            yield ray
            return
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        try:
            _connect(ray, address, workers)
            yield ray
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str, workers: int | None) -> None:
    new = {"num_cpus": workers or available_cores(), "include_dashboard": False} if address == "local" else {}
    stop = signal.getsignal(signal.SIGTERM)
    try:
        _knock(address)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **new)
    except (OSError, ValueError, RuntimeError) as error:
        raise FetchError(f"the Ray cluster at {address} cannot be reached ({_first_line(error)})") from error
    finally:
        if stop is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, stop)  # Ray has put its own there


def _knock(address: str) -> None:
    """OSError if nobody is there; Ray itself would go on trying for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()


@contextlib.contextmanager
def _cluster_trouble(ray: Any) -> Iterator[None]:
    """Turn the failure of a machine into one sentence; a fault in our own code on it keeps its traceback."""
    try:
        yield
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        told = f"the Ray cluster failed ({_first_line(error)}); build again, and it goes on where it was"
        raise FetchError(told) from error


@contextlib.contextmanager
def _no_telemetry() -> Iterator[None]:
    """Have Ray gather nothing for its makers, and a Ray that is started meanwhile send them nothing."""
    before = os.environ.get("RAY_USAGE_STATS_ENABLED")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["RAY_USAGE_STATS_ENABLED"]
        else:
            os.environ["RAY_USAGE_STATS_ENABLED"] = before


@contextlib.contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _import(name: str) -> Any:
    """A module of the extra `scale`."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(
            "building on a cluster needs the package ray with its part data; install it: pip install 'unmask[scale]'"
        ) from None
