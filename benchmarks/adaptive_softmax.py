"""Does adaptive softmax pay? Time of the output layer by itself, and what a small masked language model learns with it.

    UNMASK_DATA=folder python benchmarks/adaptive_softmax.py [--quick] [--json]

1. Forward and backward of output layer and loss, for 256 rows whose tokens are drawn as Zipf's law has them: one
   softmax over all tokens (the loss that training uses here, a few rows at a time, and torch's, all at once), adaptive
   softmax (ours, and torch's). CPU time, in turns, the best of several.
2. BERT of 2 layers of 128 on the Brown corpus and a piece of Wikipedia, 30,000 tokens: held-out MLM loss after equally
   many updates, and after equally many CPU seconds of training (the quicker of the two goes on for as long as the other
   took). The rate is constant after its warm-up, so that to stop at any time is fair. One softmax is tied to the
   embedding, as BERT's is; the adaptive one cannot be. Beside them, the loss of knowing frequencies alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import data_folder, show
from unmask.data.corpus.build import build_corpus
from unmask.data.corpus.format import CorpusSettings
from unmask.data.corpus.store import Corpus
from unmask.data.pairs import PairSettings
from unmask.data.pretraining import Examples, ExampleSettings
from unmask.models.bert import Bert, num_parameters
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, MaskedTokenSettings
from unmask.nn.adaptive import AdaptiveOutput, order_by_frequency
from unmask.nn.modes import evaluating
from unmask.nn.settings import AdaptiveSettings, DropoutSettings
from unmask.nn.vocabulary import vocabulary_loss
from unmask.tasks.pretrain import HeldOut, Pretraining
from unmask.text.training import VocabularySettings, train_tokenizer

#: By vocabulary: where clusters begin.
CUTOFFS = {8_000: (2_000,), 30_000: (3_000, 12_000), 120_000: (5_000, 30_000), 500_000: (5_000, 40_000, 150_000)}
ROWS = 256
TOKENS = 30_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute: small sizes, one seed, few updates")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--part", choices=["time", "learn", "both"], default="both")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.updates, given.seeds = 2, 30, 1
    torch.set_num_threads(1)
    if given.part != "learn":
        sizes = [size for size in CUTOFFS if size <= 30_000 or not given.quick]
        show(
            f"Forward and backward of {ROWS} rows, 1 thread, best of {given.rounds}",
            times(given.rounds, sizes),
            given.json,
        )
    if given.part != "time":
        rows = learned(given.updates, given.seeds)
        show(f"Masked language model, {given.updates} updates of 2,048 tokens, 1 thread", rows, given.json)


def times(rounds: int, sizes: list[int]) -> list[dict[str, object]]:
    rows = []
    for size in sizes:
        for hidden in (256, 512):
            torch.manual_seed(0)
            rows.append({"vocabulary": size, "hidden": hidden, **_timed(size, hidden, rounds)})
    return rows


def _timed(size: int, hidden: int, rounds: int) -> dict[str, object]:
    table = nn.Parameter(torch.empty(size, hidden).normal_(std=0.02))
    bias = nn.Parameter(torch.zeros(size))
    adaptive = AdaptiveOutput(size, hidden, CUTOFFS[size], 4.0)
    rows = torch.randn(ROWS, hidden, requires_grad=True)
    targets = torch.multinomial(1.0 / torch.arange(1, size + 1), ROWS, replacement=True)

    def learn(loss: Callable[[], Tensor], parameters: list[nn.Parameter]) -> Callable[[], None]:
        def run() -> None:
            for one in (*parameters, rows):
                one.grad = None
            loss().backward()

        return run

    own = list(adaptive.parameters())
    best = _best(
        {
            "softmax": learn(lambda: vocabulary_loss(rows, table, bias, targets), [table, bias]),
            "softmax, torch": learn(
                lambda: F.cross_entropy(F.linear(rows, table, bias), targets, reduction="sum"), [table, bias]
            ),
            "adaptive": learn(lambda: adaptive.loss(rows, targets), own),
            "adaptive, torch": learn(lambda: -adaptive.softmax(rows, targets).output.sum(), own),
        },
        rounds,
    )
    milliseconds = {f"{name} ms": round(1000 * seconds, 2) for name, seconds in best.items()}
    times_faster = round(min(best["softmax"], best["softmax, torch"]) / best["adaptive"], 1)
    parameters = {"parameters": table.numel() + size, "adaptive parameters": num_parameters(adaptive)}
    return {**milliseconds, "times faster than the better softmax": times_faster, **parameters}


def _best(contestants: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """CPU seconds of each one's best round: what else the machine does counts for little."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(1 + rounds):
        for name, run in contestants.items():
            started = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - started)
    return best


class Arm(NamedTuple):
    """A model under way."""

    model: Bert
    optimizer: torch.optim.Optimizer
    examples: Examples


def learned(updates: int, seeds: int) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as spare:
        corpus = _corpus(Path(spare))
        rows = []
        for seed in range(seeds):
            rows.append(_pair(corpus, seed, updates))
            print(f"seed {seed} done", file=sys.stderr, flush=True)
        return rows


def _corpus(spare: Path) -> Corpus:
    files = [data_folder() / name for name in ("brown/brown.txt", "enwiki_sample/enwiki_sample.txt")]
    tokenizer = train_tokenizer(files, VocabularySettings(size=TOKENS, min_frequency=2))
    return build_corpus(files, tokenizer, spare / "corpus", CorpusSettings(format="paragraphs"), workers=1)


def _pair(corpus: Corpus, seed: int, updates: int) -> dict[str, object]:
    settings = ExampleSettings(
        length=64, batch_tokens=2048, held_out=20, pairs=PairSettings(objective="none"), seed=seed
    )
    held_out = HeldOut(Examples(corpus, settings, "held_out"), 60_000, corpus.load_tokenizer())
    arms = {
        "softmax": _arm(corpus, settings, seed, MaskedTokenSettings()),
        "adaptive": _arm(
            corpus, settings, seed, MaskedTokenSettings(tied=False, output=AdaptiveSettings(cutoffs=CUTOFFS[TOKENS]))
        ),
    }
    spent = dict.fromkeys(arms, 0.0)
    for number in range(updates):  # in turns
        for name, arm in arms.items():
            spent[name] += _update(arm, number)
    found: dict[str, object] = {"seed": seed, "by frequency alone": round(_by_frequency(corpus, held_out), 4)}
    for name, arm in arms.items():
        found |= {f"{name} parameters": num_parameters(arm.model), f"{name} CPU seconds": round(spent[name], 1)}
        found[f"{name} loss"] = round(_loss(arm, held_out), 4)
    quicker, longest, number = min(arms, key=lambda name: spent[name]), max(spent.values()), updates
    while spent[quicker] < longest:
        spent[quicker] += _update(arms[quicker], number)
        number += 1
    same_time = round(_loss(arms[quicker], held_out), 4)
    return found | {"goes on": quicker, "to updates": number, "its loss after equal time": same_time}


def _by_frequency(corpus: Corpus, held_out: HeldOut) -> float:
    """The loss of who knows nothing but how often each token occurs."""
    counts = torch.from_numpy(corpus.token_counts()) + 1.0
    targets = torch.cat([batch.targets for batch in held_out.batches])
    return float((counts.sum().log() - counts[targets].log()).mean())


def _arm(corpus: Corpus, settings: ExampleSettings, seed: int, head: MaskedTokenSettings) -> Arm:
    model = build_model(
        BertSettings(
            vocab_size=corpus.vocab_size,
            num_layers=2,
            hidden_size=128,
            num_heads=2,
            ffn_size=512,
            max_length=64,
            heads=(head,),
            dropout=DropoutSettings.everywhere(0.0),
        ),
        seed,
    )
    assert isinstance(model, Bert)
    order_by_frequency(model, torch.from_numpy(corpus.token_counts()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    return Arm(model.train(), optimizer, Examples(corpus, settings))


def _update(arm: Arm, number: int) -> float:
    """One update; gives its CPU seconds, so that what else the machine does counts for nothing."""
    batch = arm.examples[number]
    started = time.process_time()
    for group in arm.optimizer.param_groups:
        group["lr"] = 2e-3 * min(1.0, (number + 1) / 40)
    arm.optimizer.zero_grad()
    (Pretraining("none").sums(arm.model, batch)["mlm"] / len(batch.targets)).backward()
    nn.utils.clip_grad_norm_(arm.model.parameters(), 1.0)
    arm.optimizer.step()
    return time.process_time() - started


@torch.inference_mode()
def _loss(arm: Arm, held_out: HeldOut) -> float:
    with evaluating(arm.model):
        return held_out.conclude([held_out.measure(arm.model, number) for number in range(len(held_out))])["mlm_loss"]


if __name__ == "__main__":
    main()
