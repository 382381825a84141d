"""Texts → the windows in which a model reads them, with special tokens around each."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.errors import SettingsError
from unmask.longtext.encoding import Kept, LongEncoding
from unmask.longtext.settings import LongTextSettings
from unmask.longtext.windows import Window, pair_pieces, pieces, spread
from unmask.text import Tokenizer


def encode_long(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    limit: int,
    settings: LongTextSettings,
    *,
    offsets: bool = False,
    training: bool = False,
) -> list[LongEncoding]:
    """The windows of many texts, or pairs of texts, for a model that reads `limit` tokens at once.

    Texts that fit cost what `encode_batch` costs. Offsets can be read in any case, and are quicker when they are asked
    for here. `max_windows` counts only with `training`.
    """
    at_once = settings.read_at_once(limit)
    room = _room(tokenizer, at_once, pair=pairs is not None)
    if settings.strategy in ("windows", "auto"):
        # A pair may leave as little as half of the room: a wrong overlap is told now, not at the first such pair.
        settings.shared(room if pairs is None else room - room // 2)
    most = settings.max_windows if training else None
    seconds: Sequence[str | None] = [None] * len(texts) if pairs is None else pairs
    found = []
    for encoding, text, pair in zip(tokenizer.encode_batch(texts, pairs, offsets=offsets), texts, seconds, strict=True):
        whole = LongEncoding(encoding, text, pair)
        if len(encoding) > at_once:
            windows = _windows(whole, room, settings, pair is not None)
            kept = spread(windows, most)
            whole = LongEncoding(encoding, text, pair, kept, len(windows) - len(kept))
        found.append(whole)
    return found


def encode_questions(
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    limit: int,
    overlap: int | None = None,
    max_question: int = 64,
) -> list[LongEncoding]:
    """Each question with its context in windows, all of it: [CLS] question [SEP] window [SEP].

    A question longer than `max_question` tokens, or than half of the room, is cut, which its `num_dropped(0)` says.
    """
    if max_question < 1:
        raise SettingsError(f"max_question: {max_question} leaves nothing of a question; it must be at least 1")
    room = _room(tokenizer, limit, pair=True)
    longest = min(max_question, room // 2)
    settings = LongTextSettings(strategy="windows", overlap=overlap)
    settings.shared(room - longest)
    found = []
    for encoding, question, context in zip(
        tokenizer.encode_batch(questions, contexts, offsets=True), questions, contexts, strict=True
    ):
        whole = LongEncoding(encoding, question, context)
        asked, told = whole.num_tokens(0), whole.num_tokens(1)
        if asked > longest or asked + told > room:
            first = Window.of(0, min(asked, longest))
            kept = [(first, window) for window in pieces(told, room - len(first), settings)]
            whole = LongEncoding(encoding, question, context, kept)
        found.append(whole)
    return found


def _windows(whole: LongEncoding, room: int, settings: LongTextSettings, pair: bool) -> list[Kept]:
    if pair:
        return [*pair_pieces(whole.num_tokens(0), whole.num_tokens(1), room, settings)]
    return [(window,) for window in pieces(whole.num_tokens(), room, settings)]


def _room(tokenizer: Tokenizer, at_once: int, *, pair: bool) -> int:
    """Content tokens of a window."""
    special = tokenizer.num_special_tokens(pair)
    if at_once < special + 1 + pair:
        raise SettingsError(
            f"max_length: {at_once} tokens read at once leave no room for {'a pair of texts' if pair else 'a text'} "
            f"beside {special} special tokens; at least {special + 1 + pair} are needed"
        )
    return at_once - special
