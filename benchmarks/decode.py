"""Greedy decoding and beam search against MarianMT's `generate` of transformers, on a model of the same shape.

    python benchmarks/decode.py [--batch 32] [--source 15] [--length 20] [--layers 4] [--hidden 128] [--vocab 8000]

Both models are random, and every output is forced to `--length` tokens, so that both take the same number of steps;
what the tokens are does not matter for speed. `--invariance` counts instead how many outputs of sentences of mixed
lengths change with the batch they are decoded in.
"""

from __future__ import annotations

import argparse
import os
import random

import torch

import common
from unmask.decode.search import decode
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import TargetIds
from unmask.models.init import build_model
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Transformer

os.environ.setdefault("HF_HUB_OFFLINE", "1")

PADDING, END, START = 0, 2, 1
IDS = TargetIds(START, END)


def ours(options: argparse.Namespace) -> Transformer:
    settings = TransformerSettings(
        source_vocab_size=options.vocab,
        target_vocab_size=options.vocab,
        num_encoder_layers=options.layers,
        num_decoder_layers=options.layers,
        hidden_size=options.hidden,
        num_heads=options.hidden // 32,
        ffn_size=4 * options.hidden,
    )
    model = build_model(settings, seed=0)
    assert isinstance(model, Transformer)
    return model.eval()


def theirs(options: argparse.Namespace) -> torch.nn.Module:
    import transformers

    heads, ffn = options.hidden // 32, 4 * options.hidden
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=options.vocab,
        d_model=options.hidden,
        encoder_layers=options.layers,
        decoder_layers=options.layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=ffn,
        decoder_ffn_dim=ffn,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PADDING,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        max_position_embeddings=512,
    )
    return transformers.MarianMTModel(config).eval()


def speed(options: argparse.Namespace) -> None:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(4, options.vocab, (options.batch, options.source), generator=draw)
    mine, other = ours(options), theirs(options)

    def run_ours(beam: int) -> None:
        settings = DecodeSettings(beam=beam, min_length=options.length - 1, max_length=options.length, max_ratio=None)
        found = decode(mine, ids.tolist(), IDS, settings, batch_size=options.batch)
        assert all(len(outputs[0].ids) + outputs[0].finished == options.length for outputs in found)

    @torch.inference_mode()
    def run_theirs(beam: int) -> None:
        # Their lengths count the start token too.
        lengths = {"min_length": options.length + 1, "max_length": options.length + 1}
        mask = torch.ones_like(ids)
        found = other.generate(input_ids=ids, attention_mask=mask, num_beams=beam, do_sample=False, **lengths)
        assert found.shape == (options.batch, options.length + 1)

    contestants = {
        "transformers, greedy": lambda: run_theirs(1),
        "unmask, greedy": lambda: run_ours(1),
        "transformers, beam 5": lambda: run_theirs(5),
        "unmask, beam 5": lambda: run_ours(5),
    }
    best = common.interleaved(contestants, options.rounds)
    rows = []
    for name, seconds in best.items():
        base = best["transformers, " + name.split(", ")[1]]
        rows.append(
            {
                "decoder": name,
                "sentences/s": round(options.batch / seconds, 1),
                "ms a step": round(1000 * seconds / options.length, 2),
                "times theirs": round(base / seconds, 2),
            }
        )
    shape = f"{options.layers} layers of {options.hidden}, {options.vocab} tokens"
    title = f"{options.batch} sources of {options.source} tokens, {options.length} steps, {shape}"
    common.show(f"{title}, {options.threads} threads", rows, options.json)


def invariance(options: argparse.Namespace) -> None:
    model, draw = ours(options), random.Random(0)
    sources = [[draw.randrange(4, options.vocab) for _ in range(draw.randint(1, 40))] for _ in range(8 * options.batch)]
    rows = []
    for beam in (1, 5):
        settings = DecodeSettings(beam=beam, num_best=beam, max_length=options.length)
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
    for name, value in {"batch": 32, "source": 15, "length": 20, "layers": 4, "hidden": 128, "vocab": 8000}.items():
        made.add_argument(f"--{name}", type=int, default=value)
    made.add_argument("--invariance", action="store_true", help="count outputs that depend on their batch")
    options = made.parse_args()
    torch.set_num_threads(options.threads)
    (invariance if options.invariance else speed)(options)


if __name__ == "__main__":
    main()
