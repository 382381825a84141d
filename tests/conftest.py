"""Fixtures that several rooms share."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

from unmask.errors import FetchError

# A busy machine is no reason to fail: time is measured in benchmarks, not in tests.
hypothesis.settings.register_profile("unmask", deadline=None)
hypothesis.settings.load_profile("unmask")


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
