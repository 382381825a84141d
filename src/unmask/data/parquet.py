"""Parquet files, by pyarrow where it is installed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from unmask.errors import DataError


def open_parquet(path: Path) -> Any:
    """The file as pyarrow gives it; DataError if that is missing, or the file is none of its kind."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError("Parquet files need the package pyarrow; install it: pip install pyarrow", file=path) from None
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise DataError(f"not a Parquet file that can be read ({error})", file=path) from None
