from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.data.corpus.build import build_corpus
from unmask.data.corpus.format import CorpusSettings
from unmask.data.corpus.store import Corpus
from unmask.errors import DataError
from unmask.text import Tokenizer


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def documents_of(corpus: Corpus) -> list[list[list[int]]]:
    return [[tokens.tolist() for tokens in corpus.document(number)] for number in range(len(corpus))]


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A corpus of thirty documents in several shards."""
    draw = np.random.default_rng(0)
    words = ["hello", "world", "北", "京", "zebra"]
    documents = [
        "\n".join(" ".join(draw.choice(words, size=draw.integers(1, 12))) for _ in range(draw.integers(2, 9)))
        for _ in range(30)
    ]
    file = write(tmp_path / "a.txt", "\n\n".join(documents))
    tokenizer = Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words[:-1]])
    build_corpus([file], tokenizer, tmp_path / "c", CorpusSettings(shard_tokens=200), workers=1)
    return tmp_path / "c"


def change(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    write(folder / "corpus.json", json.dumps(manifest | changes))


def test_arrays_cannot_be_written_to(built: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        Corpus.open(built).sentence(0)[0] = 1


def test_numbers_outside_are_index_errors(built: Path) -> None:
    corpus = Corpus.open(built)
    for number in (-1, corpus.num_sentences):
        with pytest.raises(IndexError):
            corpus.sentence(number)
        with pytest.raises(IndexError):
            corpus.document(number)


def test_folders_that_are_no_corpus(built: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a corpus"):
        Corpus.open(tmp_path / "nothing")
    change(built, format=2)
    with pytest.raises(DataError, match="format 2, but this version of unmask reads up to 1; update"):
        Corpus.open(built)
    change(built, format=1, surprise=1)
    with pytest.raises(DataError, match="unknown setting surprise"):
        Corpus.open(built)
    for content in ("", "{", "[]", "[" * 100_000, '{"format": 1}', '{"format": "new"}', "\xff"):
        (built / "corpus.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(DataError) as caught:
            Corpus.open(built)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "shard", [{"tokens": 10**15}, {"documents": 10**9}, {"tokens": -1}, {"sentences": 0}, {"sha256": {"../x": "y"}}]
)
def test_impossible_shards_are_refused(shard: dict[str, Any], built: Path) -> None:
    manifest = json.loads((built / "corpus.json").read_text(encoding="utf-8"))
    change(built, shards=[manifest["shards"][0] | shard])
    with pytest.raises(DataError):
        Corpus.open(built)


@pytest.mark.parametrize("part", ["tokens", "sentences", "documents", "words"])
def test_truncated_and_missing_files_are_found_at_once(part: str, built: Path) -> None:
    path = built / f"00001.{part}"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match=rf"00001\.{part}: has .* bytes where"):
        Corpus.open(built)
    path.unlink()
    with pytest.raises(DataError, match="no such file"):
        Corpus.open(built)
    path.mkdir()
    with pytest.raises(DataError, match="no such file"):
        Corpus.open(built)


@pytest.mark.parametrize("part", ["sentences", "documents"])
def test_impossible_bounds_end_in_a_sentence(part: str, built: Path) -> None:
    path = built / f"00000.{part}"
    good = np.fromfile(path, dtype="<u4")
    for place, value in ((0, 7), (1, 2**32 - 1), (1, 0), (2, 1), (-1, 0)):
        bad = good.copy()
        bad[place] = value
        if np.array_equal(bad, good):
            continue
        bad.tofile(path)
        corpus = Corpus.open(built)
        with pytest.raises(DataError):
            documents_of(corpus)
        with pytest.raises(DataError, match="not as it was written"):
            corpus.verify()


def test_a_changed_byte_is_found_by_verify(built: Path) -> None:
    for name in ("00000.tokens", "00001.words", "tokenizer/tokenizer.json"):
        path = built / name
        good = path.read_bytes()
        path.write_bytes(bytes([good[0] ^ 1]) + good[1:])
        with pytest.raises(DataError, match="not as it was written"):
            Corpus.open(built).verify()
        path.write_bytes(good)
    Corpus.open(built).verify()


def test_opening_a_gigabyte_takes_milliseconds(built: Path) -> None:
    shards = json.loads((built / "corpus.json").read_text(encoding="utf-8"))["shards"][:1]
    shard = {**shards[0], "tokens": 500_000_000, "sentences": 10_000_000, "documents": 1_000_000}
    for part, size in (("tokens", 10**9), ("sentences", 40_000_004), ("documents", 4_000_004), ("words", 62_500_000)):
        with (built / f"00000.{part}").open("wb") as file:
            file.truncate(size)  # a hole, which takes no room
    for part, end in (("sentences", 500_000_000), ("documents", 10_000_000)):
        with (built / f"00000.{part}").open("r+b") as file:
            file.seek(-4, 2)
            file.write(end.to_bytes(4, "little"))
    change(built, shards=[shard])
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        corpus = Corpus.open(built)
        with pytest.raises(DataError):  # there is nothing in it
            corpus.sentence(5_000_000)
        best = min(best, time.perf_counter() - started)
    assert best < 0.05


def test_a_corpus_can_be_moved(built: Path, tmp_path: Path) -> None:
    expected = documents_of(Corpus.open(built))
    shutil.move(built, tmp_path / "elsewhere")
    assert documents_of(Corpus.open(tmp_path / "elsewhere")) == expected
