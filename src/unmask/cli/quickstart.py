"""`unmask quickstart`: a real pre-trained BERT at work, in one command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli import console
from unmask.cli.models import ModelName

SENTENCES = (
    "A man is playing a guitar on a crowded street.",
    "Someone performs music outdoors while people pass by.",
    "The central bank raised interest rates for the third time this year.",
    "Borrowing money has become more expensive, economists say.",
    "Our cat sleeps on the warm keyboard whenever I try to work.",
    "The kitten took a nap on my laptop.",
    "Heavy rain flooded the streets of the old town overnight.",
    "After the storm, water stood knee-deep in the historic centre.",
    "She solved the equation on the blackboard in under a minute.",
    "The mathematician found the answer almost at once.",
)


def quickstart(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the pictures.")] = Path("out"),
    model: ModelName = "minilm",
) -> None:
    """Fetch a real pre-trained BERT and show it at work: vectors, nearest sentences, attention."""
    console.new_folder_path(out, overwrite=True)
    from unmask.bundle import load
    from unmask.explain.attention import attention_map, write_html, write_png
    from unmask.models.bert import num_parameters
    from unmask.storage import disk_trouble

    console.say(f"1. Fetching {model} (once; afterwards it works offline)")
    with console.download_bar() as report:
        bundle = load(model, progress=report)
    settings = bundle.model.settings
    console.say(f"   {bundle.report}; {settings.model}, {num_parameters(bundle.model):,} parameters")

    console.say(f"2. Turning {len(SENTENCES)} sentences into vectors of {settings.hidden_size} numbers")
    started = time.perf_counter()
    vectors = bundle.embed(SENTENCES, normalise=True)
    console.say(f"   done in {1000 * (time.perf_counter() - started):.0f} ms")
    likeness = vectors @ vectors.T
    rows = []
    for number, sentence in enumerate(SENTENCES):
        order = [other for other in likeness[number].argsort()[::-1] if other != number]
        rows.append((sentence, SENTENCES[order[0]], f"{likeness[number, order[0]]:.2f}"))
    console.print_table(["sentence", "its nearest neighbour", "cosine"], rows)

    console.say("3. Looking inside: who looks at whom")
    with disk_trouble(out):
        out.mkdir(parents=True, exist_ok=True)
    text = SENTENCES[4]
    found = attention_map(bundle, text)
    write_html(found, out / "attention.html", f"Attention: {text}")
    write_png(found, out / "attention.png", layer=0, head=0)
    console.result(f"{out / 'attention.html'}  every layer and head, in your browser")
    console.result(f"{out / 'attention.png'}   one head as a picture")
    console.say(
        "Next: unmask info minilm   ·   unmask tokenize 'your text'   ·   unmask embed --file yours.txt --out yours.npy"
    )
