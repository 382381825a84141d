"""`unmask quickstart`: a real pre-trained BERT learns a task, is measured, and is put to use, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from unmask.cli import console
from unmask.errors import UserError

SENTENCES = (
    "A quiet film that stays with you for days.",
    "Two hours of my life that I will never get back.",
    "I expected little and was wonderfully surprised.",
    "The actors do their best, but nothing can save this script.",
    "Not bad at all.",
)

#: What gives the best score on the development set in the least time; see docs/quickstart.md.
SETTINGS: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 32,
    "pooling": "mean",
    "train": {"save_every": 50, "keep": 1, "optimizer": {"learning_rate": 1e-4}},
}
QUICK = {"epochs": 1, "examples": 96}


def quickstart(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for what is made.")] = Path("out"),
    lang: Annotated[
        Literal["en", "zh"], typer.Option(help="en: fine-tune a BERT. zh: pre-train one for Chinese, from nothing.")
    ] = "en",
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="The BERT to fine-tune (en); minilm.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", metavar="", help="Start anew, whatever is there.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="Only show the way, with few examples: the model will be bad.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads; all cores if not given.")] = None,
) -> None:
    """Fetch a real BERT and film reviews, fine-tune, measure, predict: minutes. Stopped? The same command goes on."""
    if lang == "zh" and model is not None:
        raise UserError("--model belongs to --lang en; with --lang zh a model is made from nothing")
    folder = out / f"quickstart{'-zh' if lang == 'zh' else ''}{'-quick' if quick else ''}"
    console.new_folder_path(folder, overwrite=True)
    from unmask.cli.quickstart_steps import open_place

    open_place(folder, {"lang": lang, "model": model, "quick": quick}, again=again)
    console.use_threads(threads)
    if lang == "zh":
        from unmask.cli.quickstart_zh import quickstart_zh

        quickstart_zh(folder, quick=quick)
    else:
        _english(folder, model or "minilm", quick=quick)


def _english(folder: Path, model: str, *, quick: bool) -> None:
    from unmask.cli.quickstart_steps import fetched, finetuned, labelled, tested
    from unmask.tasks.finetune import REPORT
    from unmask.tasks.finetune_settings import ClassifyRun, Files

    run, test = folder / "run", folder / "test"
    console.say(f"1. Fetching {model} and movie-reviews (once; afterwards it works offline)")
    fetched(model)
    files = labelled("movie-reviews", folder, int(QUICK["examples"]) if quick else None)

    if (run / REPORT).is_file():
        console.say(f"2. Fine-tuning was done by an earlier call, and lies in {run} (--again starts anew)")
    else:
        console.say(f"2. Fine-tuning {model} to tell praise from blame; Ctrl-C stops it, the same command goes on")
    settings = ClassifyRun.parse(SETTINGS | ({"epochs": QUICK["epochs"]} if quick else {}), "quickstart")
    told = Files(model=model, train=str(files["train"]), dev=str(files["dev"]))
    trained = finetuned(settings, told, run, "dev, update")

    console.say("3. Measuring on sentences that it has never seen")
    found = tested(trained, files["test"], test)
    _show(found, trained, test)
    _look_inside(trained, folder)
    console.say(f"Next: unmask predict {trained} --text 'your sentence'   ·   unmask predict {trained} FILE")
    console.say("      unmask train classify --train yours.csv --out runs/yours   ·   unmask quickstart --lang zh")


def _show(found: Any, trained: Path, test: Path) -> None:
    """Scores, where the report is, and what the model says of a few sentences."""
    from unmask.cli.finetune_job import score_rows
    from unmask.cli.quickstart_steps import predictions
    from unmask.tasks.finetune import REPORT

    console.print_table(["score on the test set", "value", "95 % interval", "examples"], score_rows(found.scores))
    console.result(f"{trained}  the model, in Hugging Face's layout, with its card")
    console.result(f"{test / REPORT}  mistakes, calibration, confusions: open it in a browser")
    console.say("4. Asking it about sentences of today")
    console.print_table(["sentence", "it says", "probability"], predictions(trained, SENTENCES))


def _look_inside(trained: Path, folder: Path) -> None:
    from unmask.bundle import load
    from unmask.explain.attention import attention_map, write_html

    console.say("5. Looking inside: who looks at whom")
    picture = folder / "attention.html"
    write_html(attention_map(load(trained), SENTENCES[3]), picture, f"Attention: {SENTENCES[3]}")
    console.result(f"{picture}  every layer and head, in your browser")
