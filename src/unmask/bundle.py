"""A model with its tokenizer, ready to use: what `unmask.load` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from unmask.data.batching import collate
from unmask.decode.settings import DecodeSettings
from unmask.errors import ModelError, TaskError
from unmask.models.bert import Bert, BertEncoder, device_of
from unmask.models.fetch import Progress, fetch
from unmask.models.folder import LoadReport, load_model, write_model
from unmask.models.init import Model
from unmask.models.sentence import SentenceSettings, read_sentence_settings, write_sentence_settings
from unmask.models.settings import HeadSettings
from unmask.nn.batch import Batch
from unmask.nn.heads import Pooling
from unmask.storage import new_folder
from unmask.tasks.embed import Vectors, embed
from unmask.tasks.fill_mask import Guess, fill_mask
from unmask.tasks.languages import Languages, read_translate_usage, write_translate_usage
from unmask.tasks.predict import Prediction, Predictor
from unmask.tasks.translate import Translation, Translator
from unmask.tasks.usage import USAGE, read_usage, write_usage
from unmask.text import Tokenizer


class Bundle:
    """A model and its tokenizer.

    Attributes:
        model: the torch module, with its heads.
        tokenizer: strings → ids.
        report: what became of the tensors of the folder; None for a model that was built, not loaded.
        sentence: how the folder makes one vector of a text; None if it does not say.
        folder: where it was loaded from.
        languages: of a translator, the tokenizers of both sides.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        report: LoadReport | None = None,
        sentence: SentenceSettings | None = None,
        folder: Path | None = None,
        languages: Languages | None = None,
    ) -> None:
        self.model = model
        self.languages = languages
        self.tokenizer = tokenizer
        self.report = report
        _check_vocabulary(model, tokenizer, folder)
        self.sentence = sentence
        self._predictor: Predictor | None = None
        self._translator: Translator | None = None
        self.folder = folder

    @property
    def encoder(self) -> BertEncoder:
        """The torch module that turns a batch into token vectors."""
        return self._bert("an encoder").encoder

    @property
    def max_length(self) -> int:
        """How many tokens the model reads at once, special tokens included."""
        return self.model.settings.max_length

    def batch(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Batch:
        """A ragged batch of texts, or pairs of texts, for `encoder`. Nothing is cut."""
        if isinstance(texts, str):
            texts = [texts]
        if not texts:
            raise TaskError("a batch needs at least one text")
        segments = getattr(self.model.settings, "num_segments", 0)
        if pairs is not None and segments == 1:
            raise TaskError("this model knows one segment, so it cannot tell the texts of a pair apart")
        return collate(self.tokenizer.encode_batch(texts, pairs)).to(device_of(self.model))

    def embed(self, texts: Iterable[str], *, pooling: Pooling | None = None, normalise: bool | None = None) -> Vectors:
        """(number of texts, hidden) vectors, in the order of the texts, whatever their lengths.

        `pooling` and `normalise` default to what the folder says, else to the mean, not normalised.
        """
        if isinstance(texts, str):
            texts = [texts]
        chunks = list(self.embed_stream(texts, pooling=pooling, normalise=normalise))
        if not chunks:
            return np.empty((0, self.model.settings.hidden_size), dtype=np.float32)
        return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)

    def embed_stream(
        self, texts: Iterable[str], *, pooling: Pooling | None = None, normalise: bool | None = None
    ) -> Iterator[Vectors]:
        """The same in pieces of some thousand rows, for more texts than fit in memory."""
        encoder = self._bert("embeddings").encoder
        said = self.sentence or SentenceSettings()
        if pooling not in (None, "cls", "mean", "max"):
            raise TaskError(f"pooling is cls, mean or max, given {pooling!r}")
        settings = SentenceSettings(
            said.pooling if pooling is None else pooling,
            said.normalise if normalise is None else normalise,
        )
        return embed(encoder, self.tokenizer, texts, settings, max_length=self.max_length)

    def fill_mask(self, text: str, *, top: int = 5) -> list[list[Guess]]:
        """For each [MASK] of the text, in order, the `top` most probable tokens."""
        if self.report is not None and any(name.startswith("heads.mlm.") for name in self.report.new):
            raise TaskError("the mlm head of this model is new and has not been trained: it would only guess at random")
        return fill_mask(self._bert("masked tokens"), self.tokenizer, text, top=top, max_length=self.max_length)

    @property
    def predictor(self) -> Predictor:
        """The model as it was fine-tuned to be used."""
        if self._predictor is None:
            model = self._bert("predictions")
            self._predictor = Predictor(model, self.tokenizer, read_usage(self.folder, model))
        return self._predictor

    def predict(self, texts: Iterable[str], pairs: Iterable[str] | None = None) -> list[Prediction]:
        """What a fine-tuned model says of each text, or pair; for questions, `pairs` are the texts that may answer."""
        if isinstance(texts, str):
            texts = [texts]
        if isinstance(pairs, str):
            pairs = [pairs]
        return list(self.predict_stream(texts, pairs))

    def predict_stream(self, texts: Iterable[str], pairs: Iterable[str] | None = None) -> Iterator[Prediction]:
        """The same one by one, for more texts than fit in memory."""
        return self.predictor.run(self.predictor.examples(texts, pairs))

    @property
    def translator(self) -> Translator:
        """The model as it was trained to translate."""
        if self._translator is None:
            usage = None if self.folder is None else read_translate_usage(self.folder)
            if usage is None or self.languages is None:
                where = self.folder or "this model"
                raise TaskError(f"{where}: is no translator; train one with unmask train translate")
            self._translator = Translator(self.model, self.languages, usage)
        return self._translator

    def translate(
        self, texts: Iterable[str], settings: DecodeSettings | None = None, *, aligned: bool = False
    ) -> list[Translation]:
        """The translation of each text, in their order; `settings` say how it is searched for."""
        if isinstance(texts, str):
            texts = [texts]
        return list(self.translate_stream(texts, settings, aligned=aligned))

    def translate_stream(
        self, texts: Iterable[str], settings: DecodeSettings | None = None, *, aligned: bool = False
    ) -> Iterator[Translation]:
        """The same one by one, for more texts than fit in memory."""
        return self.translator.run(texts, settings, aligned=aligned)

    def to(self, device: torch.device | str) -> Bundle:
        """The same bundle with its model on another device; moved in place."""
        self.model.to(device)
        return self

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write a model folder that unmask and, for plain BERT, `transformers` load; complete or not at all."""
        with new_folder(Path(folder), overwrite=overwrite) as draft:
            write_model(self.model, draft)
            if self.languages is None:
                self.tokenizer.save(draft)
            else:
                self.languages.save(draft)
                write_translate_usage(draft, self.translator.usage)
                return
            if self._predictor is not None or (self.folder is not None and (self.folder / USAGE).is_file()):
                write_usage(draft, self.predictor.usage)
            if self.sentence is not None:
                write_sentence_settings(draft, self.sentence, self.model.settings.hidden_size)

    def __repr__(self) -> str:
        return f"Bundle({self.model.settings.model}, {self.folder or 'built here'}: {self.report or 'not loaded'})"

    def _bert(self, purpose: str) -> Bert:
        if self.languages is not None:
            raise TaskError(f"{purpose} come from a BERT model; this is a translator, for unmask translate")
        if not isinstance(self.model, Bert):
            raise TaskError(f"{purpose} come from a BERT model; this is a {self.model.settings.model} model")
        return self.model


def load(
    name: str | Path,
    *,
    heads: Sequence[HeadSettings] | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Bundle:
    """A model by short name, folder, or Hub id; fetched first if it is not here yet.

    `heads` puts other heads on the encoder than the folder has; new ones start from `seed`.
    """
    folder = fetch(str(name), progress=progress)
    model, report = load_model(folder, heads=heads, seed=seed)
    if read_translate_usage(folder) is not None:
        languages = Languages.from_folder(folder)
        return Bundle(model.to(device), languages.source, report, None, folder, languages)
    tokenizer = Tokenizer.from_folder(folder)
    return Bundle(model.to(device), tokenizer, report, read_sentence_settings(folder), folder)


def _check_vocabulary(model: Model, tokenizer: Tokenizer, folder: Path | None) -> None:
    rows = getattr(model.settings, "vocab_size", None)
    if rows is not None and tokenizer.vocab_size > rows:
        where = "" if folder is None else f"{folder}: "
        raise ModelError(
            f"{where}the tokenizer has {tokenizer.vocab_size} tokens but the model knows {rows}; "
            "they do not belong together"
        )
