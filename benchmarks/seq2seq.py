"""What attention changed: the Transformer and LSTMs with as many parameters, by the length of what they translate.

    UNMASK_DATA=folder python benchmarks/seq2seq.py --runs FOLDER [--out results.json] [--updates 2000] [--seeds 1]

Multi30k, English to German: the config multi30k-tiny, and `--arch lstm` and `lstm-attention` of the same size, all with
the same vocabulary, the same batches in the same order (2,048 tokens at most), and as many updates. Each learns at two
rates (`RATES`; the first alone with --rates 1), and the one with the better BLEU on the development set is shown; with
more seeds, the others learn at that rate. BLEU by length is that of all three test sets together, with beam 5; lengths
are those of the sources, in tokens. A run that was stopped goes on when the same command is given again. The picture
stands beside the results.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import data_folder
from finetune_common import Found, Results, Shown, parser, said, table
from multi30k import TESTS, lines_of
from unmask.bundle import load
from unmask.data.parallel import Pair
from unmask.metrics.translation import LENGTH_EDGES, by_source_length, paired_bleu, score_translations
from unmask.models.bert import num_parameters
from unmask.tasks.runs import MODEL
from unmask.tasks.translate_evaluate import evaluate_translations
from unmask.tasks.translate_settings import Texts, TranslateSettings, read_translate_settings
from unmask.tasks.translate_train import train_translation
from unmask.train.record import training_seconds
from unmask.train.seeds import summary

#: What is tried for each. A Transformer of this size bears more than an LSTM.
RATES = {"transformer": (2e-3, 1e-3), "lstm": (2e-3, 4e-3), "lstm-attention": (2e-3, 4e-3)}
NAMES = {"transformer": "Transformer", "lstm": "LSTM", "lstm-attention": "LSTM with attention"}
QUICK = {"pairs": 300, "test": 24}


def settings_of(arch: str, rate: float, seed: int, options: argparse.Namespace) -> TranslateSettings:
    """The shipped config, shortened: it warms up for as many updates as there are here."""
    updates = options.updates
    every = max(1, updates // 8)
    changes = [
        f"arch={arch}",
        f"seed={seed}",
        f"train.seed={seed}",
        f"batch_tokens={options.batch_tokens}",
        "train.accumulate=1",
        "decode.length_penalty=1.0",
        f"train.updates={updates}",
        f"train.optimizer.learning_rate={rate}",
        f"train.schedule.warmup={max(1, updates // 5)}",
        f"train.evaluate_every={every}",
        f"train.save_every={max(1, every // 2)}",
    ]
    return read_translate_settings("multi30k-tiny", [*changes, *(["vocabulary.size=500"] if options.quick else [])])


def texts_of(options: argparse.Namespace) -> Texts:
    folder = data_folder() / "multi30k_en-de"
    if options.quick:
        parts = {"train": QUICK["pairs"], "val": QUICK["test"]}
        folder = options.runs / "few"
        folder.mkdir(parents=True, exist_ok=True)
        for part, count in parts.items():
            for language in ("en", "de"):
                lines = lines_of(f"{part}.{language}")[:count]
                (folder / f"{part}.{language}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    both = [tuple(str(folder / f"{part}.{language}") for language in ("en", "de")) for part in ("train", "val")]
    return Texts(train=both[0], dev=both[1])


def tests(quick: bool) -> list[Pair]:
    """The pairs of all test sets, test2016 first."""
    pairs = [
        Pair(source, target, line)
        for name in TESTS.values()
        for line, (source, target) in enumerate(zip(lines_of(f"{name}.en"), lines_of(f"{name}.de"), strict=True), 1)
    ]
    return pairs[: QUICK["test"]] if quick else pairs


def run_name(arch: str, rate: float, seed: int) -> str:
    return f"{arch} rate {rate:g} seed {seed}"


def train(arch: str, rate: float, seed: int, options: argparse.Namespace) -> Found:
    """A run, from nothing or from where it was stopped; what its best model did on the development set."""
    run = options.runs / run_name(arch, rate, seed).replace(" ", "-")
    dev = train_translation(settings_of(arch, rate, seed, options), texts_of(options), run, Shown(), resume=True)
    model: Any = load(run / MODEL).model
    return {"dev": dev, "parameters": num_parameters(model), "train_seconds": round(training_seconds(run), 1)}


def measure(arch: str, rate: float, seed: int, options: argparse.Namespace) -> Found:
    """The translations of all test sets, and their scores."""
    translator = load(options.runs / run_name(arch, rate, seed).replace(" ", "-") / MODEL).translator
    pairs = tests(options.quick)
    report = evaluate_translations(translator, pairs, translator.usage.decode.replace(beam=5))
    first = len(lines_of(f"{TESTS['test2016']}.de"))
    references = [pair.target for pair in pairs]
    return {
        "all": report.as_json(),
        "test2016": score_translations(report.translations[:first], references[:first]).as_json(),
        "lengths": [len(one) for one in translator.languages.encode_sources([pair.source for pair in pairs])],
        "translations": report.translations,
    }


def contest(results: Results, options: argparse.Namespace) -> dict[str, list[Found]]:
    """For each architecture the runs at its better rate, one for each seed."""
    chosen: dict[str, list[Found]] = {}
    for arch, rates in RATES.items():

        def job(rate: float, seed: int, arch: str = arch) -> Found:
            key = f"{run_name(arch, rate, seed)}, {options.updates} updates of {options.batch_tokens}"
            return results.get(f"train {key}", lambda: train(arch, rate, seed, options)) | {"rate": rate}

        tried = [job(rate, 1) for rate in rates[: options.rates]]
        best = max(tried, key=lambda one: one["dev"]["bleu"])
        rate = best["rate"]
        runs = [best, *(job(rate, seed) for seed in range(2, options.seeds + 1))]
        chosen[arch] = []
        for seed, run in enumerate(runs, 1):
            key = f"test {run_name(arch, rate, seed)}, {options.updates} updates of {options.batch_tokens}"
            found = results.get(key, lambda arch=arch, rate=rate, seed=seed: measure(arch, rate, seed, options))
            chosen[arch].append(run | found | {"tried": {one["rate"]: one["dev"]["bleu"] for one in tried}})
    return chosen


# What is shown.


def show_scores(chosen: dict[str, list[Found]], options: argparse.Namespace) -> None:
    rows: list[dict[str, object]] = []
    for arch, runs in chosen.items():
        tried = ", ".join(f"{rate:g}: {bleu:.2f}" for rate, bleu in runs[0]["tried"].items())
        rows.append(
            {
                "model": NAMES[arch],
                "parameters": f"{runs[0]['parameters']:,}",
                "dev BLEU at each rate": tried,
                "test2016": between([run["test2016"] for run in runs]),
                "all tests": between([run["all"] for run in runs]),
                "perplexity": f"{summary([run['all']['perplexity'] for run in runs]).mean:.2f}",
                "training (min)": f"{sum(run['train_seconds'] for run in runs) / len(runs) / 60:.1f}",
            }
        )
    title = f"Multi30k, {options.updates:,} updates of {options.batch_tokens:,} tokens at most, beam 5"
    table(f"{title}; BLEU (95 % interval), {options.seeds} seed(s)", rows, options)


def between(scores: Sequence[Found]) -> str:
    """BLEU with its interval: that of the sentences for one run, that of the mean for several."""
    mean = summary([one["bleu"] for one in scores])
    low, high = scores[0]["bleu_interval"]["low"], scores[0]["bleu_interval"]["high"]
    if mean.low is not None and mean.high is not None:
        low, high = mean.low, mean.high
    return f"{mean.mean:.2f} ({low:.2f} to {high:.2f})"


def show_lengths(chosen: dict[str, list[Found]], options: argparse.Namespace) -> None:
    """BLEU by the length of the source, of the first seed: its interval says how sure the sentences make it."""
    pairs = tests(options.quick)
    references, lengths = [pair.target for pair in pairs], chosen["transformer"][0]["lengths"]
    assert all(runs[0]["lengths"] == lengths for runs in chosen.values()), "the vocabularies are not the same"
    curves = {
        arch: by_source_length(lengths, runs[0]["translations"], references, LENGTH_EDGES)
        for arch, runs in chosen.items()
    }
    rows: list[dict[str, object]] = []
    for place, bucket in enumerate(curves["transformer"]):
        row: dict[str, object] = {"source tokens": bucket.name, "sentences": bucket.n}
        for arch, buckets in curves.items():
            scores = buckets[place].scores
            row[NAMES[arch]] = "–" if scores is None else between([scores.as_json()])
        rows.append(row)
    table("BLEU by the length of the source (95 % interval)", rows, options)
    for arch in ("lstm-attention", "lstm"):
        names = (NAMES["transformer"], NAMES[arch])
        both = chosen["transformer"][0]["translations"], chosen[arch][0]["translations"]
        said(paired_bleu(*both, references, resamples=1000, names=names).verdict)
    if options.out is not None:
        said(f"drawn: {draw(curves, options.out.with_suffix('.png'))}")


def draw(curves: dict[str, list[Any]], path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for shift, (arch, buckets) in enumerate(curves.items()):
        there = [(place, one) for place, one in enumerate(buckets) if one.scores is not None]
        middle = [one.scores.bleu for _, one in there]
        low = [max(0.0, one.scores.bleu - one.scores.bleu_interval.low) for _, one in there]
        high = [max(0.0, one.scores.bleu_interval.high - one.scores.bleu) for _, one in there]
        places = [place + 0.08 * (shift - 1) for place, _ in there]  # side by side, so that no bar hides another
        axes.errorbar(places, middle, yerr=[low, high], marker="o", capsize=3, label=NAMES[arch])
    buckets = curves["transformer"]
    axes.set_xticks(range(len(buckets)), [f"{one.name}\n({one.n})" for one in buckets])
    axes.set_xlabel("tokens of the source (sentences)")
    axes.set_ylabel("BLEU, with its 95 % interval")
    axes.set_title("Multi30k, as many parameters and updates each")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def main() -> None:
    options = parser(__doc__, seeds=1)
    options.add_argument("--runs", type=Path, required=True, help="where the run folders are, or will be")
    options.add_argument("--updates", type=int, default=2000)
    options.add_argument("--batch-tokens", type=int, default=2048)
    options.add_argument("--rates", type=int, default=2, help="how many learning rates are tried")
    given = options.parse_args()
    if given.quick:
        given.seeds, given.updates, given.batch_tokens, given.runs = 1, 4, 512, given.runs / "quick"
    results = Results(given)
    chosen = contest(results, given)
    show_scores(chosen, given)
    show_lengths(chosen, given)


if __name__ == "__main__":
    main()
