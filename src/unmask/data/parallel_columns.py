"""Which two columns of a table are a sentence and its translation: by name, else by their place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from unmask.config import Settings
from unmask.data.columns import IDS, KNOWN, folded
from unmask.errors import DataError, SettingsError

PAIRS = (
    ("source", "target"),
    ("src", "tgt"),
    ("src", "trg"),
    ("source_text", "target_text"),
    ("src_text", "tgt_text"),
    ("source_sentence", "target_sentence"),
    ("text", "translation"),
    ("sentence", "translation"),
    ("original", "translation"),
    ("原文", "译文"),
    ("源文", "译文"),
    ("源语言", "目标语言"),
)
"""Names that the two sides have, the surest first, written as names are compared."""

_TWO_LETTERS = (  # ISO 639-1
    " aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el"
    " en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu"
    " ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na"
    " nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so"
    " sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)
_THREE_LETTERS = (  # ISO 639-2 and -3: those that sets of pairs are called by
    " afr ara bel ben bul cat ces chi cmn cze dan deu dut ell eng epo est eus fas fil fin fra fre geo ger gle glg"
    " gre guj heb hin hrv hun hye ice ind isl ita jpn kan kat kaz khm kor lat lav lit lzh mac mal mar mkd mon msa"
    " mya nep nld nno nob nor pan per pol por ron rum rus sin slk slo slv spa sqi srp swa swe tam tel tgl tha tur"
    " ukr urd uzb vie wuu yue zho zul"
)
_NAMES = (
    " english german french spanish chinese japanese korean russian italian portuguese arabic hindi dutch"
    " 英文 英语 中文 汉语 德文 德语 法文 法语 日文 日语 韩文 韩语 俄文 俄语 西班牙语"
)
LANGUAGES = frozenset((_TWO_LETTERS + _THREE_LETTERS + _NAMES).split())
"""What a column of one language may be called."""

OPTION = "--columns source=…,target=…"
_TEXT_WORDS = {"text", "sentence", "sent", "caption", "line"}
_NUMBER = re.compile(r"\s*[+-]?\d*\.?\d+\s*")


class PairColumns(Settings):
    """The columns of both sides as a user names them, each by its name or its number from 1."""

    source: str
    target: str


@dataclass(frozen=True)
class Sides:
    """The columns that were taken, by their places from 0, and one sentence that says which and why."""

    source: int
    target: int
    said: str = ""


def parse_pair_columns(option: str) -> PairColumns:
    """A choice from what a user writes: `source=en,target=de`."""
    chosen: dict[str, object] = {}
    for part in option.split(","):
        role, equals, name = part.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"--columns {option!r}: {part!r} names no column; write it as {OPTION}")
        chosen[role.strip()] = name.strip()
    return PairColumns.parse(chosen, f"--columns {option!r}")


def names_sides(first: Sequence[str], choice: PairColumns | None) -> bool:
    """Whether a first row names columns: those that the user said, both sides, or what other tables are made of."""
    names = {folded(cell) for cell in first}
    if choice is not None and {folded(choice.source), folded(choice.target)} <= names:
        return True
    by_name = any(set(pair) <= names for pair in PAIRS) or len(set(filter(_is_language, names))) > 1
    # One known word may begin a list of words and their translations.
    return by_name or len(names & KNOWN) > 1


def choose_sides(
    names: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    file: str,
    choice: PairColumns | None = None,
    named: bool = True,
    swap: bool = False,
) -> Sides:
    """The two sides of a table with these columns and first rows; DataError where they are not clear.

    Where columns are not `named`, the first two that hold more than numbers are taken.
    """
    return _Chooser(names, rows, file).choose(choice, named, swap)


class _Chooser:
    def __init__(self, names: Sequence[str], rows: Sequence[Sequence[object]], file: str) -> None:
        self.names, self.rows, self.file = list(names), rows, file
        self.places = {folded(name): place for place, name in reversed([*enumerate(names)])}

    def choose(self, choice: PairColumns | None, named: bool, swap: bool) -> Sides:
        if len(self.names) < 2:
            self._unclear("has one column, but a pair needs two")
        if choice is not None:
            found, why = (
                Sides(self._named("source", choice.source), self._named("target", choice.target)),
                "as you said",
            )
            if found.source == found.target:
                raise DataError(f"{self.names[found.source]!r} cannot be source and target at once", file=self.file)
        elif named:
            found, why = self._by_name(), "by name"
        else:
            found, why = self._by_place(), "by their place"
        if swap:
            found, why = Sides(found.target, found.source), f"{why}, swapped"
        return replace(found, said=self._sentence(found, why))

    def _named(self, role: str, name: str) -> int:
        if name in self.names:
            return self.names.index(name)
        if folded(name) in self.places:
            return self.places[folded(name)]
        if name.isdecimal() and 1 <= int(name) <= len(self.names):
            return int(name) - 1
        near = difflib.get_close_matches(name, self.names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"its columns are {self._listed()}"
        raise DataError(f"has no column {name!r} for the {role}; {hint}", file=self.file)

    def _by_name(self) -> Sides:
        for source, target in PAIRS:
            if source in self.places and target in self.places:
                return Sides(self.places[source], self.places[target])
        languages = [place for place, name in enumerate(self.names) if _is_language(folded(name))]
        # id is Indonesian too.
        languages = [
            place for place in languages if folded(self.names[place]) not in IDS or not self._are_numbers(place)
        ]
        if len(languages) > 2:
            self._unclear(f"{', '.join(self.names[place] for place in languages)} could each be meant")
        if len(languages) < 2:
            self._unclear("which columns are source and target cannot be told")
        return Sides(languages[0], languages[1])

    def _by_place(self) -> Sides:
        texts = [place for place in range(len(self.names)) if not self._are_numbers(place)]
        if len(texts) < 2:
            self._unclear("fewer than two of its columns hold text")
        return Sides(texts[0], texts[1])

    def _are_numbers(self, place: int) -> bool:
        return all(_NUMBER.fullmatch(str(row[place])) for row in self.rows)

    def _unclear(self, what: str) -> NoReturn:
        remedy = f"say which with {OPTION}"
        if len(self.names) == 1:
            remedy = "put a tab between source and target, or give two files of plain text"
        raise DataError(f"{what}; {self._columns()}: {remedy}", file=self.file)

    def _columns(self) -> str:
        return f"its column is {self._listed()}" if len(self.names) == 1 else f"its columns are {self._listed()}"

    def _listed(self) -> str:
        shown = []
        for place, name in enumerate(self.names[:20]):
            example = next((str(row[place]) for row in self.rows if row[place] not in (None, "")), "")
            example = example if len(example) <= 20 else example[:19] + "…"
            shown.append(f"{name} ({example!r})" if example else f"{name} (empty)")
        return ", ".join(shown) + (" …" if len(self.names) > 20 else "")

    def _sentence(self, found: Sides, why: str) -> str:
        unused = [name for place, name in enumerate(self.names) if place not in (found.source, found.target)]
        more = f"; not used: {', '.join(unused)}" if unused else ""
        return f"source is {self._column(found.source)}, target is {self._column(found.target)} ({why}){more}"

    def _column(self, place: int) -> str:
        name = self.names[place]
        return name if re.fullmatch(r"column \d+", name) else f"column {name!r}"


def _is_language(name: str) -> bool:
    """Whether a folded name is a language: en, zh_cn, text_en, en_text."""
    if name in LANGUAGES:
        return True
    first, _, second = name.partition("_")
    if first in LANGUAGES:
        return second in _TEXT_WORDS or re.fullmatch(r"[a-z]{2}|hans|hant|latn|cyrl", second) is not None
    return first in _TEXT_WORDS and second in LANGUAGES
