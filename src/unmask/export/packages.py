"""Packages of others that are not always there, and that say much while they work."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

from unmask.errors import UserError

#: Nothing is fetched, and CI is what OpenVINO's own telemetry takes for a no.
_QUIET = {"HF_HUB_OFFLINE": "1", "CI": "true"}


def needed(name: str, extra: str) -> Any:
    """A package, or the sentence that says how to get it."""
    if not installed(name):
        raise UserError(f"this needs the package {name.partition('.')[0]}: pip install 'unmask[{extra}]'")
    return importlib.import_module(name)


def installed(name: str) -> bool:
    """Whether a package is there."""
    return importlib.util.find_spec(name.partition(".")[0]) is not None


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Without their remarks and warnings; the environment is afterwards as it was."""
    before = {name: os.environ.get(name) for name in _QUIET}
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    os.environ.update(_QUIET)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def hush() -> Iterator[None]:
    """Silence, for those who also print and draw bars."""
    with silence(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
