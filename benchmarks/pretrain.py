"""How fast BERT-mini is pre-trained: ours against `transformers`' BertForPreTraining, on the same examples.

    UNMASK_DATA=folder python benchmarks/pretrain.py [--rounds 5] [--json]
    UNMASK_DATA=folder python benchmarks/pretrain.py --profile       where our time goes
    UNMASK_DATA=folder python benchmarks/pretrain.py --start         from text to the first step, both sides
    UNMASK_DATA=folder python benchmarks/pretrain.py --learn 400     both learn from the same examples: losses compared

Examples are made of Chinese Wikipedia by us (pairs, 15 % masked, 128 tokens, 4096 a batch). Both sides get the same
ones: ours ragged, the other padded to the longest of the batch with labels of -100. Both have the same weights at the
start, dropout as in the paper (0.1) and, apart, none; clipping at 1, AdamW in torch's fused form, the same threads.
Rounds are interleaved and the best of each side counts, in tokens that are not padding, a second.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from common import arguments, data_folder, interleaved, show
from unmask.data.corpus.build import build_corpus
from unmask.data.corpus.format import CorpusSettings
from unmask.data.corpus.store import Corpus
from unmask.data.pretraining import Examples, ExampleSettings, PretrainBatch
from unmask.models.folder import save_model
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, MaskedTokenSettings, NextSentenceSettings, bert_preset
from unmask.nn.settings import DropoutSettings
from unmask.tasks.pretrain import Pretraining
from unmask.text import Tokenizer
from unmask.train.optimizer import OptimizerSettings, build_optimizer
from unmask.train.step import backward

SOURCE = Path("zhwiki_sample") / "zhwiki_sample.txt.gz"
MEGABYTES = 12
RATE = 5e-4


def sample(megabytes: float, target: Path) -> Path:
    """The first documents of the text."""
    held, size = [], 0
    with gzip.open(data_folder() / SOURCE) as file:
        for line in file:
            held.append(line)
            size += len(line)
            if size >= megabytes * 1e6 and not line.strip():
                break
    target.write_bytes(b"".join(held))
    return target


def characters(text: Path, size: int) -> Tokenizer:
    """A vocabulary of exactly this size: the most frequent characters, filled up where there are fewer."""
    counts = Counter(text.read_text(encoding="utf-8"))
    letters = [letter for letter, _ in counts.most_common(size - 5) if not letter.isspace()]
    filling = [f"[unused{number}]" for number in range(size - 5 - len(letters))]
    return Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *filling])


def corpus_of(spare: Path, vocabulary: int) -> Corpus:
    text = sample(MEGABYTES, spare / "text.txt")
    settings = CorpusSettings(format="paragraphs", words=False)
    return build_corpus([text], characters(text, vocabulary), spare / f"corpus-{vocabulary}", settings)


def mini(vocabulary: int, dropout: float) -> BertSettings:
    heads = (MaskedTokenSettings(), NextSentenceSettings())
    rates = DropoutSettings(embedding=dropout, residual=dropout, attention=dropout, activation=0.0)
    return bert_preset("mini", vocabulary).replace(heads=heads, dropout=rates)


def theirs(model: nn.Module, folder: Path, dropout: float) -> nn.Module:
    """Their model with our weights."""
    from transformers import BertForPreTraining

    shutil.rmtree(folder, ignore_errors=True)
    save_model(model, folder)  # type: ignore[arg-type]
    options = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return BertForPreTraining.from_pretrained(str(folder), **options)


def padded(batch: PretrainBatch) -> dict[str, torch.Tensor]:
    layout = batch.batch.layout
    labels = torch.full_like(batch.batch.ids, -100)
    labels[batch.masked_rows] = batch.targets
    return {
        "input_ids": layout.pad(batch.batch.ids),
        "token_type_ids": layout.pad(batch.batch.segments),
        "attention_mask": layout.key_mask(labels.device).long(),
        "labels": layout.pad(labels, -100),
        "next_sentence_label": batch.pair_labels,
    }


class Ours:
    def __init__(self, model: nn.Module) -> None:
        self.model = model.train()
        self.task = Pretraining("nsp")
        self.optimizer = build_optimizer(model, OptimizerSettings(learning_rate=RATE))

    def step(self, batch: PretrainBatch) -> float:
        losses = backward(self.model, self.task, [batch])
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return sum(losses.values())


class Theirs:
    def __init__(self, model: nn.Module) -> None:
        self.model = model.train()
        # The same groups as ours: biases and norms do not decay.
        apart = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
        names = {id(p) for p in apart}
        rest = [p for p in model.parameters() if id(p) not in names]
        groups = [{"params": rest, "weight_decay": 0.01}, {"params": apart, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6, fused=True)

    def step(self, batch: dict[str, torch.Tensor]) -> float:
        loss = self.model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


def speed(corpus: Corpus, dropout: float, rounds: int, spare: Path) -> dict[str, object]:
    examples = Examples(corpus, ExampleSettings())
    batches = [examples[number] for number in range(4)]
    tokens = sum(batch.num_tokens for batch in batches)
    model = build_model(mini(corpus.vocab_size, dropout), seed=0)
    other = Theirs(theirs(model, spare / "start", dropout))
    own = Ours(model)
    rectangles = [padded(batch) for batch in batches]
    places = sum(one["input_ids"].numel() for one in rectangles)
    contestants: dict[str, Callable[[], object]] = {
        "ours": lambda: [own.step(batch) for batch in batches],
        "transformers": lambda: [other.step(batch) for batch in rectangles],
    }
    best = interleaved(contestants, rounds)
    return {
        "vocabulary": corpus.vocab_size,
        "dropout": dropout,
        "ours tokens/s": round(tokens / best["ours"]),
        "transformers tokens/s": round(tokens / best["transformers"]),
        "ratio": round(best["transformers"] / best["ours"], 2),
        "padding there": f"{100 * (places - tokens) / places:.1f} %",
    }


def profile(corpus: Corpus, dropout: float) -> list[dict[str, object]]:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    examples = Examples(corpus, ExampleSettings())
    started = time.perf_counter()
    batches = [examples[number] for number in range(1, 7)]
    making = (time.perf_counter() - started) / len(batches)
    own = Ours(build_model(mini(corpus.vocab_size, dropout), seed=0))
    for batch in batches[:3]:
        own.step(batch)
    with recording(activities=[ProfilerActivity.CPU]) as record:
        for batch in batches[3:]:
            own.step(batch)
    kinds: Counter[str] = Counter()
    for event in record.key_averages():
        kinds[_kind(event.key)] += event.self_cpu_time_total
    total = sum(kinds.values())
    rows: list[dict[str, object]] = [
        {"part": name, "share": f"{100 * time / total:.1f} %"} for name, time in kinds.most_common()
    ]
    return [*rows, {"part": "making a batch, in a worker beside it (ms)", "share": f"{1000 * making:.1f}"}]


def _kind(name: str) -> str:
    kinds = {
        "products of matrices": ("::mm", "addmm", "bmm", "matmul"),
        "softmax, losses": ("softmax", "nll_loss", "cross_entropy"),
        "attention kernel": ("flash_attention",),
        "activation": ("gelu", "tanh"),
        "random numbers and dropout": ("random_", "bernoulli", "dropout", "::ge", "Dropout"),
        "norms": ("layer_norm",),
        "optimizer and clipping": ("adamw", "Optimizer", "vector_norm", "foreach"),
        "copies and fills": ("copy_", "::cat", "fill_", "zero", "index", "embedding", "gather", "clone"),
        "element by element": ("::add", "::mul", "::sum", "::div", "::sub"),
    }
    return next((kind for kind, marks in kinds.items() if any(mark in name for mark in marks)), "everything else")


def learn(corpus: Corpus, updates: int, spare: Path) -> list[dict[str, object]]:
    """Both sides learn from the same examples, in the same order, from the same first values, without dropout."""
    examples = Examples(corpus, ExampleSettings())
    model = build_model(mini(corpus.vocab_size, 0.0), seed=0)
    other = Theirs(theirs(model, spare / "start", 0.0))
    own = Ours(model)
    rows: list[dict[str, object]] = []
    window: list[tuple[float, float]] = []
    tokens = 0
    for number in range(updates):
        batch = examples[number]
        tokens += batch.num_tokens
        for side in (own, other):
            for group in side.optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (number + 1) / 100)
        window.append((own.step(batch), other.step(padded(batch))))
        if len(window) == max(1, updates // 8):
            mine, them = (sum(side) / len(window) for side in zip(*window, strict=True))
            change = f"{100 * (mine - them) / them:+.3f} %"
            rows.append({"tokens": tokens, "ours": round(mine, 4), "transformers": round(them, 4), "change": change})
            window = []
    return rows


_OURS = """
import sys, torch
from pathlib import Path
torch.set_num_threads(int(sys.argv[4]))
from unmask.data.corpus.build import build_corpus
from unmask.data.corpus.format import CorpusSettings
from unmask.data.pretraining import Examples, ExampleSettings
from unmask.models.init import build_model
from unmask.text import Tokenizer
sys.path.insert(0, sys.argv[5])
from pretrain import Ours, mini
settings = CorpusSettings(format="paragraphs", words=False)
corpus = build_corpus([Path(sys.argv[1])], Tokenizer.from_folder(Path(sys.argv[2])), Path(sys.argv[3]) / "c", settings)
Ours(build_model(mini(corpus.vocab_size, 0.1), seed=0)).step(Examples(corpus, ExampleSettings())[0])
"""
_THEIRS = """
import sys, torch
torch.set_num_threads(int(sys.argv[4]))
import datasets
from transformers import AutoTokenizer, BertConfig, BertForPreTraining, DataCollatorForLanguageModeling
datasets.disable_progress_bars()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
tokenizer.model_max_length = 10**9
table = datasets.load_dataset("text", data_files=sys.argv[1], cache_dir=sys.argv[3] + "/h", split="train")
def encode(batch):
    return {"input_ids": tokenizer(batch["text"], add_special_tokens=False)["input_ids"]}
def cut(batch):
    flat = [token for ids in batch["input_ids"] for token in ids]
    return {"input_ids": [[2, *flat[i:i + 126], 3] for i in range(0, len(flat) - 125, 126)]}
options = {"batched": True, "num_proc": int(sys.argv[4])}
table = table.map(encode, remove_columns=["text"], **options).map(cut, **options)
batch = DataCollatorForLanguageModeling(tokenizer)([table[i] for i in range(32)])
sys.path.insert(0, sys.argv[5])
from pretrain import Theirs
config = BertConfig(vocab_size=len(tokenizer), hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                    intermediate_size=1024)
Theirs(BertForPreTraining(config)).step({**batch, "next_sentence_label": torch.zeros(32, dtype=torch.int64)})
"""


def start(spare: Path, threads: int, rounds: int) -> list[dict[str, object]]:
    """From text to the first step, programs started anew. Theirs makes no pairs: nothing there does any more."""
    text = sample(MEGABYTES, spare / "text.txt")
    characters(text, 8000).save(spare / "tokenizer")
    here = str(Path(__file__).parent)

    def run(code: str) -> Callable[[], object]:
        def once() -> None:
            out = Path(tempfile.mkdtemp(dir=spare))
            command = [sys.executable, "-c", code, str(text), str(spare / "tokenizer"), str(out), str(threads), here]
            subprocess.run(command, check=True, env=os.environ | {"TOKENIZERS_PARALLELISM": "false"})
            shutil.rmtree(out)

        return once

    best = interleaved({"ours": run(_OURS), "transformers and datasets": run(_THEIRS)}, rounds)
    return [
        {"who": name, "seconds": round(seconds, 2), "ratio": round(best["transformers and datasets"] / seconds, 2)}
        for name, seconds in best.items()
    ]


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--profile", action="store_true", help="where our time goes")
    parser.add_argument("--start", action="store_true", help="time from text to the first step")
    parser.add_argument("--learn", type=int, metavar="UPDATES", help="compare losses at equal tokens")
    options: Any = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as name:
        spare = Path(name)
        if options.start:
            show(f"From {MEGABYTES} MB of text to the first step", start(spare, options.threads, 3), options.json)
        elif options.learn:
            rows = learn(corpus_of(spare, 8000), options.learn, spare)
            show("Loss (mlm + nsp) at equal tokens, the same examples", rows, options.json)
        elif options.profile:
            show("Where our time goes, dropout 0.1", profile(corpus_of(spare, 8000), 0.1), options.json)
        else:
            rows = [
                speed(corpus, dropout, options.rounds, spare)
                for corpus in (corpus_of(spare, 21_128), corpus_of(spare, 8_000))
                for dropout in (0.1, 0.0)
            ]
            show("Pre-training BERT-mini, tokens (without padding) a second", rows, options.json)


if __name__ == "__main__":
    main()
