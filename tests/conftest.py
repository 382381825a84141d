"""Fixtures that several rooms share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from unmask.errors import FetchError

# A busy machine is no reason to fail: time is measured in benchmarks, not in tests.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=40)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=300)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


#: What changes how unmask behaves: a test that left one of these behind would decide what later tests see.
_SWITCHES = ("UNMASK_", "HF_", "CI", "PIP_", "OMP_", "NO_COLOR")


@pytest.fixture(autouse=True)
def _leaves_no_switch_behind() -> Iterator[None]:
    before = _switches()
    yield
    assert _switches() == before, "the environment is another one than before this test"


def _switches() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_SWITCHES)}


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The folder of a real pre-trained BERT, fetched the first time.

    Without network it skips, except in continuous integration, where a skipped proof would look like a proof.
    """
    from unmask.models.fetch import fetch

    try:
        return fetch("minilm")
    except FetchError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"minilm is not cached and cannot be fetched: {error}")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data sets that UNMASK_DATA names."""
    folder = os.environ.get("UNMASK_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("UNMASK_DATA does not name a folder with the real data sets")
    return Path(folder)
