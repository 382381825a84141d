"""A model with its tokenizer, ready to use: what `unmask.load` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from unmask.data.batching import collate
from unmask.decode.settings import DecodeSettings
from unmask.engine.choose import Choice, Engine, accelerated, accelerated_transformer, check_engine, choose
from unmask.engine.encoder import is_hooked
from unmask.engine.translator import FastTransformer
from unmask.errors import ModelError, TaskError
from unmask.models.bert import Bert, BertEncoder, device_of
from unmask.models.fetch import Progress, fetch
from unmask.models.folder import LoadReport, load_model, write_model
from unmask.models.init import Model
from unmask.models.sentence import SentenceSettings, read_sentence_settings, write_sentence_settings
from unmask.models.settings import HeadSettings
from unmask.models.transformer import Transformer
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
        engine: what computes, and why, if it is not what was asked for.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        report: LoadReport | None = None,
        sentence: SentenceSettings | None = None,
        folder: Path | None = None,
        languages: Languages | None = None,
        engine: Choice | None = None,
    ) -> None:
        self.model = model
        self._fixed = engine
        self._fast: tuple[object, Bert] | None = None
        self._fast_translator: tuple[object, FastTransformer] | None = None
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
        encoder = self._quick("embeddings").encoder
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
        return fill_mask(self._quick("masked tokens"), self.tokenizer, text, top=top, max_length=self.max_length)

    @property
    def predictor(self) -> Predictor:
        """The model as it was fine-tuned to be used."""
        model = self._quick("predictions")
        if self._predictor is None:
            self._predictor = Predictor(model, self.tokenizer, read_usage(self.folder, model))
        self._predictor.model = model
        return self._predictor

    def predict(self, texts: Iterable[str], pairs: Iterable[str] | None = None) -> list[Prediction]:
        """What a fine-tuned model says of each text, or pair; for questions, `pairs` are the texts that may answer."""
        return list(self.predict_stream(texts, pairs))

    def predict_stream(self, texts: Iterable[str], pairs: Iterable[str] | None = None) -> Iterator[Prediction]:
        """The same one by one, for more texts than fit in memory."""
        if isinstance(texts, str):
            texts = [texts]
        if isinstance(pairs, str):
            pairs = [pairs]
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
        self._translator.model = self._quick_translator()
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

    @property
    def engine(self) -> Choice:
        """What computes embeddings, predictions and translations."""
        return choose(self.model, "auto") if self._fixed is None else self._fixed

    def to(self, device: torch.device | str) -> Bundle:
        """The same bundle with its model on another device; moved in place."""
        if self._fixed is not None and self._fixed.engine != "torch":
            raise TaskError(f"a model with the {self._fixed.engine} engine stays on the CPU; load it without engine")
        self.model.to(device)
        return self

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write a model folder that unmask and, for plain BERT, `transformers` load; complete or not at all."""
        if self._fixed is not None and self._fixed.engine != "torch":
            raise TaskError(f"a model with the {self._fixed.engine} engine cannot be saved; load it without engine")
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

    def _quick(self, purpose: str) -> Bert:
        """The model in its fast form, which is made anew when its weights have changed."""
        model = self._bert(purpose)
        if self._fixed is not None or is_hooked(model.encoder) or choose(model, "auto").engine == "torch":
            return model
        now = _weights(model.encoder)
        if self._fast is None or self._fast[0] != now or self._fast[1].heads is not model.heads:
            self._fast = now, accelerated(model, "fp32")
        return self._fast[1]

    def _quick_translator(self) -> Model:
        """The same for a translator, where somebody who looks inside is noticed by the fast form itself."""
        model = self.model
        if self._fixed is not None or not isinstance(model, Transformer) or choose(model, "auto").engine == "torch":
            return model
        now = _weights(model)
        if self._fast_translator is None or self._fast_translator[0] != now:
            self._fast_translator = now, accelerated_transformer(model, "fp32")
        return self._fast_translator[1]

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
    engine: Engine | None = None,
) -> Bundle:
    """A model by short name, folder, or Hub id; fetched first if it is not here yet.

    `heads` puts other heads on the encoder than the folder has; new ones start from `seed`.

    Without `engine` the model can be trained, and embeds and predicts by a fast copy of itself where that gives the
    same answers sooner. With one (auto, torch, fp32, int8) it is turned into that form for good, which takes less
    memory; where it cannot be, `bundle.engine` says what was taken instead and why.
    """
    if engine is not None:
        check_engine(engine)
    folder = fetch(str(name), progress=progress)
    model, report = load_model(folder, heads=heads, seed=seed)
    chosen = None
    if engine is not None:
        chosen = choose(model.to(device), engine)
        if chosen.engine != "torch":
            assert isinstance(model, Bert | Transformer)
            if isinstance(model, Bert):
                model = accelerated(model, chosen.engine, spend=True)
            else:
                model = accelerated_transformer(model, chosen.engine)
    if read_translate_usage(folder) is not None:
        languages = Languages.from_folder(folder)
        return Bundle(model.to(device), languages.source, report, None, folder, languages, chosen)
    tokenizer = Tokenizer.from_folder(folder)
    return Bundle(model.to(device), tokenizer, report, read_sentence_settings(folder), folder, None, chosen)


def _weights(module: torch.nn.Module) -> list[tuple[int, int]]:
    """What changes when a weight does."""
    return [(tensor.data_ptr(), tensor._version) for tensor in module.parameters()]


def _check_vocabulary(model: Model, tokenizer: Tokenizer, folder: Path | None) -> None:
    rows = getattr(model.settings, "vocab_size", None)
    if rows is not None and tokenizer.vocab_size > rows:
        where = "" if folder is None else f"{folder}: "
        raise ModelError(
            f"{where}the tokenizer has {tokenizer.vocab_size} tokens but the model knows {rows}; "
            "they do not belong together"
        )
