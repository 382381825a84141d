"""The lab's report: one HTML file that needs nothing else, and pages and pictures for the documentation."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unmask.lab.draw import alone, draw
from unmask.lab.entry import Table, Verdict
from unmask.lab.pictures import Picture
from unmask.lab.run import Answer, Found
from unmask.lab.words import Language, Text
from unmask.storage import atomic_write

_KINDS = {"exact": Text("exact", "精确"), "measure": Text("measured", "测量"), "ablation": Text("ablation", "消融")}


def write_page(answers: Sequence[Answer], path: Path) -> None:
    """Write the report; whoever opens it sees all of it or the one before."""
    atomic_write(path, page_html(answers).encode())


def page_html(answers: Sequence[Answer]) -> str:
    """The report as a text."""
    style, script = _part("lab.css"), _part("lab.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _pages()
        .get_template("lab.html")
        .render(
            answers=answers,
            methods={(one.entry.id, part.name): part.method for one in answers for part in one.entry.parts},
            kinds=_KINDS,
            both=_both,
            draw=draw,
            made=made,
            counts=_counts(answers),
            version=metadata.version("unmask"),
            style=Markup(style),
            script=Markup(script),
            policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
        )
    )


def write_docs(answers: Sequence[Answer], folder: Path) -> None:
    """A page a language with the table of verdicts and every answer, and a picture file for each drawing."""
    for answer in answers:
        for place, shown in enumerate(_pictures(answer)):
            for language in ("en", "zh"):
                name = f"{answer.entry.id}-{place + 1}.{language}.svg"
                atomic_write(folder / name, alone(shown, language, _part("lab.css")).encode())
    atomic_write(folder / "README.md", _markdown(answers, "en").encode())
    atomic_write(folder / "README.zh.md", _markdown(answers, "zh").encode())


def made(part: Found) -> Text:
    """How the numbers of a part came about."""
    machines = sorted({kept.machine for kept in part.trials.values()})
    versions = ", ".join(sorted({kept.version for kept in part.trials.values()}))
    seconds, count = sum(kept.seconds for kept in part.trials.values()), len(part.trials)
    old = Text("", "") if part.current else Text(" The code has changed since.", "此后代码有改动。")
    return Text(
        f"{count} runs, {seconds:,.0f} s in all, by Unmask {versions} on {'; '.join(machines)}.{old.en}",
        f"共 {count} 次运行，{seconds:,.0f} 秒，Unmask {versions}，{'；'.join(machines)}。{old.zh}",
    )


def _markdown(answers: Sequence[Answer], language: Language) -> str:
    english = language == "en"
    other = "[中文](README.zh.md)" if english else "[English](README.md)"
    lines = [f"# {'The lab' if english else '实验室'}", "", other, "", _counts(answers).said(language), ""]
    lines += ["| question | verdict |" if english else "| 问题 | 结论 |", "|---|---|"]
    for answer in answers:
        question = answer.entry.question.said(language)
        lines.append(f"| [{question}](#{answer.entry.id}) | {answer.verdict.text.said(language)} |")
    for answer in answers:
        lines += ["", *_answer_lines(answer, language)]
    return "\n".join(lines) + "\n"


def _answer_lines(answer: Answer, language: Language) -> list[str]:
    entry, english = answer.entry, language == "en"
    lines = [f'<a id="{entry.id}"></a>', "", f"## {entry.question.said(language)}", ""]
    lines += [
        f"**{answer.verdict.text.said(language)}** · {entry.claim.said(language)} ({', '.join(entry.sources)})",
        "",
    ]
    lines += [" ".join(entry.why.said(language).split()), ""]
    number = 0
    for part in answer.parts:
        title = f"{_KINDS[part.kind].said(language)}, {part.name}: {part.verdict.text.said(language)}"
        lines += [f"**{title}.**" + ("" if part.conclusion is None else f" {part.conclusion.says.said(language)}"), ""]
        if part.conclusion is None:
            continue
        for shown in part.conclusion.pictures:
            number += 1
            lines += [f"![{shown.title.said(language)}]({entry.id}-{number}.{language}.svg)", ""]
            lines += [f"*{shown.reading.said(language)}*", ""]
        if part.conclusion.table is not None:
            lines += [*_table(part.conclusion.table, language), ""]
        lines += [f"<sub>{made(part).said(language)}</sub>", ""]
    lines += [f"{'Limits' if english else '局限'}: {entry.limits.said(language)}", ""]
    return [*lines, f"`unmask lab run {entry.id}`"]


def _table(table: Table, language: Language) -> list[str]:
    rows = [[column.said(language) for column in table.columns], ["---"] * len(table.columns), *table.rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]


def _pictures(answer: Answer) -> list[Picture]:
    return [shown for part in answer.parts if part.conclusion for shown in part.conclusion.pictures]


def _counts(answers: Sequence[Answer]) -> Text:
    found = Counter(answer.verdict for answer in answers)
    some = [verdict for verdict in Verdict if found[verdict]]
    return Text(
        f"{len(answers)} questions: " + ", ".join(f"{found[one]} {one.text.en}" for one in some) + ".",
        f"{len(answers)} 个问题：" + "，".join(f"{one.text.zh} {found[one]}" for one in some) + "。",
    )


def _both(text: Text) -> Markup:
    return Markup('<span lang="en">{}</span><span lang="zh">{}</span>').format(text.en, text.zh)


@cache
def _pages() -> Environment:
    loader = PackageLoader("unmask.lab")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _part(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
