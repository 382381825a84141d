"""A translation run from pairs of sentences to a model in use: read → vocabulary → ids → the loop → measure → write."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.data.parallel import Pair, read_pairs
from unmask.data.parallel_facts import parallel_facts
from unmask.data.parallel_split import split_pairs
from unmask.data.translation import EncodedPairs, Kept, PairBatches, Sequences
from unmask.errors import DataError, ModelError
from unmask.models.bert import num_parameters
from unmask.models.fetch import fetch
from unmask.models.folder import load_model, read_settings, write_model
from unmask.models.init import build_model
from unmask.nn.adaptive import order_by_frequency
from unmask.storage import atomic_write, new_folder
from unmask.tasks import runs
from unmask.tasks.finetune import sha256_of
from unmask.tasks.languages import Languages, TranslateUsage, read_translate_usage, write_translate_usage
from unmask.tasks.translate_card import translate_card
from unmask.tasks.translate_learn import HeldOutPairs, Translating
from unmask.tasks.translate_settings import Texts, TranslateSettings
from unmask.text.tokenizer import Tokenizer
from unmask.text.training import train_tokenizer
from unmask.train.checkpoint import average_checkpoints, read_best
from unmask.train.loop import fit, measured
from unmask.train.progress import Listener
from unmask.train.world import ALONE, World, check_possible, joint_learner, local_device

DATA = "data"


@dataclass(frozen=True)
class Prepared:
    """All that the loop needs."""

    model: Any
    languages: Languages
    source: PairBatches
    evaluator: HeldOutPairs
    usage: TranslateUsage


def train_translation(
    settings: TranslateSettings, texts: Texts, run: Path, listener: Listener, *, resume: bool = False
) -> dict[str, float]:
    """Train, going on if `resume`, and write `RUN/model`; gives what was measured of the model that is kept.

    With several processes each calls this with the same arguments, after `world.joined`; only the first one speaks.
    """
    world = World.present(settings.train.engine)
    listener = listener if world.is_first else Listener()
    runs.check_free(run, resume=resume)  # before texts are read, which may take minutes
    train, dev = read_texts(settings, texts, listener)
    content = {name: sha256_of(name) for name in (*texts.train, *texts.dev)}
    resolved = {
        "translate": settings.model_dump(mode="json"),
        "texts": texts.model_dump(mode="json") | {"sha256": content},
    }
    kept, loop = run / DATA, settings.loop
    if world.is_first:
        languages = Languages.from_folder(kept) if kept.is_dir() else _first_languages(settings, train, listener)
        # Before the folder is claimed: bad input must leave nothing behind.
        ready = prepare(settings, train, dev, languages, listener)
        check_possible(ready.model, world, loop.precision, loop.compile)
        runs.claim(run, resolved, resume=resume)
        if not kept.is_dir():
            with new_folder(kept) as draft:
                languages.save(draft)
    world.wait()
    if not world.is_first:
        ready = prepare(settings, train, dev, Languages.from_folder(kept), listener)
    evaluator = ready.evaluator
    if world.size > 1 and world.engine == "fsdp":
        # Steps of decoding would need all shards at each, in as many steps as the process that needs most.
        listener.say(
            "with engine fsdp, models are compared by their loss while training, and translate only at the end"
        )
        evaluator = evaluator.by_loss()
    fit(ready.model, Translating(settings.smoothing, settings.r_drop), ready.source, loop, run, evaluator, listener)
    found = _choose(settings, run, ready, listener)
    if world.is_first:
        _write(run, ready, settings, texts, found)
    world.wait()
    return found


def read_texts(settings: TranslateSettings, texts: Texts, listener: Listener) -> tuple[list[Pair], list[Pair]]:
    """The pairs to learn from and those to measure on, and what there is to say about them."""
    train = _read(texts.train, texts, listener)
    if texts.dev:
        dev = _read(texts.dev, texts, listener)
    else:
        train, dev = split_pairs(train, share=settings.dev_share, seed=settings.seed)
        listener.say(f"{len(dev):,} pairs are set apart to measure on; no text of theirs is learned from")
    about = parallel_facts(train)
    for name, facts in (("train", about), ("dev", parallel_facts(dev, train=about))):
        for sentence in facts.sentences():
            listener.say(f"{name}: {sentence}")
    return train, dev


def _read(files: Sequence[str], texts: Texts, listener: Listener) -> list[Pair]:
    found = read_pairs(files, columns=texts.columns, swap=texts.swap, encoding=texts.encoding)
    for sentence in found.said:
        listener.say(sentence)
    pairs = list(found)
    if found.empty.count:
        listener.say(f"{', '.join(files)}: {found.empty} with an empty side left out")
    return pairs


def _first_languages(settings: TranslateSettings, train: Sequence[Pair], listener: Listener) -> Languages:
    """Those of the translator that the run begins with, or new ones."""
    if settings.start is None:
        return learn_languages(settings, train, listener)
    folder = _start_folder(settings.start)
    listener.say(
        f"begins with {settings.start}: its shape, vocabularies and weights; model and vocabulary do not count"
    )
    return Languages.from_folder(folder)


def _start_folder(name: str) -> Path:
    folder = fetch(str(runs.model_folder(name)))
    if read_translate_usage(folder) is None:
        raise ModelError(f"{name} is no translator, so none can begin with it; leave out start for a new one")
    return folder


def _max_length(settings: TranslateSettings) -> int:
    """Tokens of a sentence: as the settings say, and no more than a translator that the run begins with can read."""
    most = settings.model.max_length
    return most if settings.start is None else min(most, read_settings(_start_folder(settings.start)).max_length)


def _first_model(settings: TranslateSettings, languages: Languages, pairs: EncodedPairs) -> Any:
    """The translator that the run begins with, or a new one."""
    if settings.start is not None:
        return load_model(_start_folder(settings.start))[0]
    model = build_model(settings.build(languages.source.vocab_size, languages.target.vocab_size), settings.seed)
    order_by_frequency(model, _target_counts(pairs, languages.target.vocab_size))
    return model


def learn_languages(settings: TranslateSettings, train: Sequence[Pair], listener: Listener) -> Languages:
    """Vocabularies from the training pairs."""
    sides = {"source": [pair.source for pair in train], "target": [pair.target for pair in train]}
    with tempfile.TemporaryDirectory() as spare:
        files = {name: Path(spare) / f"{name}.txt" for name in sides}
        for name, lines in sides.items():
            files[name].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        if settings.joint:
            learned = _learned(settings, list(files.values()), "both languages", listener)
            return Languages(learned, learned)
        return Languages(*(_learned(settings, [files[name]], f"the {name}", listener) for name in files))


def _learned(settings: TranslateSettings, files: list[Path], what: str, listener: Listener) -> Tokenizer:
    listener.say(f"learning a vocabulary of up to {settings.vocabulary.size:,} tokens for {what}")
    return train_tokenizer(files, settings.vocabulary.replace(encoding="utf-8"))


def prepare(
    settings: TranslateSettings, train: Sequence[Pair], dev: Sequence[Pair], languages: Languages, listener: Listener
) -> Prepared:
    """Encode, leave out what is too long, and build the model."""
    encoded = languages.encode_pairs([pair.source for pair in train], [pair.target for pair in train])
    longest_read = _max_length(settings)
    limit = min(longest_read, settings.batch_tokens)
    kept = _short_enough(encoded, limit)
    if len(kept) < len(encoded):
        learned = set(kept.tolist())
        where = next(train[number].line for number in range(len(encoded)) if number not in learned)
        listener.say(
            f"{len(encoded) - len(kept):,} of {len(encoded):,} pairs have more than {limit - 1} tokens on one side and "
            f"are not learned from, the first on line {where}; model.max_length sets the limit"
        )
    if not len(kept):
        raise DataError(f"no pair has at most {limit - 1} tokens on both sides; raise model.max_length")
    chosen = EncodedPairs(_some(encoded.sources, kept), _some(encoded.targets, kept), encoded.frame)
    unknown = Kept(settings.unknown_share, *languages.unknown) if settings.unknown_share else None
    source = PairBatches(chosen, settings.batch_tokens, settings.seed, unknown)
    held_out = languages.encode_pairs([pair.source for pair in dev], [pair.target for pair in dev])
    short = _short_enough(held_out, longest_read).tolist()
    if not short:
        raise DataError("no development pair is short enough to be measured; raise model.max_length")
    held_out = EncodedPairs(_some(held_out.sources, short), _some(held_out.targets, short), held_out.frame)
    if len(short) < len(dev):
        listener.say(f"{len(dev) - len(short):,} development pairs are too long to be measured while training")
    references = [dev[number].target for number in short]
    evaluator = HeldOutPairs(held_out, references, languages, score=settings.score, beam=settings.evaluation_beam)
    model = _first_model(settings, languages, chosen)
    epochs = settings.train.updates * settings.train.accumulate / source.batches_of_epoch()
    listener.say(
        f"{num_parameters(model):,} parameters; {len(kept):,} pairs of {chosen.sources.lengths.mean():.1f} and "
        f"{chosen.targets.lengths.mean():.1f} tokens on average; {epochs:.1f} epochs"
    )
    longest = int(chosen.sources.lengths.max()) + 1
    usage = TranslateUsage(max_source=max(2, min(longest, longest_read)), decode=settings.decode)
    return Prepared(model.to(local_device()), languages, source, evaluator, usage)


def _target_counts(pairs: EncodedPairs, size: int) -> Tensor:
    """How often each id is to be guessed, the end token once a pair."""
    counts = torch.from_numpy(np.bincount(pairs.targets.ids, minlength=size))
    counts[pairs.frame.end] += len(pairs)
    return counts


def _short_enough(pairs: EncodedPairs, limit: int) -> Any:
    longer = np.maximum(pairs.sources.lengths, pairs.targets.lengths)
    return np.flatnonzero(longer < limit)


def _some(sequences: Sequences, numbers: Sequence[int]) -> Sequences:
    return Sequences(sequences[int(number)] for number in numbers)


def _choose(settings: TranslateSettings, run: Path, ready: Prepared, listener: Listener) -> dict[str, float]:
    """The best model of the run, or the mean of its last checkpoints if that does better."""
    evaluator, model = ready.evaluator, ready.model
    best = None
    if read_best(run, model):
        best = _measured(model, evaluator)
    if settings.average_last:
        used = average_checkpoints(run, model, settings.average_last)
        mean = _measured(model, evaluator)
        lower = evaluator.lower_is_better
        better = best is None or (mean[evaluator.score] < best[evaluator.score]) == lower
        said = f"the mean of the checkpoints after {', '.join(map(str, used))} updates has {_told(mean)}"
        if best is None or better:
            listener.say(f"{said}, and is kept")
            return mean
        listener.say(f"{said}, the best single one {_told(best)}, and that is kept")
        read_best(run, model)
    return best or _measured(model, evaluator)


def _measured(model: nn.Module, evaluator: HeldOutPairs) -> dict[str, float]:
    return dict(measured(joint_learner(model, ALONE), evaluator, ALONE))


def _told(values: dict[str, float]) -> str:
    return f"BLEU {values['bleu']:.2f} and loss {values['loss']:.4f}"


def _write(run: Path, ready: Prepared, settings: TranslateSettings, texts: Texts, found: dict[str, float]) -> None:
    with new_folder(run / runs.MODEL, overwrite=True) as draft:
        write_model(ready.model.cpu(), draft)
        ready.languages.save(draft)
        write_translate_usage(draft, ready.usage)
        card = translate_card(run, settings, texts, found, num_parameters(ready.model))
        atomic_write(draft / "README.md", card.encode())
