"""Settings of decoding: what goes together, and what is said where it does not."""

from __future__ import annotations

import pytest

from unmask.decode.settings import DecodeSettings, SamplingSettings
from unmask.errors import SettingsError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"beam": 0}, "beam.*given 0"),
        ({"beam": 2, "num_best": 3}, "num_best 3 must not be above beam 2"),
        ({"min_length": 9, "max_length": 9}, "min_length 9 must be below max_length 9"),
        ({"beam": 4, "sampling": {}}, "no beam .given 4.; set beam to 1"),
        ({"length_formula": "wu"}, "length_formula.*'gnmt' or 'plain'"),
        ({"length_penalty": -1.0}, "length_penalty"),
        ({"sampling": {"temperature": 0.0}}, "temperature"),
        ({"sampling": {"top_p": 0.0}}, "top_p"),
        ({"lenght_penalty": 1.0}, "did you mean length_penalty"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        DecodeSettings.parse(given)


def test_sampling_may_give_more_than_one() -> None:
    assert DecodeSettings(num_best=9, sampling=SamplingSettings()).num_best == 9


def test_there_is_always_a_limit() -> None:
    settings = DecodeSettings()
    assert settings.limit(0) == 20
    assert settings.limit(10) == 40
    assert settings.limit(10**6) == 256
    assert settings.replace(max_ratio=None).limit(1) == 256
    assert DecodeSettings(max_ratio=0.5, max_extra=1).limit(7) == 4
    assert DecodeSettings(min_length=60).limit(7) == 61  # what must be written may be
