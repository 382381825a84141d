"""Ranges of tokens, by the published numbers and by what must hold for any."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import SettingsError
from unmask.longtext.settings import LongTextSettings, Strategy
from unmask.longtext.windows import Window, held, pair_pieces, pieces, spread
from unmask.text.encoding import shares

ALL = ["auto", "head", "tail", "head_tail", "windows", "parts"]


def ranges(num_tokens: int, room: int, strategy: Strategy, overlap: int | None = None) -> list[tuple[object, ...]]:
    settings = LongTextSettings(strategy=strategy, overlap=overlap)
    return [window.ranges for window in pieces(num_tokens, room, settings)]


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("num_tokens", [0, 1, 509, 510])
def test_a_text_that_fits_is_one_window(strategy: Strategy, num_tokens: int) -> None:
    assert ranges(num_tokens, 510, strategy) == [((0, num_tokens),)]


@pytest.mark.parametrize(
    ("num_tokens", "strategy", "expected"),
    [
        (511, "head", [((0, 510),)]),
        (2000, "head", [((0, 510),)]),
        (511, "tail", [((1, 511),)]),
        (2000, "tail", [((1490, 2000),)]),
        (511, "head_tail", [((0, 128), (129, 511))]),
        (800, "head_tail", [((0, 128), (418, 800))]),
        (801, "head_tail", [((0, 256), (547, 801))]),
        (5000, "head_tail", [((0, 256), (4746, 5000))]),
        (511, "windows", [((0, 510),), ((1, 511),)]),
        (892, "windows", [((0, 510),), ((382, 892),)]),
        (893, "windows", [((0, 510),), ((382, 892),), ((383, 893),)]),
        (511, "parts", [((0, 255),), ((255, 511),)]),
        (1020, "parts", [((0, 510),), ((510, 1020),)]),
        (1021, "parts", [((0, 340),), ((340, 680),), ((680, 1021),)]),
    ],
)
def test_the_stated_numbers(num_tokens: int, strategy: Strategy, expected: list[object]) -> None:
    assert ranges(num_tokens, 510, strategy) == expected


@pytest.mark.parametrize(
    ("num_tokens", "room", "expected"),
    [
        (127, 126, ((0, 32), (33, 127))),  # 126 · 128/510 = 31.6
        (197, 126, ((0, 32), (103, 197))),  # 197 < 126 · 800/510 = 197.6 < 198
        (198, 126, ((0, 63), (135, 198))),  # 126 · 256/510 = 63.2
        (300, 255, ((0, 64), (109, 300))),
        (400, 255, ((0, 64), (209, 400))),  # exactly 800 of 510
        (401, 255, ((0, 128), (274, 401))),
        (9, 5, ((0, 3), (7, 9))),  # 2.51
        (3, 2, ((0, 1), (2, 3))),
        (7, 2, ((0, 1), (6, 7))),
        (9, 1, ((0, 1),)),
    ],
)
def test_head_and_tail_in_other_rooms(num_tokens: int, room: int, expected: tuple[object, ...]) -> None:
    assert ranges(num_tokens, room, "head_tail") == [expected]


@given(st.integers(0, 400), st.integers(1, 60), st.data())
def test_windows_cover_everything_and_are_as_few_as_can_be(num_tokens: int, room: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, room - 1))
    settings = LongTextSettings(strategy="windows", overlap=overlap)
    windows = pieces(num_tokens, room, settings)
    spans = [window.ranges[0] for window in windows]
    assert spans[0][0] == 0
    assert spans[-1][1] == num_tokens
    assert all(end - start == min(room, num_tokens) for start, end in spans)
    for before, after in pairwise(spans):
        assert before[0] < after[0]
        assert before[1] - after[0] >= overlap
    # Any way with one fewer would reach at most this far.
    assert len(spans) == 1 or room + (len(spans) - 2) * (room - overlap) < num_tokens
    assert held(windows) == [(0, num_tokens)]


@given(st.integers(1, 400), st.integers(1, 60))
def test_parts_cover_each_token_once_and_are_nearly_equal(num_tokens: int, room: int) -> None:
    windows = pieces(num_tokens, room, LongTextSettings(strategy="parts"))
    assert [token for window in windows for token in range(*window.ranges[0])] == list(range(num_tokens))
    lengths = [len(window) for window in windows]
    assert max(lengths) <= room
    assert max(lengths) - min(lengths) <= 1
    assert len(windows) == (num_tokens + room - 1) // room


@given(st.integers(0, 400), st.integers(1, 60), st.sampled_from(["head", "tail", "head_tail"]))
def test_a_cut_text_fills_the_room(num_tokens: int, room: int, strategy: Strategy) -> None:
    (window,) = pieces(num_tokens, room, LongTextSettings(strategy=strategy))
    tokens = [token for start, end in window.ranges for token in range(start, end)]
    assert tokens == sorted(set(tokens))
    assert len(tokens) == len(window) == min(num_tokens, room)
    assert set(tokens) <= set(range(num_tokens))


@given(st.integers(0, 200), st.integers(0, 200), st.integers(2, 60), st.sampled_from(ALL))
def test_the_longer_of_a_pair_is_in_windows_and_the_other_whole(
    first: int, second: int, room: int, strategy: Strategy
) -> None:
    windows = pair_pieces(first, second, room, LongTextSettings(strategy=strategy))
    short = min(first, second)
    for pair in windows:
        assert len(pair[0]) + len(pair[1]) <= room
        for window, count in zip(pair, (first, second), strict=True):
            assert all(0 <= start <= end <= count for start, end in window.ranges)
    kept, others = ({pair[side] for pair in windows} for side in ((1, 0) if first > second else (0, 1)))
    (kept,) = kept
    if first + second <= room or short <= room // 2:
        assert kept == Window.of(0, short)
    else:
        assert len(kept) == room // 2
    if strategy in ("windows", "auto", "parts"):
        assert held(others) == [(0, max(first, second))]


@given(st.integers(0, 99), st.integers(0, 99), st.integers(2, 60))
def test_head_keeps_what_the_tokenizer_would_keep(first: int, second: int, room: int) -> None:
    (pair,) = pair_pieces(first, second, room, LongTextSettings(strategy="head"))
    assert tuple(len(window) for window in pair) == shares(first, second, room)


def test_pairs_by_hand() -> None:
    windows = LongTextSettings(strategy="windows", overlap=2)
    assert pair_pieces(3, 12, 10, windows) == [
        (Window.of(0, 3), Window.of(0, 7)),
        (Window.of(0, 3), Window.of(5, 12)),
    ]
    assert pair_pieces(12, 3, 10, windows)[1] == (Window.of(5, 12), Window.of(0, 3))
    both = pair_pieces(8, 9, 10, windows)
    assert both[0] == (Window.of(0, 5), Window.of(0, 5))
    assert both[-1] == (Window.of(0, 5), Window.of(4, 9))
    assert pair_pieces(8, 9, 10, LongTextSettings(strategy="tail")) == [(Window.of(3, 8), Window.of(4, 9))]


def test_no_room_is_told() -> None:
    with pytest.raises(SettingsError, match="no room for text"):
        pieces(3, 0, LongTextSettings())
    with pytest.raises(SettingsError, match="no room for two texts"):
        pair_pieces(1, 1, 1, LongTextSettings())


def test_few_of_many_are_spread_from_first_to_last() -> None:
    assert spread("abcdefg", None) == list("abcdefg")
    assert spread("abcdefg", 7) == list("abcdefg")
    assert spread("abcdefg", 4) == list("aceg")
    assert spread("abcdefg", 3) == list("adg")
    assert spread("abcdefg", 2) == list("ag")
    assert spread("abcdefg", 1) == ["a"]
    assert all(len(set(spread(range(n), most))) == min(n, most) for n in range(1, 30) for most in range(1, 30))


def test_held_ranges_are_merged() -> None:
    windows = [Window(((0, 3), (9, 12))), Window.of(2, 5), Window.of(12, 13), Window.of(7, 8)]
    assert held(windows) == [(0, 5), (7, 8), (9, 13)]
