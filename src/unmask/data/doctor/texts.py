"""What stands in the texts: odd characters, remains of HTML, and how long they are."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from unmask.data.doctor.findings import Finding, Place, Severity, at_places, many
from unmask.data.doctor.items import Examples, Item
from unmask.text import Tokenizer

BOUNDS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_BATCH = 256
#: kind, how bad, what it is called, what it looks like, what to do.
_ODD: tuple[tuple[str, Severity, str, str, str], ...] = (
    (
        "replacement",
        "warning",
        "the character U+FFFD (�), which stands for letters that are lost",
        "\ufffd",
        "read the source again in its own encoding",
    ),
    (
        "mojibake",
        "warning",
        "letters that were read in a wrong encoding",
        # UTF-8 read as Latin-1 or Windows-1252; UTF-8 read as GBK, and what Windows leaves in memory.
        "Ã[\x80-\xbf]|â€|Â[\xa0-\xbf]|ï»¿|[äåæçèé][\x80-\xbf][\x80-\xbf]|锟斤拷|烫烫烫|屯屯屯|銆|鈥|锛[\ue000-\uf8ff?]",
        "read the source again in its own encoding",
    ),
    (
        "control",
        "warning",
        "control characters",
        "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]",
        "they are invisible, and tokenizers drop them",
    ),
    (
        "invisible",
        "note",
        "invisible characters (zero-width, byte order marks)",
        "[\u200b\u2060\ufeff\u00ad]",
        "two texts that look the same may differ",
    ),
    (
        "html",
        "note",
        "remains of HTML",
        r"</?(?:br|p|div|span|a|b|i|u|em|strong|img|td|tr|th|table|ul|ol|li|h[1-6]|font|script|style)(?:\s[^<>]*)?/?>"
        r"|&(?:amp|lt|gt|quot|nbsp|apos|#\d{2,5}|#x[0-9a-fA-F]{2,4});",
        "the model would read them as words",
    ),
)
_PATTERNS = {kind: re.compile(pattern, re.I if kind == "html" else 0) for kind, _, _, pattern, _ in _ODD}
_ANY = re.compile("|".join(f"(?:{pattern.pattern})" for pattern in _PATTERNS.values()), re.I)


def check_characters(examples: Examples) -> Iterator[Finding]:
    """Characters that do not belong in a text."""
    places: dict[str, list[Place]] = {kind: [] for kind in _PATTERNS}
    scanned: set[str] = set()
    for item in examples.items:
        for text in (item.text, item.pair):
            # Many questions share a text, which is looked at once.
            if text is None or (examples.task == "qa" and text in scanned):
                continue
            scanned.add(text) if examples.task == "qa" else None
            if _ANY.search(text) is None:
                continue
            for kind, pattern in _PATTERNS.items():
                if found := pattern.search(text):
                    places[kind].append(Place(item.file, item.line, repr(found[0])))
    for kind, severity, what, _, remedy in _ODD:
        yield from at_places(
            severity,
            kind,
            places[kind],
            lambda number, what=what, remedy=remedy: f"{many(number, 'text has', 'texts have')} {what}; {remedy}",  # type: ignore[misc]
        )


def lengths(items: Sequence[Item], tokenizer: Tokenizer | None) -> list[int]:
    """The length of each item: in tokens, the special ones included, or without a tokenizer in characters."""
    if tokenizer is None:
        return [len(item.text) + len(item.pair or "") for item in items]
    found: list[int] = []
    for start in range(0, len(items), _BATCH):
        batch = items[start : start + _BATCH]
        paired = batch[0].pair is not None
        pairs = [item.pair or "" for item in batch] if paired else None
        found += [len(encoding.ids) for encoding in tokenizer.encode_batch([item.text for item in batch], pairs)]
    return found


def length_facts(found: Sequence[int], limit: int, unit: str) -> dict[str, Any]:
    """How long texts are: middle and far ones, a histogram, and the share past the limit."""
    ordered = sorted(found)
    counts = Counter(bisect_left(BOUNDS, length) for length in ordered)
    names = [f"≤ {bound:,}" for bound in BOUNDS] + [f"> {BOUNDS[-1]:,}"]
    first, last = min(counts), max(counts)
    beyond = len(ordered) - bisect_left(ordered, limit + 1)
    return {
        "unit": unit,
        "mean": round(sum(ordered) / len(ordered), 1),
        "median": ordered[len(ordered) // 2],
        "p95": ordered[math.ceil(0.95 * len(ordered)) - 1],
        "max": ordered[-1],
        "total": sum(ordered),
        "histogram": {names[place]: counts[place] for place in range(first, last + 1)},
        "limit": limit,
        "past_limit": beyond,
        "share_past_limit": round(beyond / len(ordered), 4),
    }


def check_lengths(examples: Examples, found: Sequence[int], limit: int, unit: str) -> Iterator[Finding]:
    """Texts that a model cannot read at once."""
    places = [
        Place(item.file, item.line, f"{length:,} {unit}")
        for item, length in zip(examples.items, found, strict=True)
        if length > limit
    ]
    share = len(places) / max(len(found), 1)
    if unit == "tokens":
        severity: Severity = "warning" if share >= 0.01 else "note"
        ways = '"windows" reads all of a text, "head_tail" its beginning and its end'
        advice = f"a model reads so many at once, and the strategy {ways}"
    else:
        severity = "note"
        advice = "how many tokens that are, only a tokenizer can say: name it with --model"
    yield from at_places(
        severity,
        "long",
        places,
        lambda number: f"{many(number, 'text is', 'texts are')} longer than {limit:,} {unit} ({share:.1%}); {advice}",
    )
