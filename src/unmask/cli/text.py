"""`unmask tokenize`, `unmask tokenizer train` and `unmask tokenizer report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli import console
from unmask.cli.models import Json

Texts = Annotated[list[str] | None, typer.Argument(help="Texts; without any, --file or stdin is read.")]
TextFile = Annotated[str | None, typer.Option("--file", "-f", help="A file with one text a line; - for stdin.")]
TokenizerOf = Annotated[str, typer.Option("--model", "-m", help="Model or tokenizer: short name, Hub id, or folder.")]

tokenizer = typer.Typer(help="Train a vocabulary, or see how one fits a text.", no_args_is_help=True)


def tokenize(
    texts: Texts = None,
    model: TokenizerOf = "minilm",
    file: TextFile = None,
    max_length: Annotated[int | None, typer.Option(min=1, help="Cut to so many tokens, and say so.")] = None,
    json: Json = False,
) -> None:
    """Show the tokens of a text, with the place of each in the original."""
    chosen = _load_tokenizer(model)
    for text in console.texts_from(texts, file):
        encoding = chosen.encode(text, max_length=max_length)
        if json:
            console.print_json(
                {
                    "text": text,
                    "ids": encoding.ids,
                    "tokens": encoding.tokens,
                    "offsets": encoding.offsets,
                    "segments": encoding.segments,
                    "words": encoding.words,
                    "coverage": encoding.coverage,
                    "num_dropped": encoding.num_dropped,
                }
            )
            continue
        cells = zip(encoding.tokens, encoding.ids, encoding.offsets, encoding.words, strict=True)
        rows = [
            (token, str(id), "" if word is None else f"{start}–{end}", "" if word is None else text[start:end])
            for token, id, (start, end), word in cells
        ]
        console.print_table(["token", "id", "place", "original"], rows, title=console.shorten(text, 100))
        if encoding.num_dropped:
            kept = f"{encoding.coverage:.1%} of the text's characters are kept"
            console.say(f"{encoding.num_dropped} tokens were left out: {kept}")


@tokenizer.command("train")
def train(
    files: Annotated[list[Path], typer.Argument(help="Text files, plain or .gz; one vocabulary for all.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the tokenizer.")],
    size: Annotated[int, typer.Option(help="How many tokens the vocabulary has.")] = 30_000,
    kind: Annotated[str, typer.Option(help="wordpiece (BERT), bpe (translation) or byte_bpe.")] = "wordpiece",
    cased: Annotated[bool, typer.Option("--cased", help="Keep upper case and accents.")] = False,
    byte_fallback: Annotated[
        bool, typer.Option("--byte-fallback", help="Write unknown characters as bytes, so that none is lost.")
    ] = False,
    min_frequency: Annotated[int, typer.Option(help="Rarer pieces get no token.")] = 2,
    coverage: Annotated[float, typer.Option(help="Share of the text whose characters get a token.")] = 0.9995,
    encoding: Annotated[str, typer.Option(help="utf-8 or gb18030.")] = "utf-8",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a folder that exists.")] = False,
    json: Json = False,
) -> None:
    """Learn a vocabulary from text, English, Chinese or mixed."""
    from unmask.storage import new_folder
    from unmask.text import VocabularySettings, train_tokenizer

    settings = VocabularySettings.parse(
        {
            "kind": kind,
            "size": size,
            "lowercase": not cased,
            "byte_fallback": byte_fallback,
            "min_frequency": min_frequency,
            "character_coverage": coverage,
            "encoding": encoding,
        },
        "tokenizer train",
    )
    with new_folder(out, overwrite=overwrite) as draft:
        with console.download_bar() as report:
            trained = train_tokenizer(files, settings, report)
        trained.save(draft)
    if json:
        console.print_json({"folder": str(out), "kind": trained.kind, "vocab_size": trained.vocab_size})
    else:
        console.out().print(f"{out}: {trained.kind}, {trained.vocab_size:,} tokens")


@tokenizer.command("report")
def report(
    file: Annotated[str, typer.Argument(help="A text file, plain or .gz; - for stdin.")],
    model: TokenizerOf = "minilm",
    json: Json = False,
) -> None:
    """Show what a vocabulary loses of a text and how many tokens it needs, by script."""
    from unmask.text import read_lines
    from unmask.text import report as make_report

    with console.counting("lines") as count:
        found = make_report(_load_tokenizer(model), _counted(read_lines(file), count))
    if json:
        console.print_json(found.to_dict())
        return
    facts: list[tuple[str, object]] = [
        ("lines", found.lines),
        ("characters (without spaces)", found.characters),
        ("words", found.words),
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
        console.out().print(f"lost most often: {missing}", markup=False)


def _counted(lines: Any, count: Any) -> Any:
    for number, line in enumerate(lines, 1):
        yield line
        if number % 1000 == 0:
            count(number)


def _load_tokenizer(model: str) -> Any:
    from unmask.models.fetch import fetch
    from unmask.text import Tokenizer

    with console.download_bar() as progress:
        return Tokenizer.from_folder(fetch(model, progress=progress))
