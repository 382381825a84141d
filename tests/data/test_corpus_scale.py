"""Corpora built on Ray are, byte for byte, those that one machine builds."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from unmask.cli.main import run
from unmask.data.corpus import build, scale
from unmask.data.corpus.build import Progress, build_corpus, build_with, on_this_machine
from unmask.data.corpus.format import CorpusSettings
from unmask.data.corpus.inputs import CHUNK_CHARACTERS, Chunk, Input, Place
from unmask.data.corpus.scale import Shipped, on_ray
from unmask.data.corpus.worker import receive_encoded, send_chunk
from unmask.errors import DataError, FetchError, SettingsError, UserError
from unmask.text import Tokenizer

# Of Ray's own code, about Ray's own settings.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

WORDS = ["hello", "world", "##ing", "abc", "北京", "我爱你", "3.14", "hiing!", "龘", "é"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *".,!?'-", *(f"##{letter}" for letter in LETTERS)]
TOKENS += ["hello", "world", "##ing", *"我爱你北京天安门是的首都。，！？"]
SETTINGS = CorpusSettings(shard_tokens=100_000)

# The command, handing over small blocks so that there is something to interrupt.
PROGRAM = """
import sys
from unmask.cli import main
from unmask.data.corpus import scale

scale.BLOCK_BYTES = 1 << 16
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray of this machine, to which builds find this process connected."""
    import ray

    stop = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # or other tests would leave it nothing
        ray.init(
            "local",
            num_cpus=2,
            object_store_memory=100 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    yield
    ray.shutdown()
    signal.signal(signal.SIGTERM, stop)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind, some of several chunks, and the corpus that one machine makes of them."""
    path: Path = tmp_path_factory.mktemp("scale")
    draw = np.random.default_rng(3)
    long = sentences(draw, 5 * CHUNK_CHARACTERS)  # one document, cut over several chunks
    (path / "a.txt").write_text("\n".join(long) + "\n\n" + text(draw, 2 * CHUNK_CHARACTERS), encoding="utf-8")
    (path / "b.txt.gz").write_bytes(gzip.compress(text(draw, CHUNK_CHARACTERS).encode()))
    (path / "c.txt").write_text("\n\n")
    rows = [{"text": "\n".join(sentences(draw, 2000))} for _ in range(CHUNK_CHARACTERS // 1000)]
    (path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    parquet.write_table(pyarrow.Table.from_pylist([*rows[::-1], {"text": None}]), path / "e.parquet")
    (path / "f.txt").write_text("hello 北京\n", encoding="utf-8")
    Tokenizer.from_vocab(TOKENS).save(path / "tokenizer")
    build_corpus(files_of(path), tokenizer_of(path), path / "whole", SETTINGS, workers=1)
    return path


def sentences(draw: np.random.Generator, characters: int) -> list[str]:
    drawn = draw.choice(WORDS, size=(characters // 40, 9))
    return [" ".join(words) for words in drawn.tolist()]


def text(draw: np.random.Generator, characters: int) -> str:
    found = sentences(draw, characters)
    return "".join(f"{sentence}\n\n" if draw.random() < 0.2 else f"{sentence}\n" for sentence in found)


def files_of(folder: Path) -> list[Path]:
    return [folder / name for name in ("a.txt", "b.txt.gz", "c.txt", "d.jsonl", "e.parquet", "f.txt")]


def tokenizer_of(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder / "tokenizer")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(("block", "run_bytes", "workers"), [(1 << 16, 1, None), (1 << 23, 1 << 26, 1)])
def test_a_cluster_gives_the_same_bytes(
    block: int,
    run_bytes: int,
    workers: int | None,
    cluster: None,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A chunk a task and a file a reader, so that answers overtake each other; and as it is meant to be.
    monkeypatch.setattr(scale, "BLOCK_BYTES", block)
    monkeypatch.setattr(scale, "RUN_BYTES", run_bytes)
    heard: list[Progress | str] = []
    encode = on_ray(workers)
    corpus = build_with(encode, files_of(folder), tokenizer_of(folder), tmp_path / "c", SETTINGS, listener=heard.append)
    assert len(corpus.manifest.shards) > 4
    assert len(heard) > 9
    assert contents(tmp_path / "c") == contents(folder / "whole")
    total = sum(file.stat().st_size for file in files_of(folder))
    done = [progress.done for progress in heard if isinstance(progress, Progress)]
    assert done == sorted(done)
    assert done[-1] == total
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]


def test_an_interrupted_build_goes_on_with_either_engine(
    cluster: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "BLOCK_BYTES", 1 << 16)
    tokenizer, files, settings = tokenizer_of(folder), files_of(folder)[1:4], CorpusSettings(shard_tokens=20_000)
    build_corpus(files, tokenizer, tmp_path / "whole", settings, workers=1)

    class Enough(Exception):
        pass

    def interrupt(heard: Progress | str) -> None:
        if isinstance(heard, Progress) and heard.done > files[0].stat().st_size:
            raise Enough

    for name, second in (("cluster", on_ray()), ("machine", on_this_machine(1))):
        out = tmp_path / name
        with pytest.raises(Enough):
            build_with(on_ray(), files, tokenizer, out, settings, listener=interrupt)
        assert len(list((tmp_path / f"{name}.partial").glob("*.hashes"))) > 2
        said: list[Progress | str] = []
        build_with(second, files, tokenizer, out, settings, listener=said.append)
        assert str(said[0]).startswith("going on after the")
        assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("b.jsonl", b'{"text": "a"}\n\n{"text": \n'),  # found by who encodes
        ("b.txt", b"fine\n\xff\xfe\xfa\n"),  # found by who reads
        ("b.txt.gz", gzip.compress(b"hello\n" * 9999)[:-20]),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_the_same_words(
    name: str, content: bytes, cluster: None, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / name).write_bytes(content)
    (tmp_path / "c.jsonl").write_text("also wrong, but later")
    files, tokenizer = [tmp_path / "a.txt", tmp_path / name, tmp_path / "c.jsonl"], tokenizer_of(folder)
    with pytest.raises(DataError) as local:
        build_corpus(files, tokenizer, tmp_path / "c", workers=1)
    with pytest.raises(DataError) as distant:
        build_with(on_ray(), files, tokenizer, tmp_path / "c")
    assert str(distant.value) == str(local.value)
    assert name in str(local.value)
    assert (distant.value.file, distant.value.line) == (local.value.file, local.value.line)
    assert type(distant.value) is type(local.value)
    assert not list(tmp_path.glob("c*.partial"))


def test_the_command_says_nothing_of_ray(
    cluster: None, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--tokenizer", str(folder / "tokenizer"), "--out", str(tmp_path / "c"), "--json", "--engine", "ray"]
    assert run(["corpus", "build", str(folder / "f.txt"), *arguments]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["tokens"] == 3
    assert err == ""
    (tmp_path / "a.jsonl").write_text("[]")
    assert run(["corpus", "build", str(tmp_path / "a.jsonl"), *arguments, "--overwrite"]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "a.jsonl, line 1: must be a JSON object" in err


@pytest.mark.slow  # the others have a Ray of their own in every run of the tests
def test_the_command_starts_a_ray_stops_it_and_goes_on(folder: Path, tmp_path: Path) -> None:
    files = [str(file) for file in files_of(folder)]
    arguments = ["--tokenizer", str(folder / "tokenizer"), "--out", str(tmp_path / "c"), "--shard-tokens", "100000"]
    command = [sys.executable, "-c", PROGRAM, "corpus", "build", *files, *arguments, "--engine"]
    environment = os.environ | {"RAY_worker_niceness": "0"}
    process = subprocess.Popen([*command, "ray"], stderr=subprocess.PIPE, env=environment)
    deadline = time.monotonic() + 300  # a second or ten, unless the machine is very busy
    while not (tmp_path / "c.partial" / "00001.hashes").exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, b"unmask: stopped\n")
    assert [path.name for path in tmp_path.iterdir()] == ["c.partial"]
    done = subprocess.run([*command, "local", "--json"], capture_output=True, check=True)
    assert b"going on after the" in done.stderr
    assert contents(tmp_path / "c") == contents(folder / "whole")


def test_without_ray_one_sentence_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(scale.importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"pip install 'unmask\[scale\]'"):
        on_ray()


def test_what_is_wrong_with_the_arguments_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    with pytest.raises(SettingsError, match="workers: 0"):
        on_ray(0)
    with pytest.raises(FetchError, match="cluster at 127.0.0.1:1 cannot be reached"):
        scale._connect(ray, "127.0.0.1:1", None)
    command = ["corpus", "build", str(folder / "f.txt"), "-t", str(folder / "tokenizer"), "-o", str(tmp_path / "c")]
    for more, words in ((["--engine", "spark"], "local or ray"), (["--ray-address", "auto"], "add --engine ray")):
        assert run([*command, *more]) == 2
        assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_machine_that_would_give_other_tokens_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # as it will be set, but only for this test
    frame = io.BytesIO()
    chunk = Chunk(Place(), "a.txt", "text", False, "hello", 5)
    send_chunk(frame, chunk)
    requests = scale._row(chunk, frame, answered=False)
    tokenizer = tuple((file.name, file.read_bytes()) for file in sorted((folder / "tokenizer").iterdir()))
    good = Shipped(tokenizer, SETTINGS, scale._versions())
    [answer] = scale.answers_to(requests, good).to_pylist()
    encoded = receive_encoded(io.BytesIO(answer["frame"]))
    assert encoded is not None
    assert encoded.tokens.tolist() == [TOKENS.index("hello")]
    other = Shipped(tokenizer, SETTINGS, ("unmask 0.0.1", *scale._versions()[1:]))
    [answer] = scale.answers_to(requests, other).to_pylist()
    with pytest.raises(DataError, match=r"has unmask .* but the build was started with unmask 0\.0\.1"):
        receive_encoded(io.BytesIO(answer["frame"]))


def test_a_file_that_only_this_machine_has_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    inputs = (Input.of(tmp_path / "a.txt"),)
    os.unlink(tmp_path / "a.txt")
    runs = pyarrow.Table.from_pylist([{"file": 0, "line": 1, "end": 1}])
    [table] = scale.requests_of(runs, inputs, SETTINGS)
    [row] = table.to_pylist()
    assert row["answered"]
    with pytest.raises(DataError, match="every machine of the cluster must find the files under the same path"):
        receive_encoded(io.BytesIO(row["frame"]))


def test_a_cluster_that_fails_is_said_and_our_own_faults_are_not_hidden() -> None:
    import ray

    with pytest.raises(FetchError, match="the Ray cluster failed .* goes on where it was"), scale._cluster_trouble(ray):
        raise ray.exceptions.WorkerCrashedError
    fault = ray.exceptions.RayTaskError("read", "traceback", ValueError("ours"))
    with pytest.raises(ray.exceptions.RayTaskError), scale._cluster_trouble(ray):
        raise fault


def test_a_cluster_is_not_asked_when_everything_was_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(build, "_finish", crash)
        with pytest.raises(KeyboardInterrupt):
            build_corpus([folder / "f.txt"], tokenizer_of(folder), tmp_path / "c", workers=1)
    monkeypatch.setattr(scale, "_connected", crash)
    corpus = build_with(on_ray(), [folder / "f.txt"], tokenizer_of(folder), tmp_path / "c")
    assert corpus.num_tokens == 3
