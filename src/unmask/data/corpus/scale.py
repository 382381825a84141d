"""A corpus from more text than one machine can encode: the build's middle part as a Ray Data pipeline.

    build_with(on_ray(address="auto"), files, tokenizer, out)

    files ──read──▶ requests ──encode──▶ answers ──in order──▶ shards
            tasks, one a file    actors, one a core     here, as ever

Requests and answers are the frames that the worker processes of one machine use, so both ways run the same code and
give the same bytes; what is wrong with a file comes back as an answer, too, and is said in the order of the text. An
interrupted build goes on, on a cluster or without one: `OUT.partial` does not know who encoded.

What scales: encoding, which is nearly all of the work, with the cores of the cluster; and reading, with the number of
files, as far as the cluster's memory can hold what was read ahead (one file is read by one task, so many files of some
hundred megabytes are better than one of a terabyte). What does not: the shards are written by one process, this one,
because where a shard ends depends on everything before it. Encoding costs some seventy times as much as that; with
many more cores than that the writer is what they wait for. Its memory does not grow: Ray slows readers and encoders
down when answers pile up.

Every machine must find the files under the same path, and have the same versions of this package and of those that
decide about tokens. The tokenizer is sent along. Ray moves functions and rows between its own processes with its own
serialisation, which is a form of pickle: connect only to a cluster that you trust. Nothing of ours is written or read
that way.
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
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
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

#: About so many bytes are handed over at once: little enough that even one file keeps many cores busy, but Ray remembers
#: some kilobytes of every block until the end.
BLOCK_BYTES = 1 << 23
#: A task goes on with the next file until it has read so much.
RUN_BYTES = 1 << 26
# One reader feeds a dozen encoders or more.
_CORES_A_READER = 8
# What decides about tokens; two machines that differ in one of these could differ in their answers.
_DECIDING = ("unmask", "tokenizers", "rjieba")
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_LOG_LEVEL": "ERROR"}


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
                for batch in batches:
                    yield from _received(batch, draft.journal.task)

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


def _received(batch: Any, task: Task) -> Iterator[tuple[Chunk, EncodedChunk]]:
    """The rows of a table of answers; a DataError that was sent is raised here."""
    for row in batch.to_pylist():
        encoded = receive_encoded(io.BytesIO(row["frame"]))
        if encoded is None:
            raise RuntimeError("an answer from the cluster was cut off")
        place = Place(row["file"], row["line"])
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
    with _environment(_QUIET), _silent(logging.getLogger("ray.data")):
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
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **new)
    except (ConnectionError, ValueError, RuntimeError) as error:
        told = str(error).strip().partition("\n")[0]
        raise FetchError(f"the Ray cluster at {address} cannot be reached ({told})") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, stop)  # Ray has put its own there


@contextlib.contextmanager
def _cluster_trouble(ray: Any) -> Iterator[None]:
    """Turn the failure of a machine into one sentence; a fault in our own code on it keeps its traceback."""
    try:
        yield
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        told = str(error).strip().partition("\n")[0]
        raise FetchError(f"the Ray cluster failed ({told}); build again, and it goes on where it was") from error


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _import(name: str) -> Any:
    """A module of the extra `scale`."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(
            "building on a cluster needs the package ray with its part data; install it: pip install 'unmask[scale]'"
        ) from None
