"""`unmask translate`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import console
from unmask.cli.models import EngineName, Json, Overwrite
from unmask.cli.text import Encoding
from unmask.errors import UserError

Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads; all cores if not given.")]
LengthPenalty = Annotated[
    float | None, typer.Option("--length-penalty", metavar="X", help="More favours longer translations.")
]
CoveragePenalty = Annotated[
    float | None, typer.Option("--coverage-penalty", metavar="X", help="Cost of words that were not looked at.")
]
Picture = Annotated[
    Path | None, typer.Option("--picture", metavar="FILE", help="Draw the first text's alignment (.png, .svg).")
]


def translate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A translator: folder, or run folder.")],
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Texts, one a line; - for standard input.")] = None,
    text: Annotated[list[str] | None, typer.Option("--text", metavar="TEXT", help="A text; repeat.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the lines here.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, metavar="N", help="Beginnings at once; 1: greedy.")] = None,
    best: Annotated[int, typer.Option("--best", min=1, metavar="N", help="Show the N best translations.")] = 1,
    length_penalty: LengthPenalty = None,
    coverage_penalty: CoveragePenalty = None,
    sample: Annotated[bool, typer.Option("--sample", metavar="", help="Draw words instead of searching.")] = False,
    temperature: Annotated[float | None, typer.Option(metavar="X", help="Of drawing: below 1 is safer.")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", metavar="N", help="Draw from the N best words.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", metavar="X", help="Draw from the best X of all.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of drawing.")] = None,
    start: Annotated[str | None, typer.Option(metavar="TEXT", help="Every translation begins with this.")] = None,
    min_length: Annotated[int | None, typer.Option("--min-length", metavar="N", help="Tokens at least.")] = None,
    max_length: Annotated[int | None, typer.Option("--max-length", metavar="N", help="Tokens at most.")] = None,
    align: Annotated[bool, typer.Option("--align", metavar="", help="Say which word became which.")] = False,
    picture: Picture = None,
    encoding: Encoding = "utf-8",
    threads: Threads = None,
    engine: EngineName = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Translate texts line by line: order kept, empty lines stay empty, long ones are split and it is said."""
    given = _given(file, text, encoding)
    _check_outputs(out, picture, overwrite)
    changes = {"beam": beam, "length_penalty": length_penalty, "coverage_penalty": coverage_penalty}
    changes |= {"min_length": min_length, "max_length": max_length, "num_best": best if best > 1 else None}
    drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    console.use_threads(threads)
    translator = translator_of(model, engine)
    settings = _decode_settings(translator.usage.decode, changes, drawing, sample)
    if start is not None:
        unfit = {"--out": out is not None, "--picture": picture is not None, "--align": align, "--best": best > 1}
        if any(unfit.values()):
            raise UserError(f"{next(name for name, on in unfit.items() if on)} does not go with --start")
        _begun(translator, list(given), start, settings, json)
        return
    total = len(text) if text is not None else console.num_lines(file)
    _run(translator, given, settings, _Lines(json, align, best), out, picture, total)


def _given(file: str | None, text: list[str] | None, encoding: str) -> Iterator[str]:
    if (file is None) == (text is None):
        raise UserError("give a FILE (- for standard input), or texts with --text")
    return iter(text) if text is not None else console.texts_from(None, file, encoding)


def _check_outputs(out: Path | None, picture: Path | None, overwrite: bool) -> None:
    from unmask.explain.alignment import check_picture

    for path in (out, picture):
        if path is not None:
            console.new_path(path, overwrite=overwrite)
    if picture is not None:
        check_picture(picture)


def _run(
    translator: Any,
    given: Iterator[str],
    settings: Any,
    lines: _Lines,
    out: Path | None,
    picture: Path | None,
    total: int | None,
) -> None:
    """Translate, write, and say what there is to say."""
    kept: deque[str] = deque()
    found = translator.run(_kept(given, kept), settings, aligned=lines.align or picture is not None)
    with _writer(out) as write, console.counting("texts", total, shown=out is not None) as count:
        for one in found:
            for line in lines.of(kept.popleft(), one):
                write(line)
            if lines.texts == 1 and picture is not None:
                _draw(one, picture)
            count(lines.texts)
    for remark in lines.remarks():
        console.say(remark)
    if out is not None:
        console.say(f"{out}: {lines.texts:,} translations")


def _decode_settings(usual: Any, changes: Mapping[str, Any], drawing: Mapping[str, Any], sample: bool) -> Any:
    """The model's settings with those that were given."""
    from unmask.decode.settings import SamplingSettings

    said = {name: value for name, value in changes.items() if value is not None}
    if not sample:
        for name, value in drawing.items():
            if value is not None:
                raise UserError(f"--{name.replace('_', '-')} goes with --sample")
        best = said.get("num_best", 1)
        if best > said.get("beam", best):
            raise UserError(f"--best {best} needs a beam at least as wide, given --beam {said['beam']}")
        if best > usual.beam:
            said.setdefault("beam", best)
        return usual.replace(**said)
    sampling = SamplingSettings(**{name: value for name, value in drawing.items() if value is not None})
    return usual.replace(**{"beam": 1, **said, "sampling": sampling})


def _begun(translator: Any, texts: list[str], start: str, settings: Any, json: bool) -> None:
    some = [text for text in texts if text.strip()]
    begun = iter(translator.begun(some, [start] * len(some), settings))
    for text in texts:
        found = next(begun) if text.strip() else None  # empty lines stay empty
        said, score = (found.text, round(found.score, 6)) if found else ("", 0.0)
        if json:
            console.print_json({"text": text, "translation": said, "score": score})
        else:
            console.result(said)


class _Lines:
    """What is written for each translation, and what there is to say at the end."""

    def __init__(self, json: bool, align: bool, best: int) -> None:
        self.json, self.align, self.best = json, align, best
        self.texts = self.split = self.unfinished = 0
        self.lost: dict[str, None] = {}

    def of(self, text: str, found: Any) -> list[str]:
        self.texts += 1
        self.split += found.parts > 1
        self.unfinished += not found.outputs[0].finished
        self.lost.update(dict.fromkeys(found.lost))
        if self.json:
            return [dumps(self._record(text, found), ensure_ascii=False)]
        lines = [found.text] if self.best == 1 else [f"{one.score:.4f}\t{one.text}" for one in found.outputs]
        if self.align:
            links = [
                f"{one.source[link.source]}–{one.target[link.target]}" for one in found.alignments for link in one.links
            ]
            lines.append("  " + "  ".join(links))
        return lines

    def _record(self, text: str, found: Any) -> dict[str, Any]:
        record: dict[str, Any] = {"text": text, "translation": found.text, "score": round(found.outputs[0].score, 6)}
        if self.best > 1:
            record["best"] = [{"text": one.text, "score": round(one.score, 6)} for one in found.outputs]
        record |= {"parts": found.parts, "lost": found.lost, "finished": found.outputs[0].finished}
        if self.align:
            record["alignment"] = [
                {"source": list(one.source), "target": list(one.target), "links": [link[:3] for link in one.links]}
                for one in found.alignments
            ]
        return record

    def remarks(self) -> Iterator[str]:
        if not self.texts:
            yield console.NO_TEXTS
        if self.split:
            what = "longer than any text the model learned from, and were split at sentences"
            yield f"{self.split:,} of {self.texts:,} texts are {what}"
        if self.unfinished:
            yield f"{self.unfinished:,} translations reached the length limit before their end; see --max-length"
        if self.lost:
            shown = " ".join([*self.lost][:20])
            yield f"characters that the model does not know and did not keep: {shown}"


def _kept(texts: Iterator[str], kept: deque[str]) -> Iterator[str]:
    for text in texts:
        kept.append(text)
        yield text


def _draw(found: Any, picture: Path) -> None:
    from unmask.explain.alignment import draw_alignment

    if not found.alignments:
        raise UserError("there is no alignment to draw: the first text is empty")
    draw_alignment(found.alignments[0], picture)
    console.say(f"{picture}  the alignment of the first text" + (", its first part" if found.parts > 1 else ""))


@contextmanager
def _writer(out: Path | None) -> Iterator[Callable[[str], object]]:
    """Where lines go: a file that appears complete, or stdout."""
    if out is None:
        yield console.result
        return
    from unmask.storage import replacing

    with replacing(out) as draft, draft.open("w", encoding="utf-8") as lines:
        yield lambda line: lines.write(line + "\n")


def is_translator(name: str) -> bool:
    """Whether a folder holds a translator."""
    from unmask.tasks.languages import read_translate_usage
    from unmask.tasks.runs import model_folder

    folder = model_folder(name)
    return folder.is_dir() and read_translate_usage(folder) is not None


def translator_of(name: str, engine: str = "auto") -> Any:
    """The translator of a folder, or of a run."""
    from unmask.cli.predict import load_named

    return load_named(name, engine).translator
