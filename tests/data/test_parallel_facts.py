from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unmask.data.parallel import Noted, Pair, read_pairs
from unmask.data.parallel_facts import hash_texts, parallel_facts


def pairs(*rows: tuple[str, str]) -> list[Pair]:
    return [Pair(*row, line) for line, row in enumerate(rows, 1)]


def test_repeats_are_of_both_sides() -> None:
    found = parallel_facts(pairs(("a", "b"), ("a", "c"), ("a", "b"), (" a ", "b\t"), ("x", "b"), ("A", "b")))
    assert found.pairs == 6
    assert found.repeated == Noted(2, (3, 4))


def test_sides_do_not_run_into_each_other() -> None:
    assert parallel_facts(pairs(("ab", "c"), ("a", "bc"), ("1 a", "b"), ("1", " ab"))).repeated == Noted()


def test_sides_that_are_equal() -> None:
    found = parallel_facts(pairs(("Paris", "Paris"), ("Rom", "Rome"), ("a b", " a b"), ("A", "a")))
    assert found.untranslated == Noted(2, (1, 3))


def test_lengths_are_bytes() -> None:
    found = parallel_facts(
        pairs(
            ("a" * 10, "b" * 90),
            ("a" * 10, "b" * 91),
            ("b" * 91, "a" * 10),
            ("Congratulations to you!", "恭喜"),  # 23 letters and 2 characters, which have 6 bytes
            ("Why?", "为什么" * 5),
        )
    )
    assert found.wild == Noted(3, (2, 3, 5))


def test_sources_that_were_trained_on() -> None:
    train = parallel_facts(pairs(("a", "1"), ("b", "2"), ("c", "3")))
    assert train.leaked is None
    dev = parallel_facts(pairs(("d", "1"), ("b ", "other"), ("1", "a"), ("a", "1")), train=train)
    assert dev.leaked == Noted(2, (2, 4))
    assert "2 pairs (lines 2, 4) with a source that is in the training text too" in dev.sentences()[-1]
    clean = parallel_facts(pairs(("d", "1")), train=train)
    assert clean.leaked == Noted()
    assert clean.sentences() == ["1 pair", "no source is in the training text too"]


def test_sentences_say_only_what_there_is(tmp_path: Path) -> None:
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("one\n\none\nsame\nshort\nfine\n", encoding="utf-8")
    target.write_text(f"eins\nzwei\neins\nsame\n{'lang ' * 20}\ngut\n", encoding="utf-8")
    found = parallel_facts(read_pairs([source, target]))
    said = found.sentences()
    assert said[0] == "5 pairs"
    assert said[1] == "1 pair (line 2) with an empty side: left out"
    assert said[2].startswith("1 pair (line 3) stood there before")
    assert said[3].startswith("1 pair (line 4) with the same text on both sides")
    assert said[4].startswith("1 pair (line 5) with a side more than 9 times as long")
    assert len(said) == 5
    assert parallel_facts(pairs(("a", "b"))).sentences() == ["1 pair"]
    plain = json.loads(json.dumps(found.as_json()))
    assert plain["empty"] == {"count": 1, "lines": [2]}
    assert set(plain) == {"pairs", "empty", "repeated", "untranslated", "wild"}


def test_no_pairs_at_all() -> None:
    nothing = parallel_facts([])
    assert (nothing.pairs, nothing.repeated, nothing.sentences()) == (0, Noted(), ["0 pairs"])
    assert parallel_facts([], train=nothing).leaked == Noted()
    assert parallel_facts(pairs(("a", "b")), train=nothing).leaked == Noted()


def test_only_the_first_lines_are_kept() -> None:
    found = parallel_facts(pairs(*[("a", "a")] * 50))
    assert (found.untranslated.count, found.untranslated.lines) == (50, tuple(range(1, 21)))
    assert (found.repeated.count, found.repeated.lines) == (49, tuple(range(2, 22)))


TEXT = st.text("ab \u3000中", max_size=3)


@given(st.lists(st.tuples(TEXT, TEXT), max_size=30), st.lists(st.tuples(TEXT, TEXT), max_size=30))
def test_as_counted_without_hashes(train: list[tuple[str, str]], dev: list[tuple[str, str]]) -> None:
    learned = parallel_facts(pairs(*train))
    found = parallel_facts(pairs(*dev), train=learned)
    counts = Counter((source.strip(), target.strip()) for source, target in dev)
    assert found.repeated.count == sum(count - 1 for count in counts.values())
    sources = {source.strip() for source, _ in train}
    leaked = [line for line, (source, _) in enumerate(dev, 1) if source.strip() in sources]
    assert found.leaked == Noted(len(leaked), tuple(leaked[:20]))


def test_hashes() -> None:
    texts = [f"text {number}" for number in range(1000)]
    first = hash_texts(texts)
    assert len(np.unique(first)) == 1000
    assert (hash_texts(texts) == first).all()
    assert not (hash_texts(texts, seed=1) == first).any()
    assert not (hash_texts(texts, seed=-1) == hash_texts(texts, seed=1)).any()
    assert (hash_texts([f" {text}\n" for text in texts]) == first).all()
    # Every bit is as often set as not, within 5 errors.
    bits = (first[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert (np.abs(bits.mean(axis=0) - 0.5) < 5 * 0.5 / np.sqrt(1000)).all()


def test_many_pairs_take_little_memory() -> None:
    number = 30_000

    def made() -> Iterator[Pair]:
        for line in range(1, number + 1):
            yield Pair(f"a sentence with the number {line}", f"ein Satz mit der Zahl {line}", line)

    tracemalloc.start()
    try:
        assert parallel_facts(made()).pairs == number
        # 24 bytes for each, and as much again to sort: three million pairs stay far below a gigabyte.
        assert tracemalloc.get_traced_memory()[1] < 100 * number
    finally:
        tracemalloc.stop()


def test_real_files(data_folder: Path) -> None:
    folder = data_folder / "multi30k_en-de"
    train = parallel_facts(read_pairs([folder / "train.en", folder / "train.de"]))
    dev = list(read_pairs([folder / "val.en", folder / "val.de"]))
    found = parallel_facts(dev, train=train)
    trained = {text.strip() for text in (folder / "train.en").read_text(encoding="utf-8").split("\n")}
    assert found.leaked is not None
    assert found.leaked.count == sum(pair.source.strip() in trained for pair in dev)
    # Good translations: in bytes none is suspected, where in characters some would be.
    chinese = list(read_pairs([data_folder / "tatoeba_cmn-eng" / "cmn.txt"]))
    assert parallel_facts(chinese).wild == Noted()
    assert sum(len(pair.source) > 9 * len(pair.target) for pair in chinese) > 0
