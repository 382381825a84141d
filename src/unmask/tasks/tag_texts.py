"""Tagged texts as a model reads them: where the first token of each word stands, in which window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unmask.data.examples import Entity, TaggedExample
from unmask.data.schemes import to_tags
from unmask.errors import DataError
from unmask.longtext.encode import encode_long
from unmask.longtext.encoding import LongEncoding
from unmask.longtext.join import farthest_from_cuts
from unmask.tasks.usage import Usage
from unmask.tasks.windows import Ready, with_marks
from unmask.text.tokenizer import Tokenizer

Places = npt.NDArray[np.int64]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TagWindow:
    """A window ready for training: the rows at which its words begin, and their labels."""

    ready: Ready
    rows: Places
    targets: Places


@dataclass(frozen=True)
class TagText:
    """A text ready to be tagged, with what is right where that is known."""

    windows: tuple[Ready, ...]
    words: tuple[Span, ...]  # start and end of each word in the text
    placed: tuple[int, ...]  # the words that have a token which some window holds
    where: Places  # (placed, 2): the window that knows most of a word, and the row of its first token there
    gold: tuple[Entity, ...]
    tags: tuple[str, ...]  # one a word; empty where nothing is known
    coverage: float
    num_tokens: int

    def of_words(self, logits: Sequence[Tensor]) -> Tensor:
        """(placed words, labels) from the logits (length, labels) of each window."""
        starts = np.cumsum([0, *(len(rows) for rows in logits[:-1])])
        rows = torch.from_numpy(starts[self.where[:, 0]] + self.where[:, 1])
        return torch.cat(list(logits))[rows]


def check_labelled(file: str, examples: Sequence[TaggedExample], *, plain: bool) -> None:
    """DataError with the line of the first example of a file that says nothing, or nothing of this kind."""
    for example in examples:
        if (example.tags if plain else example.entities) is None:
            what = "tag for each word" if plain else "tags or entities"
            message = f"has no {what}, unlike other examples of the file; label it or remove it"
            raise DataError(message, file=file, line=example.line)


def tag_texts(tokenizer: Tokenizer, examples: Sequence[TaggedExample], usage: Usage, limit: int) -> list[TagText]:
    """Texts ready to be tagged."""
    return [text for text, _ in _both(tokenizer, examples, usage, limit, training=False)]


def tag_windows(
    tokenizer: Tokenizer, examples: Sequence[TaggedExample], usage: Usage, labels: Sequence[str], limit: int
) -> list[TagWindow]:
    """Windows ready for training; those without a word teach nothing and are left out."""
    numbers = {label: number for number, label in enumerate(labels)}
    made = []
    for text, encoding in _both(tokenizer, examples, usage, limit, training=True):
        targets = np.array([numbers[tag] for tag in text.tags], dtype=np.int64)
        first = _first_tokens(encoding, text.words)
        for ready, window in zip(text.windows, encoding.windows, strict=True):
            start = window.rows().start
            for begin, end in window.kept[0].ranges:
                inside = (first >= begin) & (first < end)
                if inside.any():
                    made.append(TagWindow(ready, first[inside] - begin + start, targets[inside]))
                start += end - begin
    return made


def _both(
    tokenizer: Tokenizer, examples: Sequence[TaggedExample], usage: Usage, limit: int, *, training: bool
) -> Iterator[tuple[TagText, LongEncoding]]:
    for start in range(0, len(examples), 4096):
        part = examples[start : start + 4096]
        texts = [example.text for example in part]
        encodings = encode_long(tokenizer, texts, None, limit, usage.long_text, offsets=True, training=training)
        for example, encoding in zip(part, encodings, strict=True):
            yield _text(example, encoding, usage), encoding


def _text(example: TaggedExample, encoding: LongEncoding, usage: Usage) -> TagText:
    words = example.words if example.words is not None else words_of(encoding, example.text)
    windows = encoding.windows
    owner, place = farthest_from_cuts([window.kept[0] for window in windows], encoding.num_tokens())
    first = _first_tokens(encoding, words)
    owners = np.where(first >= 0, owner.numpy()[first], -1) if len(owner) else np.full(len(first), -1)
    placed = np.flatnonzero(owners >= 0)
    begin = np.array([window.rows().start for window in windows])
    window = owners[placed]
    where = np.stack([window, begin[window] + place.numpy()[first[placed]]], axis=1) if len(placed) else _NOWHERE
    tags = _tags(example, words, usage)
    gold = example.entities
    if gold is None:
        gold = tuple(Entity(*span, tag) for span, tag in zip(words, tags, strict=False))
    return TagText(
        Ready.all_of(encoding),
        words,
        tuple(placed.tolist()),
        where,
        gold,
        tags,
        encoding.coverage,
        len(encoding.encoding),
    )


_NOWHERE = np.zeros((0, 2), dtype=np.int64)


def words_of(encoding: LongEncoding, text: str) -> tuple[Span, ...]:
    """The words that the tokenizer sees in a text: for Chinese its characters."""
    start, end = encoding.blocks[0]
    spans: list[list[int]] = []
    before: int | None = None
    for number, (first, last) in zip(encoding.encoding.words[start:end], encoding.offsets(), strict=True):
        if number != before or not spans:
            spans.append([first, last])
            before = number
        else:
            spans[-1][1] = max(spans[-1][1], last)
    return tuple((first, with_marks(text, last)) for first, last in spans)


def _first_tokens(encoding: LongEncoding, words: Sequence[Span]) -> Places:
    """The first content token of each word; -1 for a word without any."""
    offsets = encoding.offsets()
    found = np.full(len(words), -1, dtype=np.int64)
    token = 0
    for number, (start, end) in enumerate(words):
        while token < len(offsets) and offsets[token][1] <= start:
            token += 1
        if token < len(offsets) and offsets[token][0] < end:
            found[number] = token
    return found


def _tags(example: TaggedExample, words: Sequence[Span], usage: Usage) -> tuple[str, ...]:
    """The tag of each word in the scheme that is learned; none where nothing is known."""
    if example.entities is None or usage.scheme is None:
        return example.tags or ()
    return tuple(to_tags(over_words(example.entities, words), len(words), usage.scheme))


def over_words(entities: Sequence[Entity], words: Sequence[Span]) -> list[Entity]:
    """Stretches of characters → of words. One that begins or ends inside a word gets all of it.

    A word belongs to one stretch only, the first that touches it.
    """
    found: list[Entity] = []
    word = 0
    for start, end, type in sorted(entities):
        while word < len(words) and words[word][1] <= start:
            word += 1
        first = word
        while word < len(words) and words[word][0] < end:
            word += 1
        if word > first:
            found.append(Entity(first, word, type))
    return found
