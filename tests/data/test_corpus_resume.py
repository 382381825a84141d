from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest

from unmask.data.corpus import inputs
from unmask.data.corpus.build import Progress, build_corpus
from unmask.data.corpus.format import CorpusSettings
from unmask.data.corpus.store import Corpus
from unmask.errors import DataError, UserError
from unmask.text import Tokenizer

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh我爱北京", *(f"##{letter}" for letter in "abcdefgh")]
SETTINGS = CorpusSettings(shard_tokens=20_000)

PROGRAM = """
import sys
from pathlib import Path
from unmask.data.corpus import inputs
from unmask.data.corpus.build import build_corpus
from unmask.data.corpus.format import CorpusSettings
from unmask.text import Tokenizer

inputs.CHUNK_CHARACTERS, inputs._LONG_DOCUMENT = 20_000, 50_000
files = [Path(name) for name in sys.argv[4:]]
tokenizer = Tokenizer.from_folder(Path(sys.argv[1]))
build_corpus(files, tokenizer, Path(sys.argv[2]), CorpusSettings(shard_tokens=20_000), workers=int(sys.argv[3]),
             listener=lambda heard: print(heard, file=sys.stderr) if isinstance(heard, str) else None)
"""


class Enough(Exception):
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, two files, and the corpus as it is without an interruption."""
    path: Path = tmp_path_factory.mktemp("resume")
    Tokenizer.from_vocab(TOKENS).save(path / "tokenizer")
    draw = random.Random(5)
    for name in ("a.txt", "b.txt"):
        with (path / name).open("w", encoding="utf-8") as file:
            for _ in range(4000):
                for _ in range(draw.randint(1, 6)):
                    file.write("".join(draw.choices("abc defgh我爱北京 ", k=draw.randint(5, 60))) + "x\n")
                file.write("\n" * draw.randint(1, 3))
    build_corpus([path / "a.txt", path / "b.txt"], tokenizer_of(path), path / "whole", SETTINGS, workers=1)
    return path


def tokenizer_of(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder / "tokenizer")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def interrupted(folder: Path, out: Path, after: int, settings: CorpusSettings = SETTINGS) -> None:
    """A build that stops after so many pieces of progress."""
    count = 0

    def hear(heard: Progress | str) -> None:
        nonlocal count
        count += 1
        if count > after:
            raise Enough

    with pytest.raises(Enough):
        build_corpus(
            [folder / "a.txt", folder / "b.txt"], tokenizer_of(folder), out, settings, workers=1, listener=hear
        )


def test_a_build_goes_on_at_the_last_finished_shard(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "CHUNK_CHARACTERS", 20_000)
    out = tmp_path / "c"
    interrupted(folder, out, after=12)
    assert not out.exists()
    journal = json.loads((tmp_path / "c.partial" / "journal.json").read_text())
    done = sum(shard["record"]["documents"] for shard in journal["shards"])
    assert len(journal["shards"]) >= 3
    heard: list[Progress | str] = []
    files = [folder / "a.txt", folder / "b.txt"]
    build_corpus(files, tokenizer_of(folder), out, SETTINGS, workers=1, listener=heard.append)
    assert heard[0] == f"going on after the {done:,} documents that an interrupted build left in {out}.partial"
    assert isinstance(heard[1], Progress)
    assert heard[1].documents >= done
    assert contents(out) == contents(folder / "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_other_settings_or_a_changed_file_start_anew(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "CHUNK_CHARACTERS", 20_000)
    files = [folder / "a.txt", folder / "b.txt"]
    for number, changes in enumerate(({"words": False}, {"shard_tokens": 15_000})):
        out = tmp_path / str(number)
        interrupted(folder, out, after=12, settings=SETTINGS.replace(**changes))
        heard: list[Progress | str] = []
        build_corpus(files, tokenizer_of(folder), out, SETTINGS, workers=1, listener=heard.append)
        assert str(heard[0]).startswith("starting anew")
        assert contents(out) == contents(folder / "whole")
    interrupted(folder, tmp_path / "d", after=12)
    state = (folder / "b.txt").stat()
    os.utime(folder / "b.txt", ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    heard = []
    build_corpus(files, tokenizer_of(folder), tmp_path / "d", SETTINGS, workers=1, listener=heard.append)
    assert str(heard[0]).startswith("starting anew")
    assert contents(tmp_path / "d") == contents(folder / "whole")


def test_a_damaged_draft_starts_anew(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "CHUNK_CHARACTERS", 20_000)
    files = [folder / "a.txt", folder / "b.txt"]
    for number, damage in enumerate(("corpus/00000.words", "00000.hashes", "journal.json")):
        out = tmp_path / str(number)
        interrupted(folder, out, after=12)
        (tmp_path / f"{number}.partial" / damage).write_bytes(b"{")
        build_corpus(files, tokenizer_of(folder), out, SETTINGS, workers=1)
        assert contents(out) == contents(folder / "whole")


def test_a_file_that_changes_meanwhile_is_noticed(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("abc\n\n" * 10)

    def hear(heard: Progress | str) -> None:
        file.write_text("more\n" * 20)

    with pytest.raises(DataError, match="was changed while it was read"):
        build_corpus([file, folder / "a.txt"], tokenizer_of(folder), tmp_path / "c", workers=1, listener=hear)


def test_two_builds_of_the_same_folder_do_not_mix(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "c.partial").mkdir()
    with (
        filelock.FileLock(tmp_path / "c.partial" / "lock"),
        pytest.raises(UserError, match="another build is writing it"),
    ):
        build_corpus([folder / "a.txt"], tokenizer_of(folder), tmp_path / "c", workers=1)


def start(folder: Path, out: Path, workers: int) -> subprocess.Popen[bytes]:
    arguments = [str(folder / "tokenizer"), str(out), str(workers), str(folder / "a.txt"), str(folder / "b.txt")]
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    ("workers", "seed"), [(2, 2), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, 1), (2, 3)))]
)
def test_killed_at_any_moment_it_ends_with_the_same_bytes(
    workers: int, seed: int, folder: Path, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    out = tmp_path / "c"
    started = time.monotonic()
    start(folder, out, workers).communicate()
    whole = time.monotonic() - started
    assert contents(out) == contents(folder / "whole")
    out = tmp_path / "d"
    for _ in range(6):
        process = start(folder, out, workers)
        time.sleep(draw.uniform(0.2, 1.0) * whole)
        process.kill()
        process.communicate()
        if out.exists():  # complete, or not there
            assert contents(out) == contents(folder / "whole")
            break
    else:
        process = start(folder, out, workers)
        _, said = process.communicate()
        assert process.returncode == 0, said
    Corpus.open(out).verify()
    assert contents(out) == contents(folder / "whole")


def test_workers_go_when_their_parent_is_killed(folder: Path, tmp_path: Path) -> None:
    process = start(folder, tmp_path / "c", 2)
    deadline = time.monotonic() + 30
    while not (children := children_of(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert children
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while any(alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(child) for child in children)


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    if not path.exists():
        pytest.skip("needs /proc to see processes")
    return [int(child) for child in path.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
