"""`unmask predict`, `unmask evaluate` and `unmask compare`."""

from __future__ import annotations

import contextlib
import json as json_format
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import console
from unmask.cli.models import EngineName, Json, Overwrite
from unmask.cli.text import Encoding
from unmask.cli.translate import LengthPenalty
from unmask.errors import UserError

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A fine-tuned model: folder, run folder, or Hub id.")]
ColumnNames = Annotated[str | None, typer.Option("--columns", metavar="NAMES", help="text=…,pair=…,label=…")]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads; all cores if not given.")]


def predict(
    model: Model,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="Texts: .txt (one a line), - for stdin, a table, SQuAD JSON."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", "--question", metavar="TEXT", help="A text, or a question; repeat.")
    ] = None,
    pair: Annotated[
        list[str] | None, typer.Option("--pair", "--context", metavar="TEXT", help="Its second text; repeat.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write JSON lines here.")] = None,
    columns: ColumnNames = None,
    encoding: Encoding = "utf-8",
    threads: Threads = None,
    engine: EngineName = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Say what a fine-tuned model says of your texts. Nothing is cut in silence."""
    if out is not None:
        console.new_path(out, overwrite=overwrite)
    _check_given(file, text, pair, columns)
    console.use_threads(threads)
    from unmask.tasks.predict import record

    predictor = _predictor(model, engine)
    examples: Iterator[Any] = (
        predictor.examples(text, pair) if text is not None else predictor.read(str(file), columns, encoding)
    )
    seen = _Seen(predictor.model.settings.max_length)
    total = (
        len(text) if text is not None else console.num_lines(file) if str(file).endswith((".txt", ".jsonl")) else None
    )
    as_lines = json or out is not None or not sys.stdout.isatty()
    with _writer(out, as_lines) as write, console.counting("texts", total, shown=out is not None) as count:
        kept: deque[Any] = deque()
        for said in predictor.run(_kept(examples, kept)):
            example = kept.popleft()
            write(record(example, said, predictor.usage))
            seen.add(said)
            count(seen.texts)
    for remark in seen.remarks():
        console.say(remark)
    if out is not None:
        console.say(f"{out}: {seen.texts:,} predictions")


def _check_given(file: str | None, text: list[str] | None, pair: list[str] | None, columns: str | None) -> None:
    if (file is None) == (text is None):
        raise UserError("give a FILE (- for standard input), or texts with --text")
    if text is None and pair is not None:
        raise UserError("--pair goes with --text; in a FILE a pair is a column of its own")
    if text is not None and columns is not None:
        raise UserError("--columns goes with a FILE, and --text has none")


class _Seen:
    """How much of the texts was read."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.texts = self.long = self.cut = 0
        self.least = 1.0

    def add(self, said: Any) -> None:
        self.texts += 1
        self.long += said.tokens > self.limit or said.windows > 1
        self.cut += said.coverage < 1
        self.least = min(self.least, said.coverage)

    def remarks(self) -> Iterator[str]:
        if not self.texts:
            yield console.NO_TEXTS
        if self.cut:
            from unmask.longtext.report import share_read

            yield (
                f"{self.cut:,} of {self.texts:,} texts were too long to be read whole: each prediction's coverage says "
                f"how much was (at least {share_read(self.least)}); a model trained with --long-text windows reads "
                "everything"
            )
        elif self.long:
            yield f"{self.long:,} of {self.texts:,} texts were read in windows; nothing was left out"


def _kept(examples: Iterator[Any], kept: deque[Any]) -> Iterator[Any]:
    for example in examples:
        kept.append(example)
        yield example


@contextlib.contextmanager
def _writer(out: Path | None, as_lines: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Where predictions go: JSON lines in a file that appears complete, on stdout, or a table of what fits on it."""
    if out is not None:
        from unmask.storage import replacing

        with replacing(out) as draft, draft.open("w", encoding="utf-8", errors="backslashreplace") as lines:
            yield lambda found: _line(lines, found)
        return
    if as_lines:
        yield console.print_json
        return
    rows: list[tuple[str, str, str]] = []
    yield lambda found: rows.append(_row(found))
    console.print_table(["text", "said", "probability"], rows)


def _line(lines: Any, found: dict[str, Any]) -> None:
    lines.write(json_format.dumps(found, ensure_ascii=False) + "\n")


def _row(found: dict[str, Any]) -> tuple[str, str, str]:
    shown = console.shorten(found.get("text", found.get("question", "")))
    if "answer" in found:
        return shown, found["answer"] or "(the text does not tell)", f"{found['probability']:.3f}"
    if "entities" in found:
        said = ", ".join(f"{one['type']}: {one['text']}" for one in found["entities"])
        return shown, said or "(nothing)", " ".join(f"{one['probability']:.2f}" for one in found["entities"])
    if "words" in found:
        return shown, " ".join(f"{one['text']}/{one['tag']}" for one in found["words"]), ""
    label = found["label"]
    if isinstance(label, float):
        return shown, f"{label:.3f}", ""
    labels = label if isinstance(label, list) else [label]
    return shown, ", ".join(labels) or "(none)", " ".join(f"{found['probabilities'][one]:.3f}" for one in labels)


def evaluate(
    model: Model,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="A labelled file; for a translator also two, line by line.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for a report and all figures.")
    ] = None,
    columns: ColumnNames = None,
    encoding: Encoding = "utf-8",
    beam: Annotated[int | None, typer.Option(min=1, metavar="N", help="Of a translator: beginnings at once.")] = None,
    length_penalty: LengthPenalty = None,
    swap: Annotated[bool, typer.Option("--swap", metavar="", help="Of a translator: exchange the sides.")] = False,
    tokenize: Annotated[
        str, typer.Option(metavar="HOW", help="Of BLEU: auto, 13a, zh, char, intl, or none for tokenised text.")
    ] = "auto",
    lowercase: Annotated[bool, typer.Option("--lowercase", metavar="", help="BLEU that ignores letter case.")] = False,
    threads: Threads = None,
    engine: EngineName = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Measure a model on a labelled file, or a translator on pairs: scores with 95 % intervals."""
    from unmask.cli.evaluate_translation import evaluate_translator
    from unmask.cli.translate import is_translator

    if out is not None:
        console.new_folder_path(out, overwrite=overwrite)
    console.use_threads(threads)
    if is_translator(model):
        given = {"swap": swap, "tokenize": tokenize, "lowercase": lowercase}
        search = {"beam": beam, "length_penalty": length_penalty}
        about = given | {"columns": columns, "encoding": encoding, "engine": engine, "search": search}
        evaluate_translator(model, files, about, out, overwrite=overwrite, json=json)
        return
    if beam is not None or length_penalty is not None or swap or lowercase or tokenize != "auto":
        names = "--beam, --length-penalty, --swap, --tokenize and --lowercase"
        raise UserError(f"{names} are for translators, and {model} is none")
    if len(files) != 1:
        raise UserError(f"give one labelled file; {len(files)} were given")
    file = files[0]
    predictor = _predictor(model, engine)
    found = predictor.evaluate(file, columns, encoding)
    if out is not None:
        from unmask.tasks.measured import evaluation_of, write_evaluated

        write_evaluated(evaluation_of(found, predictor.model, model, file), out, overwrite=overwrite)
    _show(found, json)
    if out is not None and not json:
        console.result(f"{out / 'report.html'}  the report")


def _show(found: Any, json: bool) -> None:
    if json:
        table = [row._asdict() for row in found.table]
        scores = {name: score._asdict() for name, score in found.scores.items()}
        console.print_json({"scores": scores, "labels": table})
        return
    from unmask.cli.finetune_job import score_rows

    console.print_table(["score", "value", "95 % interval", "examples"], score_rows(found.scores))
    if found.table:
        rows = [
            (one.label, *(f"{x:.4f}" for x in (one.precision, one.recall, one.f1)), one.support) for one in found.table
        ]
        console.print_table(["label", "precision", "recall", "f1", "in the file"], rows)


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A model, or a run folder.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    data: Annotated[
        str | None, typer.Option(metavar="FILE", help="Measure both on this file; else what their runs measured.")
    ] = None,
    columns: ColumnNames = None,
    encoding: Encoding = "utf-8",
    json: Json = False,
) -> None:
    """Say by a paired test whether two models differ on the same examples."""
    from unmask.tasks.compare import compare as compared
    from unmask.tasks.measured import stored_evaluation

    if data is None:
        sides: list[Any] = [stored_evaluation(Path(name)) for name in (first, second)]
    else:
        sides = [_predictor(name).evaluate(data, columns, encoding) for name in (first, second)]
    metric, found = compared(sides[0], sides[1], (first, second))
    scores = [next(iter(side.scores.values())).value for side in sides]
    if json:
        console.print_json({"metric": metric, "n": len(sides[0].outcomes), **found.as_json(), "verdict": found.verdict})
        return
    console.print_table(
        ["model", next(iter(sides[0].scores))],
        [(name, f"{score:.4f}") for name, score in zip((first, second), scores, strict=True)],
    )
    console.result(found.verdict)


def load_named(name: str, engine: str = "auto") -> Any:
    """The bundle of a name: a run folder, a folder, a short name, or a Hub id."""
    from unmask.tasks.runs import model_folder

    folder = model_folder(name)
    return console.load_bundle(str(folder) if folder.is_dir() else name, engine)


def _predictor(name: str, engine: str = "auto") -> Any:
    return load_named(name, engine).predictor
