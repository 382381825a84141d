"""Paragraphs → sentences, by rules, for English, Chinese and mixed text."""

from __future__ import annotations

import re

from unmask.text.scripts import is_han

_CLOSING = "”’」』）》】〉〕］\"')]}»"
_OPENING = "“‘「『（《【〈〔［\"'([{«¿¡"
# Marks that end a sentence, as many as stand together, and what closes after them.
_END = re.compile(rf"[。！？；…｡!?.]+[{re.escape(_CLOSING)}]*")
_CHINESE_MARKS = frozenset("。！？；｡")
_WORD_BEFORE = re.compile(r"[^\s" + re.escape(_OPENING) + r"]+\Z")
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]\Z")
# Longer than any abbreviation: how far back the word before a full stop is looked for.
_REACH = 40


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: After these a full stop does not end the sentence, whatever follows. Case tells "Art. 5" from "works of art."
_NEVER = _words(
    "Mr Mrs Ms Mx Dr Prof Rev Fr Sr Jr St Gen Col Lt Sgt Capt Cmdr Adm Maj Gov Sen Rep Hon Pres Supt Messrs Mme Mlle "
    "Mt Ft vs viz cf e.g i.e eg ie ca approx fig figs Fig Figs Eq Eqs Sec Ch Vol vol Vols Ed Eds ed eds pp Art"
)
#: After these it ends the sentence only if the next word often begins one.
_SELDOM = _words(
    "Inc Ltd Co Corp Bros LLC PLC Dept Univ Assn Est Ave Blvd Rd etc al Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct "
    "Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun Ph.D"
)
_NUMBERED = _words("No Nos no nos p")
_BEGINNERS = _words(
    "the a an this that these those it its he she they we you i his her their our my your there here in on at by for "
    "from with after before when while if as but and or so yet however although because since during what who how "
    "why where which some many most all no not one two let then thus meanwhile"
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, in order and without the spaces around them; nothing else is lost.

    Chinese sentences end at 。！？；… with the quotes and brackets that close after them. English ones end at . ! ?
    before a space and something that can begin a sentence; not after an initial or an abbreviation, and never
    inside a number or an address, where no space follows.
    """
    sentences: list[str] = []
    start = 0
    for match in _END.finditer(text):
        if _ends(text, start, match):
            _add(sentences, text[start : match.end()])
            start = match.end()
    _add(sentences, text[start:])
    return sentences


def _add(sentences: list[str], piece: str) -> None:
    if piece := piece.strip():
        sentences.append(piece)


def _ends(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether a sentence that began at `start` ends with these marks."""
    marks = match.group().rstrip(_CLOSING)
    after = text[match.end() : match.end() + 1]
    before = text[match.start() - 1 : match.start()]
    if not after:
        return True
    if _CHINESE_MARKS & set(marks):
        return True
    spaced = after.isspace()
    if "…" in marks or marks[-1] in "!?":
        # Chinese is also written with these, without a space after them; there, both neighbours tell.
        chinese = bool(before) and is_han(before)
        if chinese and (spaced or is_han(after) or after in _OPENING):
            return True
    if not spaced:
        return False
    following = text[match.end() : match.end() + _REACH + 1].lstrip()
    if not following:
        return True
    if not _begins(following):
        return False
    return marks != "." or not _abbreviates(text[max(start, match.start() - _REACH) : match.start()], following)


def _begins(following: str) -> bool:
    """Whether a sentence can begin like this: not with a small letter or a mark that goes on."""
    first = following.lstrip(_OPENING)[:1]
    return bool(first) and (first.isupper() or first.isdigit() or (first.isalpha() and not first.islower()))


def _abbreviates(before: str, following: str) -> bool:
    """Whether the full stop after `before` belongs to an abbreviation in the middle of a sentence."""
    found = _WORD_BEFORE.search(before)
    if found is None:
        return False
    word = found.group()
    if word in _NEVER:
        return True
    if word in _NUMBERED:
        return following[:1].isdigit()
    if word == "I":  # more often the pronoun at the end of a sentence than an initial
        return not _often_begins(following)
    if len(word) == 1 and word.isupper():
        return True
    return (word in _SELDOM or _ACRONYM.search(word) is not None) and not _often_begins(following)


def _often_begins(following: str) -> bool:
    word = re.match(r"\w+", following.lstrip(_OPENING))
    return word is not None and word.group().lower() in _BEGINNERS
