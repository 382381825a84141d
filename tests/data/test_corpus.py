from __future__ import annotations

import errno
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.data import parquet
from unmask.data.corpus import inputs, pool
from unmask.data.corpus import write as shards
from unmask.data.corpus.build import Progress, build_corpus
from unmask.data.corpus.format import CorpusSettings, histogram, histogram_labels, percentage
from unmask.data.corpus.store import Corpus
from unmask.errors import DataError, FetchError, SettingsError, UserError
from unmask.text import Tokenizer

LETTERS = list("abcdefghijklmnopqrstuvwxyz0123456789.,!?'-")
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
TOKENS += [*"中国人民银行我爱你北京天安门是的首都。，！？", "hello", "world", "##ing"]

TEXT = """hello world.
hiing [MASK] 龘

我爱北京。
\u200b

\u200b


hello world.
hiing [MASK] 龘
"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocab(TOKENS)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def ids(tokenizer: Tokenizer, sentence: str) -> list[int]:
    return tokenizer.encode(sentence, special_tokens=False).ids


def documents_of(corpus: Corpus) -> list[list[list[int]]]:
    return [[tokens.tolist() for tokens in corpus.document(number)] for number in range(len(corpus))]


def many_documents(count: int, seed: int = 0) -> list[list[str]]:
    draw = np.random.default_rng(seed)
    words = ["hello", "world", "北京", "我爱你", "abc", "3.14", "hiing!", "龘", "é"]
    return [
        [" ".join(draw.choice(words, size=draw.integers(1, 12))) for _ in range(draw.integers(1, 9))]
        for _ in range(count)
    ]


def as_text(documents: list[list[str]]) -> str:
    return "\n\n".join("\n".join(document) for document in documents) + "\n"


def test_statistics_by_hand(tokenizer: Tokenizer, tmp_path: Path) -> None:
    corpus = build_corpus([write(tmp_path / "a.txt", TEXT)], tokenizer, tmp_path / "c", workers=1)
    found = corpus.statistics
    # hello world .  |  h ##i ##ing [MASK] [UNK]  |  我 爱 北 京 。
    assert [len(corpus.sentence(number)) for number in range(5)] == [3, 5, 5, 3, 5]
    assert (found.documents, found.sentences, found.tokens) == (3, 5, 21)
    assert (corpus.num_documents, corpus.num_sentences, corpus.num_tokens) == (3, 5, 21)
    assert found.characters == 12 + 14 + 5 + 12 + 14
    assert found.unknown_tokens == found.special_tokens == 2
    assert found.unknown_rate == 2 / 21
    assert (found.empty_documents, found.empty_sentences, found.duplicate_documents) == (1, 2, 1)
    assert (found.longest_sentence, found.longest_document) == (5, 8)
    assert found.sentence_lengths == (0, 2, 3)
    assert found.document_lengths == (0, 0, 1, 2)
    assert found.words == 3 + 3 + 4 + 3 + 3
    assert corpus.word_starts(1).tolist() == [True, False, False, True, True]
    assert corpus.word_starts(2).tolist() == [True, True, True, False, True]
    assert [list(corpus.sentences_of(number)) for number in range(3)] == [[0, 1], [2], [3, 4]]
    assert corpus.vocab_size == tokenizer.vocab_size
    assert corpus.load_tokenizer().vocab == tokenizer.vocab
    assert "3 documents" in repr(corpus)
    corpus.verify()


@pytest.mark.parametrize("shard_tokens", [1, 7, 100, 1 << 24])
@pytest.mark.parametrize("chunk", [1, 50, 1 << 18])
def test_every_token_comes_back(
    shard_tokens: int, chunk: int, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "CHUNK_CHARACTERS", chunk)
    monkeypatch.setattr(inputs, "_LONG_DOCUMENT", 2 * chunk)
    documents = many_documents(40)
    files = [
        write(tmp_path / "a.txt", as_text(documents[:20])),
        write(tmp_path / "b.txt", "\n \n" + as_text(documents[20:])),
    ]
    settings = CorpusSettings(shard_tokens=shard_tokens)
    corpus = build_corpus(files, tokenizer, tmp_path / "c", settings, workers=1)
    assert documents_of(corpus) == [[ids(tokenizer, one) for one in document] for document in documents]
    flat = [sentence for document in documents for sentence in document]
    assert [corpus.sentence(number).tolist() for number in range(len(flat))] == [ids(tokenizer, one) for one in flat]
    for shard in corpus.manifest.shards[:-1]:
        assert shard.tokens >= shard_tokens
    if shard_tokens == 1:
        assert len(corpus.manifest.shards) == 40
    corpus.verify()
    # How the text was cut into chunks leaves no trace.
    monkeypatch.undo()
    build_corpus(files, tokenizer, tmp_path / "d", settings, workers=1)
    assert contents(tmp_path / "c") == contents(tmp_path / "d")


def test_the_number_of_workers_leaves_no_trace(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "CHUNK_CHARACTERS", 2000)
    monkeypatch.setattr(inputs, "_LONG_DOCUMENT", 4000)
    file = write(tmp_path / "a.txt", as_text([*many_documents(300), ["hello world"] * 2000, *many_documents(50)]))
    heard: list[Progress | str] = []
    for workers in (1, 2, 3):
        build_corpus(
            [file],
            tokenizer,
            tmp_path / str(workers),
            CorpusSettings(shard_tokens=3000),
            workers=workers,
            listener=heard.append,
        )
    assert len(Corpus.open(tmp_path / "1").manifest.shards) > 2
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")
    last = heard[-1]
    assert isinstance(last, Progress)
    assert (last.done, last.total) == (file.stat().st_size, file.stat().st_size)
    assert not list(tmp_path.glob("*.partial"))


def test_duplicates_are_found_however_documents_are_cut(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = [f"hello {number}" for number in range(200)]
    other = [*long[:100], *long[101:], long[100]]
    file = write(tmp_path / "a.txt", as_text([["x"], long, ["y y"], ["hello"] * 3, long, other, ["x"], ["y y"]]))
    for chunk in (7, 100, 1 << 18):
        monkeypatch.setattr(inputs, "CHUNK_CHARACTERS", chunk)
        monkeypatch.setattr(inputs, "_LONG_DOCUMENT", chunk)
        settings = CorpusSettings(shard_tokens=500)
        corpus = build_corpus([file], tokenizer, tmp_path / "c", settings, workers=1, overwrite=True)
        assert corpus.statistics.duplicate_documents == 3
    monkeypatch.setattr(shards, "_HASHES_AT_ONCE", 2)  # counted in several rounds
    corpus = build_corpus([file], tokenizer, tmp_path / "c", workers=1, overwrite=True)
    assert corpus.statistics.duplicate_documents == 3


def test_forms_of_text_give_the_same_tokens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    documents = [["hello world.", "hi."], ["我爱你。", "北京！"], ["你"]]
    text = as_text(documents)
    plain = write(tmp_path / "a.txt", text)
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(text.encode()))
    lines = [
        json.dumps({"id": 1, "text": "\n".join(document)}, ensure_ascii=n == 0) for n, document in enumerate(documents)
    ]
    write(tmp_path / "d.jsonl", "\n".join(lines) + "\n\n")
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "f.txt").write_bytes(text.encode("gb18030"))
    expected = documents_of(build_corpus([plain], tokenizer, tmp_path / "out", workers=1))
    assert len(expected) == 3
    for name in ("b.txt", "c.txt.gz", "d.jsonl", "e.jsonl.gz"):
        built = build_corpus([tmp_path / name], tokenizer, tmp_path / "out", workers=1, overwrite=True)
        assert documents_of(built) == expected, name
    settings = CorpusSettings(encoding="gb18030")
    built = build_corpus([tmp_path / "f.txt"], tokenizer, tmp_path / "out", settings, workers=1, overwrite=True)
    assert documents_of(built) == expected
    paragraphs = write(tmp_path / "g.txt", "hello world. Hi.\n\n我爱你。北京！\n\n你\n")
    settings = CorpusSettings(format="paragraphs")
    built = build_corpus([paragraphs], tokenizer, tmp_path / "out", settings, workers=1, overwrite=True)
    assert documents_of(built) == expected


class FakeParquet:
    """As much of pyarrow.parquet as is used; the real one is not among the project's packages."""

    def __init__(self, path: Path) -> None:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))  # a ValueError, as pyarrow's, if it is not JSON
        self.rows = [row.get("text") for row in rows]
        self.metadata = type("Metadata", (), {"num_rows": len(rows)})
        self.schema_arrow = type("Schema", (), {"names": ["id", "text"]})

    def iter_batches(self, batch_size: int, columns: list[str]) -> Any:
        for start in range(0, len(self.rows), batch_size):
            rows = self.rows[start : start + batch_size]
            column = type("Column", (), {"to_pylist": lambda self, rows=rows: rows})()
            yield type("Batch", (), {"column": lambda self, number, column=column: column})()


def test_parquet(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(name: str) -> Any:
        assert name == "pyarrow.parquet"
        return type("Module", (), {"ParquetFile": FakeParquet})

    monkeypatch.setattr(parquet.importlib, "import_module", fake)
    rows = [{"text": "hello\nworld\u2028x"}, {"text": None}, {"text": "我"}]
    file = write(tmp_path / "a.parquet", json.dumps(rows))
    corpus = build_corpus([file], tokenizer, tmp_path / "c", workers=1)
    assert [len(corpus.document(number)) for number in range(2)] == [2, 1]
    assert corpus.statistics.empty_documents == 1
    with pytest.raises(DataError, match="no column body; its columns are id, text"):
        build_corpus([file], tokenizer, tmp_path / "d", CorpusSettings(field="body"), workers=1)
    with pytest.raises(DataError, match="not a Parquet file"):
        build_corpus([write(tmp_path / "b.parquet", "PAR1")], tokenizer, tmp_path / "d", workers=1)
    wrong = write(tmp_path / "c.parquet", json.dumps([{"text": "x"}, {"text": 5}]))
    with pytest.raises(DataError, match="line 2: the column text must be text but has a int"):
        build_corpus([wrong], tokenizer, tmp_path / "d", workers=1)


def test_parquet_without_pyarrow_says_so(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(parquet.importlib, "import_module", missing)
    with pytest.raises(DataError, match="pip install pyarrow"):
        build_corpus([write(tmp_path / "a.parquet", "")], tokenizer, tmp_path / "c", workers=1)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", "中文文本在这里\n".encode("gb18030"), r"a.txt, line 1: .*GB18030"),
        ("a.txt", b"fine\n\xff\xfe\xfa\n", r"a.txt, line 2: byte 1 of the line is not UTF-8"),
        ("a.txt", "utf-16".encode("utf-16"), "is UTF-16"),
        ("a.txt", b"ok\nzero\0byte\n", r"a.txt, line 2: has a zero byte"),
        ("a.txt.gz", b"not gzip", r"a.txt.gz, line 1: cannot be read"),
        ("a.txt.gz", gzip.compress(b"hello\n" * 9999)[:-20], "cannot be read to its end"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": \n', r"a.jsonl, line 3: not valid JSON"),
        ("a.jsonl", b'["text"]\n', r"line 1: must be a JSON object with a field text"),
        ("a.jsonl", b'{"body": "x"}\n', r"line 1: has no field text; its fields are: body"),
        ("a.jsonl", b'{"text": 5}\n', r"line 1: the field text must be text but is 5"),
        ("a.jsonl", b'{"text": "a\\ud800b"}\n', r"line 1: .*lone surrogate"),
        ("a.jsonl", b"[" * 100_000, r"line 1: not valid JSON"),
        ("a.txt", b"", "no sentence was found in .*a.txt"),
        ("a.txt", " \n\n\u3000\n\u200b\n".encode(), "no sentence was found"),
        ("a.jsonl", b'{"text": null}\n{"text": ""}', "no sentence was found"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_wrong_with_a_file_is_said(
    name: str, content: bytes, words: str, workers: int, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        build_corpus([path], tokenizer, tmp_path / "c", workers=workers)
    assert "\n" not in str(caught.value)
    assert "no sentence" in words or caught.value.file == path
    assert [found.name for found in tmp_path.iterdir()] == [name]


def test_what_is_wrong_with_the_arguments_is_said(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "hello")
    with pytest.raises(DataError, match="no files"):
        build_corpus([], tokenizer, tmp_path / "c")
    with pytest.raises(DataError, match="no such file"):
        build_corpus([tmp_path / "b.txt"], tokenizer, tmp_path / "c")
    with pytest.raises(DataError, match="is a folder"):
        build_corpus([tmp_path], tokenizer, tmp_path / "c")
    with pytest.raises(DataError, match="not from standard input"):
        build_corpus([Path("-")], tokenizer, tmp_path / "c")
    with pytest.raises(SettingsError, match="workers: 0"):
        build_corpus([file], tokenizer, tmp_path / "c", workers=0)
    build_corpus([file], tokenizer, tmp_path / "c", workers=1)
    before = contents(tmp_path / "c")
    with pytest.raises(UserError, match="exists already"):
        build_corpus([file], tokenizer, tmp_path / "c", workers=1)
    with pytest.raises(DataError):
        build_corpus([write(tmp_path / "b.txt", "")], tokenizer, tmp_path / "c", workers=1, overwrite=True)
    assert contents(tmp_path / "c") == before
    (tmp_path / "d.partial").mkdir()
    write(tmp_path / "d.partial" / "mine.txt", "precious")
    with pytest.raises(UserError, match="something else"):
        build_corpus([file], tokenizer, tmp_path / "d", workers=1)
    assert (tmp_path / "d.partial" / "mine.txt").read_text() == "precious"


def test_an_empty_file_among_others_does_no_harm(tokenizer: Tokenizer, tmp_path: Path) -> None:
    files = [write(tmp_path / "a.txt", ""), write(tmp_path / "b.txt", "hello"), write(tmp_path / "c.txt", "\n\n")]
    corpus = build_corpus(files, tokenizer, tmp_path / "c", workers=1)
    assert documents_of(corpus) == [[ids(tokenizer, "hello")]]
    assert len(corpus.manifest.inputs) == 3


@pytest.mark.slow
def test_one_line_of_ten_megabytes(tokenizer: Tokenizer, tmp_path: Path) -> None:
    line = "我爱北京, hello world. " * 400_000
    assert len(line.encode()) > 10_000_000
    corpus = build_corpus([write(tmp_path / "a.txt", line)], tokenizer, tmp_path / "c", workers=1)
    once = ids(tokenizer, "我爱北京, hello world.")
    assert corpus.num_sentences == 1
    np.testing.assert_array_equal(corpus.sentence(0), np.tile(once, 400_000))
    # One word of ten million letters is unknown, and quickly so.
    corpus = build_corpus([write(tmp_path / "b.txt", "a" * 10_000_000)], tokenizer, tmp_path / "d", workers=1)
    assert corpus.sentence(0).tolist() == [tokenizer.unk_id]


def test_a_large_vocabulary_takes_wider_numbers(tmp_path: Path) -> None:
    wide = Tokenizer.from_vocab([*TOKENS, *(f"w{number}" for number in range(70_000))])
    corpus = build_corpus([write(tmp_path / "a.txt", "hello w69999")], wide, tmp_path / "c", workers=1)
    assert corpus.sentence(0).dtype == np.uint32
    assert corpus.sentence(0).tolist() == [wide.id("hello"), wide.id("w69999")]


def test_a_worker_that_is_killed_is_said(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = pool._Worker.__init__

    def start_and_kill(self: Any, *arguments: Any) -> None:
        start(self, *arguments)
        self._process.kill()

    monkeypatch.setattr(pool._Worker, "__init__", start_and_kill)
    with pytest.raises(FetchError, match="ended by signal 9"):
        build_corpus([write(tmp_path / "a.txt", "hello")], tokenizer, tmp_path / "c", workers=2)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("writes", [0, 5])
def test_a_full_disk_is_said(
    writes: int, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, count = shards.PartFile.append, 0

    def full(self: Any, array: Any) -> None:
        nonlocal count
        count += 1
        if count > writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, array)

    monkeypatch.setattr(shards.PartFile, "append", full)
    with pytest.raises(FetchError, match="the disk is full"):
        build_corpus([write(tmp_path / "a.txt", "hello")], tokenizer, tmp_path / "c", workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_file_in_its_place_is_replaced_only_if_allowed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "hello")
    write(tmp_path / "c", "a file")
    with pytest.raises(UserError, match="exists already"):
        build_corpus([file], tokenizer, tmp_path / "c", workers=1)
    build_corpus([file], tokenizer, tmp_path / "c", workers=1, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "c"]


def test_lengths_are_shown_in_powers_of_two() -> None:
    counts = histogram(np.array([1, 2, 3, 4, 7, 8, 2**31]))
    assert counts[:4] == (1, 2, 2, 1)
    assert counts[31] == 1
    assert histogram_labels((0, 2, 0, 1, 0)) == [("2–3", 2), ("4–7", 0), ("8–15", 1)]
    assert histogram_labels(()) == []
    assert [percentage(*pair) for pair in ((0, 5), (1, 3), (1, 1_000_000))] == ["0%", "33.33%", "0.0001%"]
