"""`unmask tokenize`, `unmask tokenizer train` and `unmask tokenizer report`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import console
from unmask.cli.models import Json, Overwrite
from unmask.errors import SettingsError

Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts; without any, --file or stdin is read.")]
TextFile = Annotated[
    str | None, typer.Option("--file", "-f", metavar="FILE", help="A file with one text a line; - for stdin.")
]
Encoding = Annotated[str, typer.Option(metavar="ENCODING", help="How the file is written: utf-8 or gb18030.")]
TokenizerOf = Annotated[
    str, typer.Option("--model", "-m", metavar="NAME", help="Model or tokenizer: short name, Hub id, or folder.")
]

#: How the settings of a vocabulary are called here, where they are flags.
_FLAGS = {
    "kind": "--kind",
    "size": "--size",
    "byte_fallback": "--byte-fallback",
    "min_frequency": "--min-frequency",
    "character_coverage": "--coverage",
    "encoding": "--encoding",
}

tokenizer = typer.Typer(help="Train a vocabulary, or see how one fits a text.", no_args_is_help=True)


def tokenize(
    texts: Texts = None,
    model: TokenizerOf = "minilm",
    file: TextFile = None,
    encoding: Encoding = "utf-8",
    max_length: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Cut to so many tokens, and say so.")
    ] = None,
    json: Json = False,
) -> None:
    """Show the tokens of a text, with the place of each in the original."""
    given = console.texts_from(texts, file, encoding)
    chosen = _load_tokenizer(model)
    for text in console.not_none(given):
        found = chosen.encode(text, max_length=max_length)
        if json:
            console.print_json(
                {
                    "text": text,
                    "ids": found.ids,
                    "tokens": found.tokens,
                    "offsets": found.offsets,
                    "segments": found.segments,
                    "words": found.words,
                    "coverage": found.coverage,
                    "num_dropped": found.num_dropped,
                }
            )
            continue
        cells = zip(found.tokens, found.ids, found.offsets, found.words, strict=True)
        rows = [
            (token, str(id), "" if word is None else f"{start}–{end}", "" if word is None else text[start:end])
            for token, id, (start, end), word in cells
        ]
        console.print_table(["token", "id", "place", "original"], rows, title=console.shorten(text, 100))
        if found.num_dropped:
            kept = f"{found.coverage:.1%} of the text's characters are kept"
            console.say(f"{found.num_dropped} tokens were left out: {kept}")


@tokenizer.command("train")
def train(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Text files, plain or .gz; one vocabulary for all.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the tokenizer.")],
    size: Annotated[int, typer.Option(metavar="N", help="How many tokens the vocabulary has.")] = 30_000,
    kind: Annotated[
        str, typer.Option(metavar="KIND", help="wordpiece (BERT), bpe (translation) or byte_bpe.")
    ] = "wordpiece",
    cased: Annotated[bool, typer.Option("--cased", metavar="", help="Keep upper case and accents.")] = False,
    byte_fallback: Annotated[
        bool,
        typer.Option("--byte-fallback", metavar="", help="Write unknown characters as bytes, so that none is lost."),
    ] = False,
    min_frequency: Annotated[int, typer.Option(metavar="N", help="Rarer pieces get no token.")] = 2,
    coverage: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the text whose characters get a token.")
    ] = 0.9995,
    encoding: Encoding = "utf-8",
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Learn a vocabulary from text, English, Chinese or mixed."""
    from unmask.storage import new_folder
    from unmask.text import VocabularySettings, train_tokenizer

    given = {
        "kind": kind,
        "size": size,
        "lowercase": not cased,
        "byte_fallback": byte_fallback,
        "min_frequency": min_frequency,
        "character_coverage": coverage,
        "encoding": encoding,
    }
    console.new_folder_path(out, overwrite=overwrite)
    with _settings_as_flags(), new_folder(out, overwrite=overwrite) as draft:
        settings = VocabularySettings.parse(given, "tokenizer train")
        with console.download_bar() as report:
            trained = train_tokenizer(files, settings, report)
        trained.save(draft)
    if json:
        console.print_json({"folder": str(out), "kind": trained.kind, "vocab_size": trained.vocab_size})
    else:
        console.result(f"{out}: {trained.kind}, {trained.vocab_size:,} tokens")
    if trained.vocab_size < size:
        few = f"the text supports only {trained.vocab_size:,}"
        console.say(f"asked for {size:,} tokens; {few} at --min-frequency {min_frequency}")


@contextmanager
def _settings_as_flags() -> Iterator[None]:
    """Call a setting that is wrong by the name it has on the command line."""
    try:
        yield
    except SettingsError as error:
        named = re.sub(r"(?<![\w-])(\w+)(?=:)", lambda found: _FLAGS.get(found[0], found[0]), str(error))
        raise SettingsError(named) from None


@tokenizer.command("report")
def report(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A text file, plain or .gz; - for stdin.")],
    model: TokenizerOf = "minilm",
    encoding: Encoding = "utf-8",
    json: Json = False,
) -> None:
    """Show what a vocabulary loses of a text and how many tokens it needs, by script."""
    from unmask.text import report as make_report

    lines = console.texts_from(None, file, encoding)
    chosen = _load_tokenizer(model)
    with console.counting("lines", console.num_lines(file)) as count:
        found = make_report(chosen, _counted(lines, count))
    if json:
        console.print_json(found.to_dict())
        return
    facts: list[tuple[str, object]] = [
        ("lines", found.lines),
        ("characters (without spaces)", found.characters),
        ("words (each Chinese character counts as one)", found.words),
        ("tokens", found.tokens),
        ("tokens per character", f"{found.tokens_per_character:.3f}"),
        ("tokens per word", f"{found.tokens_per_word:.3f}"),
        ("unknown tokens", f"{found.unknown_tokens:,} ({found.unknown_rate:.3%})"),
        ("characters lost", f"{found.lost_characters:,} ({found.lost_rate:.3%})"),
        ("lines over 512 tokens", f"{found.lines_above_limit:,} ({found.share_above_limit:.2%})"),
    ]
    console.print_table(["", file], facts)
    rows = [
        (name, part.characters, part.tokens, f"{part.tokens_per_character:.3f}", part.lost)
        for name, part in found.scripts.items()
    ]
    console.print_table(["script", "characters", "tokens", "tokens per character", "lost"], rows)
    if found.missing_characters:
        missing = "  ".join(f"{character} {count:,}" for character, count in found.missing_characters.items())
        console.result(f"lost most often: {missing}")


def _counted(lines: Iterator[str], count: Callable[[int], None]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        yield line
        if number % 100 == 0:
            count(number)


def _load_tokenizer(model: str) -> Any:
    from unmask.models.fetch import fetch
    from unmask.text import Tokenizer

    with console.download_bar() as progress:
        return Tokenizer.from_folder(fetch(model, progress=progress))
