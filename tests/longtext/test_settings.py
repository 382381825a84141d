from __future__ import annotations

import pytest

from unmask.errors import SettingsError
from unmask.longtext.settings import LongTextSettings, choose

AUTO = LongTextSettings()


@pytest.mark.parametrize("task", ["classify", "tag", "qa", "embed"])
def test_where_nothing_is_long_nothing_is_cut(task: str) -> None:
    chosen = choose(AUTO, task, [3, 512, 40], 512)
    assert chosen.settings == AUTO.replace(strategy="windows")
    assert chosen.reason.startswith(
        "windows: none of 3 texts is longer than the 512 tokens read at once; nothing is cut"
    )


@pytest.mark.parametrize("task", ["tag", "qa"])
@pytest.mark.parametrize("lengths", [[513], [10] * 999 + [513], [60_000] * 5])
def test_tokens_that_need_an_answer_are_all_read(task: str, lengths: list[int]) -> None:
    chosen = choose(AUTO, task, lengths, 512)
    assert chosen.settings.strategy == "windows"
    assert f"of {len(lengths):,} texts are longer than the 512 tokens read at once" in chosen.reason


def test_a_class_is_read_off_both_ends_while_they_hold_most_of_the_long_texts() -> None:
    assert choose(AUTO, "classify", [100, 1000, 1048], 512).settings.strategy == "head_tail"
    assert choose(AUTO, "classify", [100, 1000, 1049], 512).settings.strategy == "windows"
    assert choose(AUTO, "classify", [100] * 10_000 + [5000], 512).settings.strategy == "windows"
    assert choose(AUTO, "embed", [1000], 512).settings.strategy == "parts"
    few = choose(AUTO, "classify", [100, 800, 800], 512).reason
    assert few == (
        "head_tail: 2 of 3 texts are longer than the 512 tokens read at once, up to 800; "
        "beginning and end hold 64% of their tokens, at the cost of one window a text"
    )
    assert "only 10% of their tokens" in choose(AUTO, "classify", [5120], 512).reason


def test_what_was_asked_for_stays_and_is_told() -> None:
    asked = LongTextSettings(strategy="tail", overlap=3, join="max", max_windows=2)
    chosen = choose(asked, "classify", [10, 600], 512)
    assert chosen.settings == asked
    assert chosen.reason.startswith("tail, as asked for; 1 of 2 texts are longer than the 512 tokens")


def test_max_length_lowers_the_limit_and_never_raises_it() -> None:
    assert choose(LongTextSettings(max_length=64), "tag", [65], 512).settings.strategy == "windows"
    assert LongTextSettings(max_length=64).read_at_once(512) == 64
    assert AUTO.read_at_once(512) == 512
    with pytest.raises(SettingsError, match="max_length: 1024 is more than the 512 tokens"):
        choose(LongTextSettings(max_length=1024), "classify", [10], 512)


def test_overlap_is_128_of_510_and_less_in_less_room() -> None:
    assert [AUTO.shared(room) for room in (510, 5000, 126, 5, 2, 1)] == [128, 128, 32, 2, 1, 0]
    assert LongTextSettings(overlap=0).shared(510) == 0
    assert LongTextSettings(overlap=509).shared(510) == 509
    with pytest.raises(SettingsError, match="overlap: 510 must be below the 510 tokens"):
        LongTextSettings(overlap=510).shared(510)


def test_settings_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(SettingsError, match="overlap 64 must be below max_length 64"):
        LongTextSettings(overlap=64, max_length=64)
    with pytest.raises(SettingsError, match="did you mean overlap"):
        LongTextSettings.parse({"overlp": 3})
    with pytest.raises(SettingsError, match="strategy"):
        LongTextSettings.parse({"strategy": "middle"})
    with pytest.raises(SettingsError, match="max_windows"):
        LongTextSettings(max_windows=0)
    for task in ("tag", "qa"):
        with pytest.raises(SettingsError, match=f"parts .* {task} .* use windows"):
            choose(LongTextSettings(strategy="parts"), task, [600], 512)
