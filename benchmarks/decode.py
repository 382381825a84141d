"""Greedy decoding and beam search against `generate` of transformers' MarianMT and CTranslate2, with the same weights.

    UNMASK_DATA=… python benchmarks/decode.py [--sentences 1000] [--model FOLDER] [--batches 32,64,128,256]

Sources are the English side of Multi30k's test set. Without `--model` they are in a joint vocabulary of the training
set, and the weights are random but for the end token's: these are fitted so that an output is about as long as its
source, as it is in a trained model, with the spread that the fit leaves. All hold the same weights, get the
sources sorted by length, and run at the batch size at which each is quickest; greedy outputs are compared token by
token. Ours are the torch modules and the kernels in fp32 and int8; CTranslate2, if it is installed, has a worker with
one thread for each thread, which is how it is quickest with many sentences. `--clock cpu` counts processor time
instead, which other work on the machine changes less; with one thread it is what a quiet machine would take.
`--invariance` counts instead how many outputs (with a beam, all hypotheses of it) change with their batch and order:
of the test set's sentences with `--model`, else of random ones. `--profile` says which operations take the time.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import common
from unmask.decode.search import decode
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import TargetIds
from unmask.engine.choose import accelerated_transformer, kernels
from unmask.models.ctranslate_export import export_ctranslate2
from unmask.models.folder import load_model
from unmask.models.init import build_model
from unmask.models.marian_export import TranslationIds
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch
from unmask.nn.settings import SinusoidalSettings
from unmask.text.tokenizer import Tokenizer
from unmask.text.training import VocabularySettings, train_tokenizer

os.environ.setdefault("HF_HUB_OFFLINE", "1")

PADDING, START, END = 0, 2, 3  # [PAD], [CLS] and [SEP] of our vocabularies
IDS = TargetIds(START, END)
#: Limits of length as in DecodeSettings, for them by the longest source of a batch.
RATIO, EXTRA = 2, 20
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
#: Spread of the random model's logits: its best token then has about the probability it has in a trained one.
SPREAD = 5.0


def sentences(options: argparse.Namespace) -> tuple[list[list[int]], int]:
    """The sources as ids, shortest first, and the size of their vocabulary."""
    folder = common.data_folder() / "multi30k_en-de"
    if options.model is not None:
        tokenizer = Tokenizer.from_folder(options.model)
    else:
        tokenizer = train_tokenizer([folder / "train.en", folder / "train.de"], VocabularySettings(size=options.vocab))
    texts = options.texts or folder / "test_2016_flickr.en"
    lines = texts.read_text(encoding="utf-8").splitlines()[: options.sentences]
    encoded = tokenizer.encode_batch(lines, special_tokens=options.model is not None)
    return sorted((list(one.ids) for one in encoded), key=len), len(tokenizer.vocab)


def random_model(options: argparse.Namespace, vocab_size: int) -> Transformer:
    settings = TransformerSettings(
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
        num_encoder_layers=options.layers,
        num_decoder_layers=options.layers,
        hidden_size=options.hidden,
        num_heads=options.hidden // 32,
        ffn_size=2 * options.hidden,
        positions=SinusoidalSettings(order="concatenated"),
        output_bias=True,
    )
    model = build_model(settings, seed=0)
    assert isinstance(model, Transformer)
    with torch.no_grad():
        table = model.target_embeddings.token.weight
        table.normal_(0, SPREAD / options.hidden**0.5, generator=torch.Generator().manual_seed(0))
        # Slow waves of the positions stay free of tokens, and blocks change little, so that the end can be timed.
        table[:, options.hidden // 10 : options.hidden // 4] = 0
        for name, weight in model.named_parameters():
            if name.endswith(("output.weight", "outer.weight")):
                weight *= 0.3
    return model.eval()


@torch.inference_mode()
def fit_the_end(model: Transformer, sources: Sequence[list[int]]) -> None:
    """Give the end token the weights by which it overtakes the best other token when a source's length is reached."""
    sample = sources[:: max(1, len(sources) // 256)]
    lengths = torch.tensor([len(source) for source in sample])
    steps = RATIO * int(lengths.max())
    states, wanted = [], []
    kept: list[Tensor] = []
    hook = model.decoder.norm.register_forward_hook(lambda module, args, output: kept.append(output))
    state, ids = model.start(model.encode(Batch.of(sample))), torch.full((len(sample),), START)
    for step in range(steps):
        logits, state = model.step(ids, state)
        logits[:, : END + 1] = float("-inf")
        best, ids = logits.max(-1)
        late = step - lengths  # by how much the end is overdue
        near = late > -16
        states.append(kept.pop()[near])
        wanted.append((best + (late - 2).clamp(-15, 15))[near])
    hook.remove()
    rows = torch.cat(states).double()
    rows = torch.cat([rows, torch.ones(len(rows), 1)], dim=1)
    square = rows.T @ rows + torch.eye(rows.shape[1]).double()
    found = torch.linalg.solve(square, rows.T @ torch.cat(wanted).double())
    assert model.output_bias is not None
    model.target_embeddings.token.weight[END] = found[:-1].float()
    model.output_bias[END] = found[-1]
    model.output_bias[:END] = -100.0  # padding, unknown and start never come, on either side


def marian(model: Transformer) -> Any:
    """A MarianMTModel with the weights of ours."""
    import transformers

    settings = model.settings
    heads, ffn = settings.num_heads, settings.ffn_size
    config = transformers.MarianConfig(
        vocab_size=settings.target_vocab_size,
        d_model=settings.hidden_size,
        encoder_layers=settings.num_encoder_layers,
        decoder_layers=settings.num_decoder_layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=ffn,
        decoder_ffn_dim=ffn,
        activation_function=settings.activation,
        scale_embedding=settings.scale_embeddings,
        pad_token_id=PADDING,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        max_position_embeddings=settings.max_length,
    )
    other = transformers.MarianMTModel(config).eval()
    state = dict(_marian_names(model))
    bias = torch.zeros(settings.target_vocab_size) if model.output_bias is None else model.output_bias.detach()
    state["final_logits_bias"] = bias[None]
    missing, unexpected = other.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert all("embed" in name or name == "lm_head.weight" for name in missing), missing
    return other


def _marian_names(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    parts = {
        "around_attention.norm": "self_attn_layer_norm",
        "around_cross.norm": "encoder_attn_layer_norm",
        "around_ffn.norm": "final_layer_norm",
        "ffn.inner": "fc1",
        "ffn.outer": "fc2",
    }
    for ours, theirs in (("self_attention", "self_attn"), ("cross_attention", "encoder_attn")):
        parts |= {f"{ours}.projections.{kind}": f"{theirs}.{kind[0]}_proj" for kind in ("query", "key", "value")}
        parts[f"{ours}.output"] = f"{theirs}.out_proj"
    yield "model.shared.weight", model.target_embeddings.token.weight
    for side in ("encoder", "decoder"):
        for name, tensor in getattr(model, side).blocks.state_dict().items():
            number, rest = name.split(".", 1)
            part, kind = rest.rsplit(".", 1)
            yield f"model.{side}.layers.{number}.{parts[part]}.{kind}", tensor


class Contest:
    """All sides, ready to decode the same sources."""

    def __init__(self, model: Transformer, sources: list[list[int]], threads: int) -> None:
        self.model, self.sources, self.threads = model, sources, threads
        self.other = marian(model)
        self.found: dict[str, list[list[int]]] = {}
        self.folder = tempfile.TemporaryDirectory()

    def sides(self, wanted: Sequence[str]) -> dict[str, Callable[[int, int], list[list[int]]]]:
        """Name → what decodes all sources with a beam, in batches of a size."""
        torch.set_num_threads(self.threads)  # a kernel keeps the number it was made with
        found: dict[str, Callable[[int, int], list[list[int]]]] = {"transformers": self.theirs}
        found["unmask torch"] = functools.partial(self.ours, self.model)
        for precision in ("fp32", "int8") if kernels() is not None else ():
            if precision == "fp32" or kernels().unmask_has_int8():
                fast = accelerated_transformer(self.model, precision)
                found[f"unmask {precision}"] = functools.partial(self.ours, fast)
        if importlib.util.find_spec("ctranslate2") is not None:
            for precision in ("float32", "int8"):
                found[f"ctranslate2 {precision}"] = functools.partial(self.ctranslate2, self.worker(precision))
        return {name: run for name, run in found.items() if not wanted or name in wanted}

    def ours(self, model: Transformer, beam: int, size: int) -> list[list[int]]:
        settings = DecodeSettings(beam=beam, max_ratio=RATIO, max_extra=EXTRA)
        outputs = decode(model, self.sources, IDS, settings, batch_size=size)
        return [one[0].ids for one in outputs]

    @torch.inference_mode()
    def theirs(self, beam: int, size: int) -> list[list[int]]:
        found: list[list[int]] = []
        for first in range(0, len(self.sources), size):
            part = self.sources[first : first + size]
            width = len(part[-1])
            ids = torch.tensor([source + [PADDING] * (width - len(source)) for source in part])
            mask = (torch.arange(width) < torch.tensor([[len(source)] for source in part])).long()
            most = {"max_new_tokens": RATIO * width + EXTRA}
            out = self.other.generate(input_ids=ids, attention_mask=mask, num_beams=beam, do_sample=False, **most)
            rows = zip(out.tolist(), part, strict=True)
            found += [_until_end(row[1:])[: RATIO * len(source) + EXTRA] for row, source in rows]
        return found

    def worker(self, precision: str) -> Any:
        """The same model in CTranslate2."""
        import ctranslate2

        folder = Path(self.folder.name) / "model"
        if not folder.exists():
            tokens = [str(number) for number in range(self.model.settings.target_vocab_size)]
            ids = TranslationIds(START, END, PADDING, 1)
            export_ctranslate2(self.model, folder, tokens, tokens, ids, add_source_end=False)
        made = ctranslate2.Translator(
            str(folder), compute_type=precision, inter_threads=self.threads, intra_threads=1, max_queued_batches=-1
        )
        torch.set_num_threads(self.threads)  # its own single threads must not become those of torch
        return made

    def ctranslate2(self, worker: Any, beam: int, size: int) -> list[list[int]]:
        most = RATIO * len(self.sources[-1]) + EXTRA
        tokens = [[str(token) for token in source] for source in self.sources]
        outputs = worker.translate_batch(tokens, beam_size=beam, max_batch_size=size, max_decoding_length=most)
        pairs = zip(outputs, self.sources, strict=True)
        return [[int(token) for token in one.hypotheses[0]][: RATIO * len(source) + EXTRA] for one, source in pairs]

    def quickest(
        self, run: Callable[[int, int], list[list[int]]], beam: int, sizes: Sequence[int], clock: Callable[[], float]
    ) -> int:
        """The batch size at which a side is quickest, by one run each on a share of the sources."""
        every, took = self.sources, {}
        self.sources = every[::2]
        for size in sizes:
            started = clock()
            run(beam, size)
            took[size] = clock() - started
        self.sources = every
        return min(took, key=lambda size: took[size])

    def run(self, name: str, side: Callable[[int, int], list[list[int]]], beam: int, size: int) -> None:
        if torch.get_num_threads() != self.threads:
            raise RuntimeError(f"torch has {torch.get_num_threads()} threads instead of {self.threads}")
        self.found[f"{name}, {mode(beam)}"] = side(beam, size)


def mode(beam: int) -> str:
    return "greedy" if beam == 1 else f"beam {beam}"


def _until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(END)] if END in ids else [token for token in ids if token != PADDING]


def stand_in(options: argparse.Namespace) -> tuple[Transformer, list[list[int]]]:
    sources, vocab_size = sentences(options)
    if options.model is not None:
        model, _ = load_model(options.model)
        assert isinstance(model, Transformer)
        return model.eval(), sources
    model = random_model(options, vocab_size)
    fit_the_end(model, sources)
    return model, sources


def speed(options: argparse.Namespace) -> None:
    model, sources = stand_in(options)
    contest = Contest(model, sources, options.threads)
    contestants: dict[str, Callable[[], None]] = {}
    sizes = {}
    for beam in options.beams:
        for name, side in contest.sides(options.only).items():
            side(beam, options.batches[0])  # warm
            size = contest.quickest(side, beam, options.batches, CLOCKS[options.clock])
            sizes[f"{name}, {mode(beam)}"] = size
            contestants[f"{name}, {mode(beam)}"] = functools.partial(contest.run, name, side, beam, size)
    best = common.interleaved(contestants, options.rounds, CLOCKS[options.clock])
    rows = []
    for name, seconds in best.items():
        base = best.get("transformers, " + name.split(", ")[1])
        rows.append(
            {
                "decoder": name,
                "batch": sizes[name],
                "sentences/s": round(len(sources) / seconds, 1),
                "tokens/s": round(sum(map(len, contest.found[name])) / seconds),
                "times theirs": "–" if base is None else round(base / seconds, 2),
            }
        )
    if "transformers, greedy" in best:
        compare(contest)
    shape = f"{model.settings.num_decoder_layers} layers of {model.settings.hidden_size}"
    shape += f", {model.settings.target_vocab_size} tokens"
    title = f"{len(sources)} sentences, {shape}, {options.threads} threads, {options.clock} time"
    common.show(title, rows, options.json)


def compare(contest: Contest) -> None:
    """How many greedy outputs are those of transformers; all of them but near ties where nothing is quantised."""
    other, count = contest.found["transformers, greedy"], len(contest.sources)
    lengths = torch.tensor([len(ids) for ids in other]).float()
    mean = sum(map(len, contest.sources)) / count
    print(f"sources of {mean:.1f} tokens, greedy outputs of {lengths.mean():.1f} ± {lengths.std():.1f}")
    for name, own in contest.found.items():
        if name.endswith("greedy") and name != "transformers, greedy":
            equal = sum(one == two for one, two in zip(own, other, strict=True))
            print(f"{name}: {equal} of {count} as transformers")
            assert "int8" in name or equal > 0.99 * count, "the two sides do not compute the same"


def profile(options: argparse.Namespace) -> None:
    model, sources = stand_in(options)
    for beam in (1, 5):
        settings = DecodeSettings(beam=beam, max_ratio=RATIO, max_extra=EXTRA)
        decode(model, sources[:64], IDS, settings)
        with torch.profiler.profile() as found:
            decode(model, sources, IDS, settings)
        print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=40))


def invariance(options: argparse.Namespace) -> None:
    draw = random.Random(0)
    if options.model is not None:
        model, sources = stand_in(options)
    else:
        model = random_model(options, options.vocab)
        sources = [[draw.randrange(4, options.vocab) for _ in range(draw.randint(1, 40))] for _ in range(64)]
    if options.engine != "torch":
        model = accelerated_transformer(model, options.engine)
    rows = []
    for beam in (1, 4, 8):
        limit = {} if options.model is not None else {"max_length": 20}
        settings = DecodeSettings(beam=beam, num_best=beam, **limit)
        alone = decode(model, sources, IDS, settings, batch_size=1)
        for size in (8, 64):
            order = list(range(len(sources)))
            draw.shuffle(order)
            found = decode(model, [sources[number] for number in order], IDS, settings, batch_size=size)
            pairs = [(outputs, alone[number]) for number, outputs in zip(order, found, strict=True)]
            rows.append(
                {
                    "beam": beam,
                    "batch": size,
                    "sentences": len(sources),
                    "other tokens than alone": sum([a.ids for a in x] != [b.ids for b in y] for x, y in pairs),
                    "other last bits": sum([a.score for a in x] != [b.score for b in y] for x, y in pairs),
                }
            )
    common.show(
        f"Outputs in batches of mixed order against each sentence alone, {options.threads} threads", rows, options.json
    )


def main() -> None:
    made = common.arguments(__doc__ or "")
    for name, value in {"sentences": 1000, "layers": 4, "hidden": 128, "vocab": 8000}.items():
        made.add_argument(f"--{name}", type=int, default=value)
    made.add_argument("--model", type=Path, help="a folder with a trained Transformer and its vocabulary")
    made.add_argument("--texts", type=Path, help="sources to decode, one a line; else the set's own test2016")
    sizes = [32, 64, 128, 256]
    made.add_argument("--batches", type=lambda text: [int(size) for size in text.split(",")], default=sizes)
    made.add_argument("--beams", type=lambda text: [int(size) for size in text.split(",")], default=[1, 5])
    made.add_argument(
        "--only", type=lambda text: text.split(","), default=[], help="names of decoders; all if not given"
    )
    made.add_argument("--clock", choices=CLOCKS, default="wall")
    made.add_argument("--engine", choices=["torch", "fp32", "int8"], default="torch", help="for --invariance")
    made.add_argument("--invariance", action="store_true", help="count outputs that depend on their batch")
    made.add_argument("--profile", action="store_true", help="where the time of our decoder goes")
    options = made.parse_args()
    torch.set_num_threads(options.threads)
    (invariance if options.invariance else profile if options.profile else speed)(options)


if __name__ == "__main__":
    main()
