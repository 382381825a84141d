"""`unmask doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from unmask.cli import console
from unmask.cli.models import Json, Overwrite
from unmask.cli.text import Encoding
from unmask.errors import UserError, place

_SIGNS = {"error": "[bold red]error  [/]", "warning": "[yellow]warning[/]", "note": "[cyan]note   [/]"}


Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE",
        help="Labelled files: .csv .tsv .txt .jsonl .json (also .gz), .parquet, CoNLL columns, hub:NAME:SPLIT.",
    ),
]
Dev = Annotated[str | None, typer.Option(metavar="FILE", help="The dev set, to compare the files with.")]
TaskName = Annotated[str, typer.Option(metavar="TASK", help="auto, classify, tag or qa.")]
ColumnNames = Annotated[
    str | None, typer.Option("--columns", metavar="NAMES", help="Where they are not clear: text=…,pair=…,label=…")
]
ProblemName = Annotated[str, typer.Option(metavar="KIND", help="auto, single, multi or regression.")]
Separator = Annotated[str | None, typer.Option(metavar="MARK", help="What stands between several labels of a text.")]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", metavar="", help="Whether the first line names columns; else recognised."),
]
TokenizerName = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="NAME", help="Count lengths in the tokens of this model or tokenizer."),
]


def doctor(
    files: Files,
    dev: Dev = None,
    task: TaskName = "auto",
    columns: ColumnNames = None,
    problem: ProblemName = "auto",
    separator: Separator = None,
    header: Header = None,
    model: TokenizerName = None,
    max_length: Annotated[int, typer.Option(min=1, metavar="N", help="How long a text may be.")] = 512,
    fix: Annotated[Path | None, typer.Option(metavar="OUT", help="Write a cleaned copy to this file.")] = None,
    encoding: Encoding = "utf-8",
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Look at labelled files before training: what is wrong, on which lines, and what to do about it."""
    from unmask.data.columns import parse_columns
    from unmask.data.doctor import DoctorSettings, examine

    given = {
        "task": task,
        "columns": None if columns is None else parse_columns(columns),
        "problem": problem,
        "separator": separator,
        "encoding": encoding,
        "header": header,
        "max_length": max_length,
    }
    settings = DoctorSettings.parse(given, "doctor")
    if fix is not None and len(files) != 1:
        raise UserError(f"--fix cleans one file at a time, given {len(files)}")
    tokenizer, guess = (None, None) if model is None else _model(model)
    report = examine(files, dev, settings, tokenizer=tokenizer, estimate=guess)
    fixed = None if fix is None else _fixed(files[0], fix, settings, dev, overwrite)
    if json:
        console.print_json(report.to_dict() | ({} if fixed is None else {"fixed": fixed}))
    else:
        _show(report, fixed)
    if report.has_errors:
        raise typer.Exit(2)


def _show(report: Any, fixed: dict[str, Any] | None) -> None:
    for name, facts in report.facts.items():
        _show_facts(name, facts)
    _show_findings(report)
    if fixed is not None:
        _show_fixed(fixed)


def _model(model: str) -> tuple[Any, Any]:
    """The tokenizer of a model, and a way to guess how long three epochs with it take; None for a tokenizer alone."""
    from unmask.models.fetch import fetch
    from unmask.text import Tokenizer

    with console.download_bar() as progress:
        folder = fetch(model, progress=progress)
    tokenizer = Tokenizer.from_folder(folder)
    if not (folder / "config.json").is_file():
        return tokenizer, None

    def guess(facts: Any) -> Any:
        from unmask.models.folder import read_settings
        from unmask.models.settings import BertSettings
        from unmask.tasks.estimate import estimate

        settings = read_settings(folder)
        if not isinstance(settings, BertSettings):
            return {}
        found = facts["lengths"]
        mean = min(found["mean"], settings.max_length)
        tokens = 3 * mean * facts["examples"]
        return estimate(settings, tokens, min(found["max"], settings.max_length), 32 * mean).as_rows()

    return tokenizer, guess


def _fixed(file: str, out: Path, settings: Any, dev: str | None, overwrite: bool) -> dict[str, Any]:
    from unmask.data.doctor import fix

    done = fix(file, out, settings, dev=dev, overwrite=overwrite)
    return {"file": done.out, "done": done.done, "kept": done.kept}


def _show_facts(name: str, facts: Any) -> None:
    """What there is: the sentences of the reader, labels, lengths."""
    if name == "estimate":
        console.print_table(["", "estimate"], list(facts.items()))
        return
    rows: list[tuple[str, object]] = [("task", facts["task"]), ("examples", facts["examples"])]
    if facts["refused"]:
        rows.append(("rows that are refused", facts["refused"]))
    rows += [("recognised" if number == 0 else "", said) for number, said in enumerate(facts["said"])]
    if "numbers" in facts:
        numbers = facts["numbers"]
        rows.append(("numbers", f"{numbers['min']} to {numbers['max']}, mean {numbers['mean']}"))
    if "lengths" in facts:
        found = facts["lengths"]
        spread = f"median {found['median']:,}, 95 % up to {found['p95']:,}, longest {found['max']:,}"
        rows.append((f"{found['unit']} a text", spread))
        most = max(found["histogram"].values())
        for bound, count in found["histogram"].items():
            bar = "█" * max(round(30 * count / most), 1 if count else 0)
            rows.append((f"  {bound}", f"{bar} {count:,}".strip()))
    console.print_table(["", f"{name}: {', '.join(facts['files'])}"], rows)


def _show_findings(report: Any) -> None:
    """The findings file by file, the worst first."""
    screen = console.out()
    if not report.findings:
        console.result("nothing to complain about")
        return
    for file in dict.fromkeys(found.file for found in report.findings):
        screen.print(f"[bold]{escape(console.visible(file))}[/]", soft_wrap=True)
        for found in report.findings:
            if found.file == file:
                _show_finding(screen, found)
    counts = {severity: sum(found.severity == severity for found in report.findings) for severity in _SIGNS}
    words = [f"{number} {name if number == 1 else name + 's'}" for name, number in counts.items() if number]
    console.result(", ".join(words))


def _show_finding(screen: Any, found: Any) -> None:
    screen.print(f"  {_SIGNS[found.severity]} {escape(console.visible(found.message))}", soft_wrap=True)
    if len(found.lines) > 1:
        more = f" and {found.count - len(found.lines):,} more" if found.count > len(found.lines) else ""
        what = place(found.lines[0]).split()[0] + "s"
        screen.print(f"          {what} {', '.join(map(str, found.lines))}{more}", style="dim", soft_wrap=True)


def _show_fixed(fixed: dict[str, Any]) -> None:
    for what, count in fixed["done"].items():
        console.result(f"{what}: {count:,}")
    if not fixed["done"]:
        console.result("there was nothing to mend")
    console.result(f"{fixed['file']}: {fixed['kept']:,} examples")
