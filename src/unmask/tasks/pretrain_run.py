"""A pre-training run from text to a model folder: vocabulary → corpus → examples → the loop → Hugging Face's layout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.config import Settings
from unmask.data.corpus.build import build_corpus
from unmask.data.corpus.store import Corpus
from unmask.data.mask_report import MaskReport, mask_report
from unmask.data.pretraining import Examples
from unmask.errors import ModelError, SettingsError, UserError
from unmask.models.bert import Bert, num_parameters
from unmask.models.fetch import fetch
from unmask.models.folder import load_model, read_settings, write_model
from unmask.models.init import build_model, start_as_sinusoids
from unmask.models.settings import BertSettings, ModelSettings
from unmask.models.surgery import extend_vocabulary
from unmask.nn.adaptive import order_by_frequency
from unmask.storage import atomic_write, new_folder
from unmask.tasks import runs
from unmask.tasks.pretrain import HeldOut, Pretraining, Stages
from unmask.tasks.pretrain_card import pretrain_card
from unmask.tasks.pretrain_settings import PretrainSettings
from unmask.text.extension import missing_words, pieces
from unmask.text.files import read_lines
from unmask.text.tokenizer import Tokenizer
from unmask.text.training import train_tokenizer
from unmask.train.checkpoint import read_best
from unmask.train.loop import fit
from unmask.train.progress import Listener
from unmask.train.world import World, local_device

DATA = "data"
_PARTS = ("pretrain", "inputs")


class Inputs(Settings):
    """What a run is made of, besides its settings."""

    text: tuple[str, ...] = ()
    """Files; not needed where there is a corpus."""
    corpus: str | None = None
    """A corpus folder that was built before."""
    tokenizer: str | None = None
    """Folder, short name or Hub id; learned from the text if neither this nor a model to start from is given."""
    start: str | None = None
    """The model to go on from; trained from nothing if it is not given."""
    extend: int = 0
    """How many words, frequent in the text but unknown to the start model, get a token of their own."""


class PretrainListener(Listener):
    """Also hears what is done before the first update."""

    def masking(self, report: MaskReport) -> None:
        """The check of the masking statistics."""


@dataclass(frozen=True)
class Prepared:
    """All that the loop needs."""

    model: Bert
    tokenizer: Tokenizer
    source: Stages
    evaluator: HeldOut | None
    report: MaskReport


def pretrain(
    settings: PretrainSettings, inputs: Inputs, run: Path, listener: PretrainListener, *, resume: bool = False
) -> dict[str, float]:
    """Train, going on if `resume`, and write `RUN/model`; gives what was measured of the model that is kept.

    With several processes each calls this with the same arguments, after `world.joined`; only the first one speaks.
    """
    world = World.present()
    listener = listener if world.is_first else PretrainListener()
    if world.is_first:
        claim(run, settings, inputs, resume=resume)
    world.wait()
    prepared = prepare(settings, inputs, run, listener)
    if world.is_first:
        listener.masking(prepared.report)
        atomic_write(run / "masking.json", (json.dumps(prepared.report.as_json(), indent=1) + "\n").encode())
    task = Pretraining(settings.pairs.objective, settings.pairs.weight)
    position = fit(prepared.model, task, prepared.source, settings.train, run, prepared.evaluator, listener)
    if prepared.evaluator is not None:
        read_best(run, prepared.model)
    if world.is_first:
        _export(run, prepared, settings, inputs)
    world.wait()
    return runs.measured(run, position.best_update)


def prepare(settings: PretrainSettings, inputs: Inputs, run: Path, listener: PretrainListener) -> Prepared:
    """Build what is not there yet; the first process builds, the others wait."""
    world = World.present()
    if world.is_first:
        _prepare_data(settings, inputs, run, listener)
    world.wait()
    corpus = Corpus.open(inputs.corpus or run / DATA / "corpus")
    tokenizer = corpus.load_tokenizer()
    model, fresh = _model(settings, inputs, tokenizer)
    if fresh and settings.model.output is not None:
        order_by_frequency(model, torch.from_numpy(corpus.token_counts()))
    model = model.to(local_device())
    stages = [
        (Examples(corpus, settings.examples(stage)), stage.updates * settings.train.accumulate)
        for stage in settings.stages
    ]
    evaluator = None
    if settings.held_out:
        held_out = Examples(corpus, settings.examples(settings.stages[0]), "held_out")
        evaluator = HeldOut(held_out, settings.evaluation_tokens, tokenizer, settings.cloze)
    listener.say(f"{num_parameters(model):,} parameters; {corpus!r}")
    return Prepared(model, tokenizer, Stages(stages), evaluator, mask_report(stages[0][0]))


def claim(run: Path, settings: PretrainSettings, inputs: Inputs, *, resume: bool) -> None:
    """Make sure that the folder is free, or holds the run that is to go on; write the settings into it."""
    resolved = {"pretrain": settings.model_dump(mode="json"), "inputs": inputs.model_dump(mode="json")}

    def begin(before: dict[str, Any]) -> None:
        if runs.difference(_of_data(before), _of_data(resolved)):
            for name in ("tokenizer", "corpus", "corpus.partial"):
                shutil.rmtree(run / DATA / name, ignore_errors=True)

    runs.claim(run, resolved, resume=resume, begin=begin)


def recorded_inputs(config: Path) -> Inputs | None:
    """What a run was made of, where `config` is the settings file that it wrote down."""
    found = runs.recorded(config, _PARTS) if config.suffix == ".json" else {}
    return Inputs.parse(found["inputs"], str(config)) if found else None


def _of_data(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What vocabulary and corpus are made of."""
    told, inputs = resolved.get("pretrain", {}), resolved.get("inputs", {})
    return {"vocabulary": told.get("vocabulary"), "corpus": told.get("corpus"), "inputs": inputs}


def _prepare_data(settings: PretrainSettings, inputs: Inputs, run: Path, listener: PretrainListener) -> None:
    if inputs.corpus is not None or (run / DATA / "corpus").is_dir():
        return
    files = [Path(name) for name in inputs.text]
    if not files:
        raise UserError("there is nothing to learn from: give --text FILES or --corpus FOLDER")
    tokenizer = _tokenizer(settings, inputs, files, run, listener)
    listener.say("building the corpus")
    build_corpus(files, tokenizer, run / DATA / "corpus", settings.corpus, listener=_only_sentences(listener.say))


def _only_sentences(say: Callable[[str], None]) -> Callable[[Any], None]:
    return lambda heard: say(heard) if isinstance(heard, str) else None


def _tokenizer(
    settings: PretrainSettings, inputs: Inputs, files: Sequence[Path], run: Path, listener: PretrainListener
) -> Tokenizer:
    """The one that was named, the start model's (extended if asked), or one learned from the text."""
    folder = run / DATA / "tokenizer"
    if folder.is_dir():
        return Tokenizer.from_folder(folder)
    named = inputs.tokenizer or inputs.start
    if named is None:
        listener.say(f"learning a vocabulary of {settings.vocabulary.size:,} tokens")
        tokenizer = train_tokenizer(files, settings.vocabulary)
    else:
        tokenizer = Tokenizer.from_folder(fetch(named))
    if inputs.extend:
        lines = (line for file in files for line in read_lines(file, encoding=settings.corpus.encoding))
        words = missing_words(lines, tokenizer, inputs.extend)
        listener.say(
            f"{len(words)} words get a token of their own: {', '.join(words[:12])}" + ", …" * (len(words) > 12)
        )
        tokenizer = tokenizer.with_tokens(words)
    with new_folder(folder) as draft:
        tokenizer.save(draft)
    return tokenizer


def _model(settings: PretrainSettings, inputs: Inputs, tokenizer: Tokenizer) -> tuple[Bert, bool]:
    """The model, and whether its output over the vocabulary has learned nothing yet."""
    if inputs.start is None:
        fresh = build_model(settings.bert(tokenizer.vocab_size), settings.model.seed)
        assert isinstance(fresh, Bert)
        if settings.model.positions_start == "sinusoidal":
            start_as_sinusoids(fresh)
        return fresh, True
    folder = fetch(inputs.start)
    _check_output(inputs.start, read_settings(folder), settings)
    model, report = load_model(folder, heads=settings.heads, seed=settings.model.seed)
    if not isinstance(model, Bert):
        raise ModelError(f"{inputs.start}: is no BERT, and only BERT is pre-trained here")
    longest = max(stage.length for stage in settings.stages)
    if longest > model.settings.max_length:
        raise SettingsError(
            f"{inputs.start}: reads {model.settings.max_length} tokens at most but a stage has length {longest}"
        )
    old = Tokenizer.from_folder(folder)
    common = min(old.vocab_size, model.settings.vocab_size)
    if tokenizer.vocab_size < common or any(tokenizer.token(id) != old.token(id) for id in range(common)):
        raise UserError(
            f"{inputs.start}: its tokens are not those of the {'corpus' if inputs.corpus else 'tokenizer'} that was "
            "given; make that with the tokenizer of the model, or train from nothing"
        )
    new = [tokenizer.token(id) for id in range(model.settings.vocab_size, tokenizer.vocab_size)]
    written = [ids or [old.unk_id or 0] for ids in pieces(new, old)]
    untrained = any(name.startswith("heads.mlm.") for name in report.new)
    return extend_vocabulary(model, written) if new else model, untrained


def _check_output(name: str, found: ModelSettings, settings: PretrainSettings) -> None:
    """An adaptive output that has learned is not given up in silence."""
    heads = found.heads if isinstance(found, BertSettings) else ()
    before = next((head.output for head in heads if head.kind == "mlm"), None)
    if before is not None and before != settings.model.output:
        cutoffs = ", ".join(map(str, before.cutoffs))
        raise SettingsError(
            f"{name}: has an adaptive output; go on with it by model.output = "
            f"{{cutoffs = [{cutoffs}], div_value = {before.div_value:g}}}"
        )


def _export(run: Path, prepared: Prepared, settings: PretrainSettings, inputs: Inputs) -> None:
    with new_folder(run / runs.MODEL, overwrite=True) as draft:
        write_model(prepared.model.cpu(), draft)
        prepared.tokenizer.save(draft)
        card = pretrain_card(run, settings, inputs.model_dump(mode="json"), num_parameters(prepared.model))
        atomic_write(draft / "README.md", card.encode())
