"""`unmask lab`: the questions, their evidence, and how to run it again."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli import console
from unmask.cli.models import Json
from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.lab.run import Answer
    from unmask.lab.words import Language

lab = typer.Typer(help="Why is each part as it is? Questions answered by evidence.", no_args_is_help=True)

Results = Annotated[
    Path | None, typer.Option("--results", help="Folder with results; those that come with Unmask if not given.")
]
Lang = Annotated[str | None, typer.Option("--lang", help="en or zh; of the text or the system if not given.")]


@lab.command("list")
def list_questions(results: Results = None, lang: Lang = None, json: Json = False) -> None:
    """All questions, with what the evidence says of each claim."""
    from unmask.lab.catalogue import entries

    language = _language(lang)
    answers = [_answer(entry, results) for entry in entries()]
    if json:
        console.print_json([_short(one) for one in answers])
        return
    rows = []
    for one in answers:
        missing = ", ".join(f"{part.kind} {part.verdict.text.said(language)}" for part in one.missing)
        verdict = one.verdict.text.said(language) + (f" ({missing})" if missing and len(missing) < 60 else "")
        rows.append((one.entry.id, one.entry.question.said(language), verdict))
    console.print_table(
        ["id", "question" if language == "en" else "问题", "verdict" if language == "en" else "结论"], rows
    )


@lab.command("ask")
def ask(
    question: Annotated[list[str], typer.Argument(help="A question in your own words, English or Chinese.")],
    results: Results = None,
    lang: Lang = None,
    json: Json = False,
) -> None:
    """Find the question you mean, and show its answer, its evidence, and the command that runs it again."""
    from unmask.lab.ask import ask as find

    text = " ".join(question)
    found = find(text)
    if not found:
        raise UserError(f"nothing in the lab fits {console.shorten(text)!r}; `unmask lab list` shows all questions")
    answer = _answer(found[0].entry, results)
    if json:
        others = [{"id": one.entry.id, "score": round(one.score, 3)} for one in found]
        console.print_json({**_short(answer), "found": others})
        return
    language = _language(lang, text)
    _show(answer, language)
    if len(found) > 1:
        console.result("")
        console.result("Did you mean another?" if language == "en" else "也许你想问：")
        for one in found[1:]:
            console.result(f"  {one.entry.id}: {one.entry.question.said(language)}")


@lab.command("run")
def run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Questions; `lab list` shows them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every question.")] = False,
    kind: Annotated[list[str] | None, typer.Option(help="Only this evidence: exact, measure or ablation.")] = None,
    seeds: Annotated[int, typer.Option(min=2, help="Seeds of each ablation.")] = 3,
    size: Annotated[str, typer.Option(help="small (a look), default, or large.")] = "default",
    budget: Annotated[float | None, typer.Option(min=0.0, help="Begin nothing after so many minutes.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for results; what is there already is kept.")] = Path(
        "runs/lab"
    ),
    again: Annotated[bool, typer.Option("--again", help="Run what is there already, too.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads, or processes of ablations.")] = None,
) -> None:
    """Run the evidence again; stopped, the same command goes on where it was."""
    import torch

    from unmask.lab.catalogue import entries, entry_of
    from unmask.lab.entry import Plan
    from unmask.lab.run import Runner, answer_of

    console.use_threads(threads)
    if every == bool(names):
        raise UserError("name questions to run, or add --all; `unmask lab list` shows them")
    if size not in ("small", "default", "large"):
        raise UserError(f"--size is small, default or large, given {size!r}")
    wrong = [one for one in kind or () if one not in ("exact", "measure", "ablation")]
    if wrong:
        raise UserError(f"--kind is exact, measure or ablation, given {wrong[0]!r}")
    console.new_folder_path(out, overwrite=True)
    chosen = list(entries()) if every else [entry_of(name) for name in names or ()]
    plan: Any = Plan(size=size, seeds=seeds)  # type: ignore[arg-type]
    runner = Runner(out, plan, kind or (), again=again, workers=torch.get_num_threads())  # type: ignore[arg-type]
    jobs = [job for entry in chosen for job in runner.jobs(entry)]
    until = float("inf") if budget is None else time.monotonic() + 60 * budget
    with console.counting("trials", len(jobs), shown=bool(jobs)) as count:
        done = runner.run(jobs, lambda job: count(1), until)
    for entry in chosen:
        answer = answer_of(entry, out, plan)
        console.result(
            f"{entry.id}: {answer.verdict}" + "".join(f" · {part.name}: {part.verdict}" for part in answer.parts)
        )
    if done < len(jobs):
        console.say(f"{len(jobs) - done} of {len(jobs)} trials are left; the same command goes on with them")
    console.say(f"Next: unmask lab report --results {out} --out lab.html")


@lab.command("report")
def report(
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("lab.html"),
    results: Results = None,
    docs: Annotated[Path | None, typer.Option(help="Also write pages and pictures for documentation here.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a page that exists.")] = False,
) -> None:
    """One page with every question, its evidence and pictures, in both languages."""
    from unmask.lab.catalogue import entries
    from unmask.lab.page import write_docs, write_page

    path = console.new_path(out, overwrite=overwrite)
    answers = [_answer(entry, results) for entry in entries()]
    write_page(answers, path)
    if docs is not None:
        write_docs(answers, docs)
    console.result(str(path))


def _answer(entry: Any, results: Path | None) -> Answer:
    from unmask.lab.run import answer_of
    from unmask.lab.store import shipped_folder

    if results is not None and not results.is_dir():
        raise UserError(f"{results}: no such folder of results; `unmask lab run ID --out {results}` makes one")
    return answer_of(entry, results or shipped_folder())


def _short(answer: Answer) -> dict[str, Any]:
    return {
        "id": answer.entry.id,
        "question": answer.entry.question._asdict(),
        "verdict": answer.verdict.value,
        "parts": [
            {
                "name": part.name,
                "kind": part.kind,
                "verdict": part.verdict.value,
                "says": None if part.conclusion is None else part.conclusion.says._asdict(),
                "trials": len(part.trials),
            }
            for part in answer.parts
        ],
        "run": f"unmask lab run {answer.entry.id}",
    }


def _show(answer: Answer, language: Language) -> None:
    entry, english = answer.entry, language == "en"

    def told(title: str, text: str) -> None:
        console.result("")
        console.result(title)
        for line in _wrapped(text):
            console.result(f"  {line}")

    console.result(f"{entry.question.said(language)}  [{entry.id}]")
    told("What is said" if english else "常见的说法", f"{entry.claim.said(language)} ({', '.join(entry.sources)})")
    told("Why" if english else "原理", entry.why.said(language))
    told("Verdict" if english else "结论", answer.verdict.text.said(language))
    for part in answer.parts:
        method = next(one for one in entry.parts if one.name == part.name)
        title = f"{'Evidence' if english else '证据'}: {part.name} ({part.kind}) – {part.verdict.text.said(language)}"
        told(title, method.method.said(language) if part.conclusion is None else part.conclusion.says.said(language))
    told("Limits" if english else "局限", entry.limits.said(language))
    console.result("")
    console.result(("Run it again: " if english else "重新运行：") + f"unmask lab run {entry.id}")


def _wrapped(text: str, width: int = 96) -> list[str]:
    """Lines of a text; Chinese has no spaces to break at and takes twice the room."""
    lines: list[str] = []
    for paragraph in " ".join(text.split()).split("\n"):
        if any("\u4e00" <= character <= "\u9fff" for character in paragraph):
            lines += [paragraph[start : start + width // 2] for start in range(0, len(paragraph), width // 2)]
        else:
            lines += textwrap.wrap(paragraph, width)
    return lines


def _language(given: str | None, text: str = "") -> Language:
    import os

    if given is not None:
        if given not in ("en", "zh"):
            raise UserError(f"--lang is en or zh, given {given!r}")
        return "zh" if given == "zh" else "en"
    if text:
        return "zh" if any("\u4e00" <= character <= "\u9fff" for character in text) else "en"
    said = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    return "zh" if said.startswith("zh") else "en"
