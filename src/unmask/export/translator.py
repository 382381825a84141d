"""A translator as a folder for `transformers` (Marian) or CTranslate2: compared first, complete or not there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from unmask.errors import TaskError
from unmask.export.packages import hush, installed, needed
from unmask.export.parity import Pair, Parity, accepted, parity_of
from unmask.models.ctranslate_export import export_ctranslate2
from unmask.models.marian_export import TranslationIds, export_marian
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch
from unmask.nn.modes import evaluating
from unmask.storage import new_folder
from unmask.tasks.languages import Languages
from unmask.tasks.translate import Translator

TranslatorKind = Literal["marian", "ctranslate2"]
#: Tokens of the sources and of the targets that are compared; all together in a batch, and the first of them alone.
_LENGTHS = ((9, 1, 30, 14, 3, 22), (6, 17, 25, 2, 11, 1))


@dataclass(frozen=True)
class ExportedTranslator:
    """What was written; `parity` is None where the program that would run it is not installed."""

    kind: TranslatorKind
    parity: Parity | None


@dataclass(frozen=True)
class _Samples:
    """Sentences that mean nothing, of tokens that are not special: ids of sources, and of targets."""

    sources: list[list[int]]
    targets: list[list[int]]

    @property
    def groups(self) -> tuple[slice, slice]:
        """One pair alone, and all of them together."""
        return slice(1), slice(None)


def export_translator(
    translator: Translator, folder: Path, kind: TranslatorKind, *, overwrite: bool = False
) -> ExportedTranslator:
    """Write the model and its vocabularies; a model that does not say the same there is not written."""
    model, languages = translator.model, translator.languages
    if not isinstance(model, Transformer):
        raise TaskError("only a Transformer can be exported, and this is an LSTM")
    ids = _ids(languages)
    samples = _samples(model, languages)
    with new_folder(folder, overwrite=overwrite) as draft, evaluating(model):
        if kind == "marian":
            export_marian(model, draft, ids)
            languages.save(draft)
            pairs = _beside_marian(model, draft, samples, languages, ids.pad) if installed("transformers") else None
        else:
            source, target = (one.tokens(range(one.vocab_size)) for one in (languages.source, languages.target))
            export_ctranslate2(model, draft, source, target, ids)
            pairs = _beside_ctranslate2(model, draft, samples, languages)
        parity = None if pairs is None else accepted(parity_of(pairs))
    return ExportedTranslator(kind, parity)


def check_translator_kind(kind: str) -> TranslatorKind:
    """TaskError for a word that is no kind of export of a translator."""
    for known in get_args(TranslatorKind):
        if kind == known:
            return known
    raise TaskError(f"a translator is exported to marian or ctranslate2; {kind} is for encoders")


def _ids(languages: Languages) -> TranslationIds:
    pad = languages.target.pad_id
    if pad is None or pad != languages.source.pad_id:
        raise TaskError("the vocabularies have no padding token of the same id, which other programs need")
    return TranslationIds(languages.frame.start, languages.frame.end, pad, languages.target.unk_id)


def _samples(model: Transformer, languages: Languages) -> _Samples:
    draw = random.Random(0)
    longest = model.settings.max_length - 2
    made = []
    for lengths, tokenizer in zip(_LENGTHS, (languages.source, languages.target), strict=True):
        ordinary = sorted(set(range(tokenizer.vocab_size)) - set(tokenizer.special_ids)) or [0]
        made.append([draw.choices(ordinary, k=max(1, min(length, longest))) for length in lengths])
    return _Samples(*made)


@torch.inference_mode()
def _beside_marian(
    model: Transformer, folder: Path, samples: _Samples, languages: Languages, pad: int
) -> dict[str, Sequence[Pair]]:
    """Every logit at every place, ours without padding and theirs with it."""
    transformers = needed("transformers", "export")
    with hush():
        theirs = transformers.MarianMTModel.from_pretrained(folder).eval()
    frame, pairs = languages.frame, []
    for group in samples.groups:
        source = Batch.of([[*one, frame.source_end] for one in samples.sources[group]])
        target = Batch.of([[frame.start, *one] for one in samples.targets[group]])
        found = theirs(
            input_ids=source.layout.pad(source.ids, pad),
            attention_mask=source.layout.key_mask(source.ids.device).long(),
            decoder_input_ids=target.layout.pad(target.ids, pad),
        ).logits
        rows = torch.cat([row[:length] for row, length in zip(found, target.layout.lengths, strict=True)])
        pairs.append((model(source, target).float().numpy(), rows.float().numpy()))
    return {"logits": pairs}


@torch.inference_mode()
def _beside_ctranslate2(
    model: Transformer, folder: Path, samples: _Samples, languages: Languages
) -> dict[str, Sequence[Pair]]:
    """The log probability of every token of given targets, their end included."""
    package = needed("ctranslate2", "export")
    threads = torch.get_num_threads()  # making a translator sets torch's threads to these
    theirs = package.Translator(str(folder), compute_type="float32", inter_threads=1, intra_threads=threads)
    frame, pairs = languages.frame, []
    for group in samples.groups:
        sources, targets = samples.sources[group], samples.targets[group]
        texts = [[languages.source.tokens(one) for one in sources], [languages.target.tokens(one) for one in targets]]
        found = theirs.score_batch(*texts)
        batches = (
            Batch.of([[*one, frame.source_end] for one in sources]),
            Batch.of([[frame.start, *one] for one in targets]),
        )
        said = torch.tensor([token for one in targets for token in (*one, frame.end)])
        ours = model(*batches).float().log_softmax(-1).gather(-1, said[:, None]).numpy()
        pairs.append((ours, np.array([[value] for one in found for value in one.log_probs], dtype=np.float32)))
    return {"log_probabilities": pairs}
