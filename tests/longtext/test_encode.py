"""Windows of real strings: ids, offsets, what is held and what is not."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.errors import DataError, SettingsError
from unmask.longtext.encode import encode_long, encode_questions
from unmask.longtext.encoding import LongEncoding
from unmask.longtext.settings import LongTextSettings, Strategy
from unmask.models.catalogue import shipped
from unmask.text import Tokenizer, VocabularySettings, train_tokenizer

STRATEGIES = ["head", "tail", "head_tail", "windows", "parts", "auto"]
CUTTING = ["head", "tail", "head_tail"]
WINDOWS = LongTextSettings(strategy="windows")
HARD = (
    "ＨＥＬＬＯ　ｗｏｒｌｄ 中国①人民 👨‍👩‍👧 😀 cafe\u0301 e\u0301\u0302 "
    "unaffable\u200b\u00ad plaẏing，我 爱\t你。\u3000ﬁn"
)
PARTS = [
    *("ＨＥＬＬＯ", "ｗｏｒｌｄ", "中", "国", "①", "人", "民", "👨‍👩‍👧", "😀", "c", "a", "f", "e", "e"),
    *("un", "aff", "able", "plaẏ", "ing", "，", "我", "爱", "你", "。", "ﬁn"),
]


def words(count: int, start: int = 0) -> str:
    return " ".join(f"w{(start + number) % 100}" for number in range(count))


@pytest.fixture(scope="module")
def bytes_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Rare characters become several tokens that share their offsets."""
    file = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    file.write_text("hello world playing hello world\n" * 50, encoding="utf-8")
    return train_tokenizer([file], VocabularySettings(size=300, byte_fallback=True))


def slow_coverage(found: LongEncoding, texts: list[str]) -> float:
    """Character by character: held if all its tokens are, or, where it has none, if the token before it is.

    Before the first token that one decides, and of a text without tokens nothing can be left out.
    """
    seen = total = 0
    for number, text in enumerate(texts):
        tokens = found.offsets(number)
        kept = {
            token
            for window in found.windows
            for start, end in window.kept[number].ranges
            for token in range(start, end)
        }
        for place, character in enumerate(text):
            if character.isspace():
                continue
            total += 1
            own = [token for token, (start, end) in enumerate(tokens) if start <= place < end]
            before = [token for token, (_, end) in enumerate(tokens) if end <= place]
            seen += not tokens or all(token in kept for token in own or before[-1:] or [0])
    return seen / total


def test_windows_by_hand(tokenizer: Tokenizer) -> None:
    (found,) = encode_long(
        tokenizer, ["hello 中国人民 world"], None, 6, LongTextSettings(strategy="windows", overlap=2), offsets=True
    )
    assert [tokenizer.tokens(window.ids) for window in found.windows] == [
        ["[CLS]", "hello", "中", "国", "人", "[SEP]"],
        ["[CLS]", "国", "人", "民", "world", "[SEP]"],
    ]
    assert [window.segments for window in found.windows] == [[0] * 6] * 2
    assert found.windows[1].offsets == [(0, 0), (7, 8), (8, 9), (9, 10), (11, 16), (0, 0)]
    assert found.windows[1].texts == [None, 0, 0, 0, 0, None]
    assert found.windows[1].kept[0].ranges == ((2, 6),)
    assert found.windows[1].rows() == range(1, 5)
    assert (found.num_windows, found.dropped, found.coverage, found.num_tokens()) == (2, 0, 1.0, 6)
    assert found.is_long
    assert repr(found) == "LongEncoding(8 tokens in 2 windows)"


def test_head_and_tail_by_hand(tokenizer: Tokenizer) -> None:
    (found,) = encode_long(tokenizer, ["hello 中国人民 world"], None, 6, LongTextSettings(strategy="head_tail"))
    (window,) = found.windows
    assert tokenizer.tokens(window.ids) == ["[CLS]", "hello", "人", "民", "world", "[SEP]"]
    assert window.kept[0].ranges == ((0, 1), (3, 6))
    assert window.rows() == range(1, 5)
    assert found.dropped == 2
    assert found.coverage == pytest.approx(12 / 14)
    assert "2 dropped" in repr(found)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_text_that_fits_is_the_tokenizers_own(tokenizer: Tokenizer, strategy: Strategy) -> None:
    texts = ["", words(5), HARD[:8]]
    found = encode_long(tokenizer, texts, None, 20, LongTextSettings(strategy=strategy))
    for one, encoding in zip(found, tokenizer.encode_batch(texts), strict=True):
        (window,) = one.windows
        assert (window.ids, window.segments) == (encoding.ids, encoding.segments)
        assert len(window) == len(encoding)
        assert not one.is_long
        assert (one.num_windows, one.dropped, one.coverage, one.num_skipped) == (1, 0, 1.0, 0)
        assert window.kept[0].ranges == ((0, len(encoding) - 2),)
    assert encode_long(tokenizer, [], None, 20, LongTextSettings(strategy=strategy)) == []


def test_the_published_limit_leaves_510(tokenizer: Tokenizer) -> None:
    whole, head, tail = (
        encode_long(tokenizer, [words(count)], None, 512, LongTextSettings(strategy=strategy))[0]
        for count, strategy in ((510, "head"), (511, "head"), (511, "tail"))
    )
    assert not whole.is_long
    ids = tokenizer.encode(words(511)).ids
    assert head.windows[0].ids == [*ids[:511], ids[-1]]
    assert tail.windows[0].ids == [ids[0], *ids[2:]]
    assert len(head.windows[0]) == len(tail.windows[0]) == 512
    assert head.dropped == tail.dropped == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("limit", [3, 4, 5, 7, 12])
def test_offsets_of_hard_characters_lead_back(tokenizer: Tokenizer, strategy: Strategy, limit: int) -> None:
    whole = tokenizer.encode(HARD)
    (found,) = encode_long(tokenizer, [HARD], None, limit, LongTextSettings(strategy=strategy))
    said = found.offsets()
    for window in found.windows:
        assert len(window) == len(window.ids) == len(window.offsets) <= limit
        tokens = [token for start, end in window.kept[0].ranges for token in range(start, end)]
        assert [window.offsets[row] for row in window.rows()] == [said[token] for token in tokens]
        assert [window.ids[row] for row in window.rows()] == [whole.ids[token + 1] for token in tokens]
        assert [window.texts[row] for row in window.rows()] == [0] * len(tokens)
    assert [HARD[start:end] for start, end in said] == PARTS
    assert found.coverage == pytest.approx(slow_coverage(found, [HARD]), abs=1e-12)
    if strategy in CUTTING:
        assert 0 < found.coverage < 1
    else:
        assert found.coverage == 1.0


@settings(max_examples=60)
@given(
    st.text(st.sampled_from("hello wor中国é\u0301　Ｈ😀\u200b, 龘鱻ab"), max_size=60),
    st.text(st.sampled_from("play ing人民\u0301\u00ad龘"), max_size=30),
    st.sampled_from(STRATEGIES),
    st.integers(5, 20),
    st.booleans(),
)
def test_coverage_is_a_slow_count(
    bytes_tokenizer: Tokenizer, text: str, pair: str, strategy: Strategy, limit: int, paired: bool
) -> None:
    pairs = [pair] if paired else None
    (found,) = encode_long(bytes_tokenizer, [text], pairs, limit, LongTextSettings(strategy=strategy))
    texts = [text, pair] if paired else [text]
    if found.dropped:
        assert found.coverage == pytest.approx(slow_coverage(found, texts) if "".join(texts).split() else 1, abs=1e-12)
    else:
        assert found.coverage == 1.0
    assert all(len(window) == len(window.ids) <= limit for window in found.windows)
    covered = {token for w in found.windows for start, end in w.kept[0].ranges for token in range(start, end)}
    assert found.num_dropped(0) == found.num_tokens(0) - len(covered)


def test_a_character_cut_in_two_is_not_held(bytes_tokenizer: Tokenizer) -> None:
    text = "hello 龘鱻"
    tokens = bytes_tokenizer.encode(text).offsets[1:-1]
    assert tokens == [(0, 5), *[(6, 7)] * 3, *[(7, 8)] * 3]
    for strategy, room, expected in [("head", 2, 5), ("head", 4, 6), ("head", 6, 6), ("tail", 2, 0), ("tail", 4, 1)]:
        asked = LongTextSettings(strategy=strategy)
        (found,) = encode_long(bytes_tokenizer, [text], None, room + 2, asked)
        assert found.characters == (expected, 7), (strategy, room)


def test_pairs_keep_their_special_tokens_and_segments(tokenizer: Tokenizer) -> None:
    first, second = words(3), words(12, 50)
    (found,) = encode_long(tokenizer, [first], [second], 13, LongTextSettings(strategy="windows", overlap=2))
    assert [tokenizer.decode(window.ids, skip_special_tokens=False) for window in found.windows] == [
        f"[CLS] {first} [SEP] {words(7, 50)} [SEP]",
        f"[CLS] {first} [SEP] {words(7, 55)} [SEP]",
    ]
    assert [window.segments for window in found.windows] == [[0] * 5 + [1] * 8] * 2
    assert [window.rows(1) for window in found.windows] == [range(5, 12)] * 2
    assert found.windows[1].kept[1].ranges == ((5, 12),)
    assert (found.dropped, found.coverage, found.cuts_shorter) == (0, 1.0, False)

    (swapped,) = encode_long(tokenizer, [second], [first], 13, LongTextSettings(strategy="tail"))
    (window,) = swapped.windows
    assert tokenizer.decode(window.ids) == f"{words(7, 55)} {first}"
    assert (window.rows(0), window.rows(1)) == (range(1, 8), range(9, 12))
    assert [window.texts[row] for row in window.rows(1)] == [1] * 3
    assert (swapped.num_dropped(0), swapped.num_dropped(1), swapped.dropped) == (5, 0, 5)


def test_two_long_texts_get_half_each_and_it_is_told(tokenizer: Tokenizer) -> None:
    first, second = words(8), words(9, 50)
    (found,) = encode_long(tokenizer, [first], [second], 13, LongTextSettings(strategy="windows", overlap=1))
    assert [tokenizer.decode(window.ids) for window in found.windows] == [
        f"{words(5)} {words(5, 50)}",
        f"{words(5)} {words(5, 54)}",
    ]
    assert found.cuts_shorter
    assert (found.num_dropped(0), found.num_dropped(1)) == (3, 0)
    assert found.coverage == pytest.approx(slow_coverage(found, [first, second]))


@pytest.mark.parametrize("empty", [0, 1])
def test_a_pair_with_an_empty_text(tokenizer: Tokenizer, empty: int) -> None:
    texts = [words(9), words(9)]
    texts[empty] = ""
    (found,) = encode_long(tokenizer, texts[:1], texts[1:], 8, LongTextSettings(strategy="windows", overlap=1))
    joined = [["[CLS]", "[SEP]", *part, "[SEP]"] for part in (words(5).split(), words(5, 4).split())]
    if empty:
        joined = [["[CLS]", *part[2:], "[SEP]"] for part in joined]
    assert [tokenizer.tokens(window.ids) for window in found.windows] == joined
    assert found.num_tokens(empty) == 0
    assert [len(window.rows(empty)) for window in found.windows] == [0, 0]
    assert found.coverage == 1.0


def test_max_windows_counts_in_training_alone(tokenizer: Tokenizer) -> None:
    asked = LongTextSettings(strategy="windows", overlap=0, max_windows=3)
    (free,) = encode_long(tokenizer, [words(60)], None, 12, asked)
    assert (free.num_windows, free.num_skipped, free.coverage) == (6, 0, 1.0)
    (bound,) = encode_long(tokenizer, [words(60)], None, 12, asked, training=True)
    assert [window.kept[0].ranges[0] for window in bound.windows] == [(0, 10), (20, 30), (50, 60)]
    assert (bound.num_windows, bound.num_skipped, bound.dropped) == (3, 3, 30)
    assert bound.coverage == pytest.approx(slow_coverage(bound, [words(60)]))


def test_max_length_is_kept_to(tokenizer: Tokenizer) -> None:
    (found,) = encode_long(tokenizer, [words(30)], None, 512, LongTextSettings(strategy="windows", max_length=12))
    assert {len(window) for window in found.windows} == {12}


def test_limits_that_leave_nothing_are_told(tokenizer: Tokenizer) -> None:
    assert encode_long(tokenizer, [words(4)], None, 3, WINDOWS)[0].num_windows == 4
    assert encode_long(tokenizer, [words(4)], [words(4)], 5, WINDOWS)[0].num_windows == 4
    with pytest.raises(SettingsError, match="2 tokens read at once .* a text beside 2 special .* least 3"):
        encode_long(tokenizer, ["a"], None, 2, WINDOWS)
    with pytest.raises(SettingsError, match="4 tokens .* a pair of texts beside 3 special tokens; at least 5"):
        encode_long(tokenizer, ["a"], ["a"], 4, WINDOWS)
    with pytest.raises(SettingsError, match="overlap: 10 must be below the 10 tokens"):
        encode_long(tokenizer, ["a"], None, 12, LongTextSettings(strategy="windows", overlap=10))
    with pytest.raises(SettingsError, match="overlap: 5 must be below the 5 tokens"):
        encode_long(tokenizer, ["a"], ["a"], 13, LongTextSettings(strategy="windows", overlap=5))
    assert encode_long(tokenizer, [words(30)], None, 12, LongTextSettings(strategy="head", overlap=99))
    with pytest.raises(DataError, match="every text needs its pair"):
        encode_long(tokenizer, ["a"], [], 12, WINDOWS)


def test_questions_by_hand(tokenizer: Tokenizer) -> None:
    short, cut = encode_questions(tokenizer, [words(2), words(6)], [words(9, 20)] * 2, 13, overlap=1, max_question=4)
    assert [tokenizer.decode(window.ids, skip_special_tokens=False) for window in short.windows] == [
        f"[CLS] w0 w1 [SEP] {words(8, 20)} [SEP]",
        f"[CLS] w0 w1 [SEP] {words(8, 21)} [SEP]",
    ]
    assert short.windows[1].segments == [0] * 4 + [1] * 9
    context = words(9, 20)
    assert [context[slice(*span)] for span in short.windows[1].offsets[4:-1]] == words(8, 21).split()
    assert short.windows[1].texts == [None, 0, 0, None, *[1] * 8, None]
    assert [tokenizer.decode(window.ids) for window in cut.windows] == [
        f"{words(4)} {words(6, 20)}",
        f"{words(4)} {words(6, 23)}",
    ]
    assert (short.dropped, cut.num_dropped(0), cut.num_dropped(1)) == (0, 2, 0)
    assert cut.coverage == pytest.approx(slow_coverage(cut, [words(6), context]))


def test_a_cut_question_is_told_even_where_all_would_fit(tokenizer: Tokenizer) -> None:
    (found,) = encode_questions(tokenizer, [words(9)], [words(2, 20)], 40, max_question=5)
    assert (found.num_windows, found.num_dropped(0), found.is_long) == (1, 4, True)
    assert tokenizer.decode(found.windows[0].ids) == f"{words(5)} {words(2, 20)}"


def test_questions_in_little_room(tokenizer: Tokenizer) -> None:
    (found,) = encode_questions(tokenizer, [words(9)], [words(9, 20)], 8)  # 5 tokens: 2 for the question
    assert {len(window.rows(0)) for window in found.windows} == {2}
    assert found.num_dropped(1) == 0
    with pytest.raises(SettingsError, match="overlap: 3 must be below the 3 tokens"):
        encode_questions(tokenizer, ["a"], ["a"], 8, overlap=3)
    with pytest.raises(SettingsError, match="a pair of texts"):
        encode_questions(tokenizer, ["a"], ["a"], 4)
    with pytest.raises(SettingsError, match="max_question"):
        encode_questions(tokenizer, ["a"], ["a"], 40, max_question=0)
    (empty,) = encode_questions(tokenizer, ["a"], [""], 40)
    assert (empty.num_windows, len(empty.windows[0].rows(1))) == (1, 0)


@pytest.mark.parametrize("strategy", ["windows", "parts"])
def test_fifty_thousand_tokens(tokenizer: Tokenizer, strategy: Strategy) -> None:
    text = words(50_000)
    (found,) = encode_long(tokenizer, [text], None, 512, LongTextSettings(strategy=strategy), offsets=True)
    assert found.num_windows == (131 if strategy == "windows" else 99)
    assert (found.dropped, found.coverage) == (0, 1.0)
    seen = {span for window in found.windows for span in window.offsets[1:-1]}
    assert len(seen) == 50_000
    assert "".join(text[start:end] for start, end in sorted(seen)) == text.replace(" ", "")


def test_memory_grows_with_the_text_even_where_windows_overlap_almost_wholly(tokenizer: Tokenizer) -> None:
    text, asked = words(20_000), LongTextSettings(strategy="windows", overlap=509)
    tracemalloc.start()
    (found,) = encode_long(tokenizer, [text], None, 512, asked)
    read = sum(len(window.ids) for window in found.windows[::100])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.num_windows == 19_491
    assert read == 195 * 512
    assert peak < 20_000 * 1000  # all ids at once would need 80 MB


def test_real_answers_stand_whole_in_a_window(data_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(shipped()["mini-zh"].folder)
    data = json.loads((data_folder / "cmrc2018" / "dev.json").read_text(encoding="utf-8"))["data"]
    asked = [
        (question["question"], part["context"], question["answers"][0])
        for entry in data[:300]
        for part in entry["paragraphs"]
        for question in part["qas"][:1]
    ]
    found = encode_questions(tokenizer, [one[0] for one in asked], [one[1] for one in asked], 192)
    assert sum(one.is_long for one in found) > 100
    for one, (_, context, answer) in zip(found, asked, strict=True):
        start, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        assert context[start:end] == answer["text"]
        if len(answer["text"]) <= 30:  # the overlap is a quarter of at least 125 tokens
            ends = [[window.offsets[row] for row in window.rows(1)] for window in one.windows]
            assert any(spans[0][0] <= start and end <= spans[-1][1] for spans in ends if spans)
        assert one.num_dropped(1) == 0


def test_real_reviews_are_covered_as_counted(data_folder: Path, minilm_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(minilm_folder)
    with gzip.open(data_folder / "imdb" / "train.tsv.gz", "rt", encoding="utf-8") as file:
        texts = [line.rstrip("\n").split("\t")[2] for line, _ in zip(file, range(200), strict=False)]
    for strategy in CUTTING:
        found = encode_long(tokenizer, texts, None, 512, LongTextSettings(strategy=strategy))
        long = [(one, text) for one, text in zip(found, texts, strict=True) if one.is_long]
        assert len(long) > 10
        for one, text in long[:1]:
            assert one.coverage == pytest.approx(slow_coverage(one, [text]), abs=1e-12)
        assert all(one.dropped == len(one.encoding) - 512 for one, _ in long)
