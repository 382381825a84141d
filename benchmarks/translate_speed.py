"""Training a translator: target tokens a second beside torch.nn.Transformer, MarianMT of transformers, and JoeyNMT.

    UNMASK_DATA=folder python benchmarks/translate_speed.py [--rounds 5] [--out results.json]

All learn Multi30k's English → German with the shape of the config multi30k-tiny (4+4 layers of 128, one joint BPE),
from the same sentences, 2,048 tokens a batch on the longer side at most. Ours is `fit`, the loop that every run uses.
The others are plain loops, as their users write them, around padded batches. They get the same batches as ours, whose
sentences are of like length; torch.nn.Transformer also the same sentences in batches of random order. All have dropout
where ours has it (embeddings and sub-layers), label smoothing, norm clipped at 1, and AdamW, fused but for JoeyNMT,
which builds its own. Making batches counts; saving and evaluating do not. Before the clock starts, all get the weights
of ours, and must find the same loss.

JoeyNMT is measured where it can be imported. It asks for an old protobuf, but runs without: install it apart, with
`pip install --no-deps --target FOLDER joeynmt subword-nmt sentencepiece seaborn "importlib_metadata<8.1" zipp`,
and set PYTHONPATH=FOLDER. Seconds of the processor: see finetune.py.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from common import data_folder
from finetune import Spent
from finetune_common import Found, Results, parser, said, table
from unmask.data.parallel import read_pairs
from unmask.data.translation import PairBatches
from unmask.models.marian_export import TranslationIds, export_marian, position_table
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Transformer
from unmask.tasks.translate_learn import Translating, loss_of
from unmask.tasks.translate_settings import read_translate_settings
from unmask.tasks.translate_train import learn_languages, prepare
from unmask.train.loop import fit
from unmask.train.optimizer import OptimizerSettings
from unmask.train.progress import Listener, Progress

os.environ.setdefault("HF_HUB_OFFLINE", "1")
STRETCH = 16  # updates of one timed stretch
RATE = 5e-4  # speed does not depend on it
NEAR = 1e-5  # by how much of itself a loss may differ from ours
#: Words in the names of a block's weights: ours, those of torch's encoder and decoder, those of JoeyNMT's.
NAMES = (
    ("blocks.", "layers.", "layers.", "layers.", "layers."),
    ("attention.projections", "attention", "attention", "attention", "attention"),
    (".output.", ".out_proj.", ".out_proj.", ".output_layer.", ".output_layer."),
    ("self_attention", "self_attn", "self_attn", "src_src_att", "trg_trg_att"),
    ("cross_attention", "", "multihead_attn", "", "src_trg_att"),
    ("query.", "query.", "query.", "q_layer.", "q_layer."),
    ("key.", "key.", "key.", "k_layer.", "k_layer."),
    ("value.", "value.", "value.", "v_layer.", "v_layer."),
    ("ffn.inner", "linear1", "linear1", "feed_forward.pwff_layer.0", "feed_forward.pwff_layer.0"),
    ("ffn.outer", "linear2", "linear2", "feed_forward.pwff_layer.3", "feed_forward.pwff_layer.3"),
    ("around_attention.norm", "norm1", "norm1", "layer_norm", "x_layer_norm"),
    ("around_cross.norm", "", "norm2", "", "dec_layer_norm"),
    ("around_ffn.norm", "norm2", "norm3", "feed_forward.layer_norm", "feed_forward.layer_norm"),
)
Sentences = Sequence[int]


class Work:
    """What all contestants learn from."""

    def __init__(self, quick: bool) -> None:
        changes = ["vocabulary.size=500", "batch_tokens=512"] if quick else []
        self.settings = read_translate_settings("multi30k-tiny", ["unknown_share=0.0", *changes])
        folder = data_folder() / "multi30k_en-de"
        pairs = list(read_pairs([folder / "train.en", folder / "train.de"]))[: 500 if quick else None]
        self.languages = learn_languages(self.settings, pairs, Listener())
        ready = prepare(self.settings, pairs, pairs[:1], self.languages, Listener())
        self.ours: Transformer = ready.model
        self.source, self.pairs = ready.source, ready.source.pairs
        #: Of a stretch, as numbers of pairs.
        self.batches = [self.source.numbers(number).tolist() for number in range(2 if quick else STRETCH)]
        #: Target tokens of a stretch, the end tokens too.
        self.tokens = sum(len(self.pairs.targets[number]) + 1 for batch in self.batches for number in batch)

    def mixed(self) -> list[list[int]]:
        """The same sentences in random order, in batches of equally many."""
        every = [number for batch in self.batches for number in batch]
        random.Random(0).shuffle(every)
        size = math.ceil(len(every) / len(self.batches))
        return [every[start : start + size] for start in range(0, len(every), size)]


class Watched(Listener):
    """Batches, and when the first was asked for and the last update ended."""

    began = ended = Spent(0.0, 0.0)

    def __init__(self, source: PairBatches) -> None:
        self.source = source

    def __getitem__(self, number: int) -> object:
        if number == 0:
            self.began = Spent.now()
        return self.source[number]

    def update(self, progress: Progress) -> None:
        self.ended = Spent.now()


def ours_stretch(work: Work) -> Callable[[], Spent]:
    # A batch is an update, for all.
    alone = {"accumulate": 1, "save_every": 1_000_000, "evaluate_every": None}
    plan = work.settings.loop.replace(updates=len(work.batches), **alone)

    def once() -> Spent:
        watched = Watched(work.source)
        with tempfile.TemporaryDirectory() as run:
            fit(work.ours, Translating(work.settings.smoothing), watched, plan, Path(run), None, watched)
        return watched.ended.since(watched.began)

    return once


class Padded:
    """Sentences as rectangles: sources with their end, targets with their start and their end."""

    def __init__(self, work: Work) -> None:
        self.frame, self.pad = work.pairs.frame, int(work.languages.source.pad_id or 0)
        sources, targets, frame = work.pairs.sources, work.pairs.targets, self.frame
        every = [number for batch in work.batches for number in batch]
        self.sources = {n: torch.tensor([*sources[n].tolist(), frame.source_end]) for n in every}
        self.targets = {n: torch.tensor([frame.start, *targets[n].tolist(), frame.end]) for n in every}

    def source(self, numbers: Sentences) -> Tensor:
        return pad_sequence([self.sources[number] for number in numbers], batch_first=True, padding_value=self.pad)

    def target(self, numbers: Sentences) -> Tensor:
        """Without its last column what is read, without its first what is to be said."""
        return pad_sequence([self.targets[number] for number in numbers], batch_first=True, padding_value=self.pad)


class Contestant:
    """A model of another library in a plain loop."""

    like: Callable[[Any, Transformer], nn.Module]  # of the same shape, with the same weights

    def __init__(self, work: Work) -> None:
        self.padded, self.smoothing = Padded(work), work.settings.smoothing
        self.model: Any = self.like(work.ours)
        self.optimizer = self.new_optimizer(work.settings.train.optimizer)

    def new_optimizer(self, given: OptimizerSettings) -> torch.optim.Optimizer:
        betas, decay = (given.beta1, given.beta2), given.weight_decay
        return torch.optim.AdamW(self.model.parameters(), RATE, betas, given.eps, decay, fused=True)

    def logits(self, source: Tensor, target: Tensor) -> Tensor:
        return self.model(source, target)

    def loss(self, numbers: Sentences, smoothing: float) -> Tensor:
        """The mean over all target tokens."""
        target = self.padded.target(numbers)
        logits, labels = self.logits(self.padded.source(numbers), target[:, :-1]), target[:, 1:]
        pad = self.padded.pad
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=pad, label_smoothing=smoothing)

    def stretch(self, batches: Sequence[Sentences]) -> Callable[[], Spent]:
        def once() -> Spent:
            self.model.train()
            began = Spent.now()
            for numbers in batches:
                self.loss(numbers, self.smoothing).backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            return Spent.now().since(began)

        return once


def renamed(ours: Transformer, encoder: int) -> dict[str, Tensor]:
    """The weights of our blocks under the names of others: those in two neighbouring columns."""
    columns, found = {"encoder": encoder, "decoder": encoder + 1}, {}
    for name, tensor in ours.state_dict().items():
        side, rest = name.split(".", 1)
        if side in columns:
            for words in NAMES:
                rest = rest.replace(words[0], words[columns[side]])
            found[f"{side}.{rest}"] = tensor
    return found


class Textbook(nn.Module):
    """A translator around torch.nn.Transformer."""

    def __init__(self, settings: TransformerSettings, waves: Tensor, pad: int) -> None:
        super().__init__()
        width, rate = settings.hidden_size, settings.dropout.residual
        shape = {"dim_feedforward": settings.ffn_size, "dropout": rate, "batch_first": True}
        first = nn.TransformerEncoderLayer(width, settings.num_heads, **shape)
        second = nn.TransformerDecoderLayer(width, settings.num_heads, **shape)
        layers = settings.num_encoder_layers, settings.num_decoder_layers
        encoder = nn.TransformerEncoder(first, layers[0], enable_nested_tensor=False)
        decoder = nn.TransformerDecoder(second, layers[1])
        stacks = {"custom_encoder": encoder, "custom_decoder": decoder}
        self.transformer = nn.Transformer(width, settings.num_heads, batch_first=True, **stacks)
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # as ours; with it attention would be slower here
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0  # of what the feed-forward part holds inside
        self.table = nn.Embedding(settings.target_vocab_size, width)
        self.dropout = nn.Dropout(rate)
        self.register_buffer("waves", waves)
        self.pad, self.scale = pad, math.sqrt(width)

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.table(ids) * self.scale + self.waves[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        missing, causal = source == self.pad, nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        rows = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,  # padded targets come last, so that this hides them from all that count
            src_key_padding_mask=missing,
            memory_key_padding_mask=missing,
            tgt_is_causal=True,
        )
        return F.linear(rows, self.table.weight)


class TorchTransformer(Contestant):
    def like(self, ours: Transformer) -> nn.Module:
        model = Textbook(ours.settings, position_table(ours.source_embeddings, ours.settings), self.padded.pad)
        copied = {"table.weight": ours.target_embeddings.token.weight}
        parts: dict[str, list[Tensor]] = {}  # queries, keys and values, which are one here
        for name, tensor in renamed(ours, 1).items():
            place, kind = name.rsplit(".", 1)
            if place.endswith(("query", "key", "value")):
                parts.setdefault(f"transformer.{place.rsplit('.', 1)[0]}.in_proj_{kind}", []).append(tensor)
            else:
                copied[f"transformer.{name}"] = tensor
        copied |= {name: torch.cat(three) for name, three in parts.items()}
        missing, unknown = model.load_state_dict(copied, strict=False)
        assert (missing, unknown) == (["waves"], []), (missing, unknown)
        return model


class Marian(Contestant):
    def like(self, ours: Transformer) -> nn.Module:
        from transformers import MarianMTModel

        ids = TranslationIds(self.padded.frame.start, self.padded.frame.end, self.padded.pad)
        with tempfile.TemporaryDirectory() as spare:
            export_marian(ours, Path(spare) / "model", ids)
            return MarianMTModel.from_pretrained(Path(spare) / "model")

    def logits(self, source: Tensor, target: Tensor) -> Tensor:
        there = (source != self.padded.pad).long()
        found = self.model(input_ids=source, attention_mask=there, decoder_input_ids=target, use_cache=False)
        return found.logits


class Joey(Contestant):
    """JoeyNMT's batch, model, loss and optimizer, in the order of its `TrainManager`."""

    def like(self, ours: Transformer) -> nn.Module:
        from joeynmt.model import build_model

        shape, frame, pad = ours.settings, self.padded.frame, self.padded.pad
        ids = {"pad_index": pad, "bos_index": frame.start, "eos_index": frame.end, "unk_index": 1 - pad}
        vocabulary = Tokens(size=shape.target_vocab_size, **ids, sep_index=None, specials=[], lang_tags=[])
        width, rate = shape.hidden_size, shape.dropout.residual
        stack: dict[str, Any] = {"type": "transformer", "num_layers": shape.num_encoder_layers, "layer_norm": "post"}
        stack |= {"num_heads": shape.num_heads, "hidden_size": width, "ff_size": shape.ffn_size, "dropout": rate}
        stack["embeddings"] = {"embedding_dim": width, "scale": True, "dropout": rate}
        wanted = {"encoder": dict(stack), "decoder": dict(stack), "tied_embeddings": True, "tied_softmax": True}
        model: Any = build_model(wanted, vocabulary, vocabulary)
        for side in (model.encoder, model.decoder):
            side.pe.pe = position_table(ours.source_embeddings, shape)[None].clone()
            for name, module in side.named_modules():
                if isinstance(module, nn.LayerNorm):
                    module.eps = shape.norm_eps
                if name.endswith(("att.dropout", "pwff_layer.2")):
                    module.p = 0.0  # as ours
        copied = renamed(ours, 3)
        for name in ("src_embed.lut", "trg_embed.lut", "decoder.output_layer"):
            copied[f"{name}.weight"] = ours.target_embeddings.token.weight
        missing, unknown = model.load_state_dict(copied, strict=False)
        assert (missing, unknown) == (["encoder.pe.pe", "decoder.pe.pe"], []), (missing, unknown)
        return model

    def new_optimizer(self, given: OptimizerSettings) -> torch.optim.Optimizer:
        from joeynmt.builders import build_optimizer

        wanted = {"optimizer": "adamw", "learning_rate": RATE, "weight_decay": given.weight_decay}
        return build_optimizer(wanted | {"adam_betas": (given.beta1, given.beta2)}, self.model.parameters())

    def loss(self, numbers: Sentences, smoothing: float) -> Tensor:
        from joeynmt.batch import Batch

        source, target = self.padded.source(numbers), self.padded.target(numbers)
        lengths = torch.tensor([len(self.padded.sources[number]) for number in numbers])
        places, cpu = torch.arange(len(numbers)), torch.device("cpu")
        batch = Batch(source, lengths, None, target, None, places, cpu, self.padded.pad, self.padded.frame.end)
        batch.sort_by_src_length()
        if self.model.loss_function is None or self.model.loss_function.smoothing != smoothing:
            self.model.loss_function = ("crossentropy", smoothing)
        found, _, _, _ = self.model(return_type="loss", **vars(batch))
        return batch.normalize(found, "tokens")


class Tokens(SimpleNamespace):
    """What JoeyNMT's model wants to know of a vocabulary."""

    def __len__(self) -> int:
        return self.size


def others(work: Work) -> dict[str, Contestant]:
    found: dict[str, Contestant] = {}
    kinds = {"torch.nn.Transformer": TorchTransformer, "transformers MarianMT": Marian, "JoeyNMT": Joey}
    for name, kind in kinds.items():
        try:
            found[name] = kind(work)
        except ImportError as error:
            said(f"{name} is not measured: {error}")
    return found


def check(work: Work, contestants: dict[str, Contestant]) -> dict[str, float]:
    """By how much of itself the loss of each differs from ours, with our weights and without dropout."""
    numbers, apart = work.batches[0], {}
    batch = work.pairs.batch(numbers)
    work.ours.eval()
    for name, one in contestants.items():
        one.model.eval()
        # What JoeyNMT calls smoothing leaves padding out and counts what cannot be learned: another number.
        smoothing = 0.0 if name == "JoeyNMT" else work.settings.smoothing
        with torch.no_grad():
            wanted = float(loss_of(work.ours, batch, smoothing)) / batch.num_tokens
            apart[name] = abs(float(one.loss(numbers, smoothing)) / wanted - 1)
        assert apart[name] <= NEAR, f"{name} does not compute the same: its loss is off by {apart[name]:.1e}"
    said("losses apart from ours: " + "  ".join(f"{name} {value:.1e}" for name, value in apart.items()))
    return apart


def contest(options: argparse.Namespace) -> Found:
    work = Work(options.quick)
    apart = check(work, peers := others(work))
    runs = {"ours": ours_stretch(work)} | {name: one.stretch(work.batches) for name, one in peers.items()}
    runs["torch.nn.Transformer, random order"] = peers["torch.nn.Transformer"].stretch(work.mixed())
    spent: dict[str, list[Spent]] = {name: [] for name in runs}
    for number in range(options.rounds + 1):  # the first warms up
        for name, run in runs.items():
            one_round = run()
            said(f"round {number}: {name} {one_round.clock:.2f} s, {one_round.work:.2f} s of the processor")
            if number:
                spent[name].append(one_round)
    clocks = {name: [one.clock for one in found] for name, found in spent.items()}
    works = {name: [one.work for one in found] for name, found in spent.items()}
    return {"tokens": work.tokens, "updates": len(work.batches), "clock": clocks, "work": works, "apart": apart}


def show_contest(found: Found, options: argparse.Namespace) -> None:
    clock, work = found["clock"], found["work"]
    rows: list[dict[str, object]] = [
        {
            "who": name,
            "target tokens/s": round(found["tokens"] / min(clock[name])),
            "ours is faster": f"{min(clock[name]) / min(clock['ours']):.2f} times",
            "by the median": f"{median(clock[name]) / median(clock['ours']):.2f} times",
            "processor (s)": f"{min(work[name]):.2f}",
            "ours works less": f"{min(work[name]) / min(work['ours']):.2f} times",
            "loss apart": f"{found['apart'][name]:.0e}" if name in found["apart"] else "–",
        }
        for name in clock
    ]
    mean = found["tokens"] / found["updates"]
    title = f"Learning to translate, {found['updates']} updates of {mean:,.0f} target tokens"
    table(f"{title}, {options.threads} threads, best of {options.rounds} interleaved rounds", rows, options)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    given.rounds = 1 if given.quick else given.rounds
    joined = " with JoeyNMT" if find_spec("joeynmt") else ""
    found = Results(given).get(f"{given.rounds} rounds, {given.threads} threads{joined}", lambda: contest(given))
    show_contest(found, given)


if __name__ == "__main__":
    main()
