"""Which column of a table is the text, which its pair, which the label: by name, else by what stands in it."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from unmask.config import Settings
from unmask.errors import DataError, SettingsError
from unmask.text.scripts import HAN

PAIRS = (
    ("text_a", "text_b"),
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("#1_string", "#2_string"),
    ("text1", "text2"),
    ("text_1", "text_2"),
    ("query1", "query2"),
    ("s1", "s2"),
    ("question", "sentence"),
    ("question", "answer"),
    ("query", "passage"),
    ("query", "document"),
    ("query", "answer"),
    ("query", "title"),
    ("text", "text_pair"),
    ("句子1", "句子2"),
    ("文本1", "文本2"),
    ("句子一", "句子二"),
    ("文本一", "文本二"),
    ("前提", "假设"),
    ("问题1", "问题2"),
    ("问题", "答案"),
    ("问题", "回答"),
)
"""Names that two texts of a pair have, the surest first. Names are compared in small letters, with _ for spaces."""

TEXTS = tuple(
    tuple(names.split())
    for names in (
        "text sentence text_a 文本 句子",
        "review content comment comments tweet message document utterance body sms post review_body review_text article"
        " 内容 评论 正文 文章 评价",
        "title headline question query description abstract phrase 标题 问题 摘要",
    )
)
"""Names of a text: those of a later group only count where there is none of an earlier one."""

LABELS = tuple(
    tuple(names.split())
    for names in (
        "label labels gold_label 标签",
        "class category target intent sentiment quality score rating stars polarity is_duplicate emotion topic"
        " similarity categories tag label_desc label_text y 类别 分类 类目 得分 分数 情感 意图 情绪 主题",
    )
)
"""Names of a label, in the same way."""

IDS = ("id", "index", "idx", "guid", "qid", "uid", "#", "编号", "序号")
"""Names of a column that only counts or names the rows."""

KNOWN = {name for names in (*PAIRS, *TEXTS, *LABELS, IDS) for name in names}
"""Every name that says something: a first line that has one is a header."""

OPTION = "--columns text=…,pair=…,label=…"
#: A label is a word or two; what is longer is a text.
_LONGEST_LABEL = 60
_WHOLE = re.compile(r"\s*[+-]?\d{1,4}\s*")


class ColumnChoice(Settings):
    """Columns as a user names them, each by its name or its number from 1. What is not named is guessed."""

    text: str | None = None
    pair: str | None = None
    #: Several where each is a label of its own, with 0 or 1 in it.
    label: str | tuple[str, ...] | None = None
    id: str | None = None


@dataclass(frozen=True)
class Columns:
    """The columns that were taken, and one sentence that says which and why."""

    text: str
    pair: str | None = None
    label: str | None = None
    #: Columns with 0 or 1, each a label of its own; then `label` is None.
    flags: tuple[str, ...] = ()
    id: str | None = None
    said: str = ""


def parse_columns(option: str) -> ColumnChoice:
    """A choice from what a user writes: `text=sentence,label=class`; `label=a+b+c` takes columns with 0 or 1."""
    chosen: dict[str, object] = {}
    for part in option.split(","):
        role, equals, name = part.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"--columns {option!r}: {part!r} names no column; write it as {OPTION}")
        several = tuple(name.strip() for name in name.split("+"))
        chosen[role.strip()] = several if role.strip() == "label" and len(several) > 1 else name.strip()
    return ColumnChoice.parse(chosen, f"--columns {option!r}")


def folded(name: str) -> str:
    """A name as names are compared."""
    return re.sub(r"[\s\-]+", "_", name.strip().lower())


def choose_columns(
    names: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    file: str,
    choice: ColumnChoice | None = None,
    labelled: bool = True,
) -> Columns:
    """The columns of a table with these names and first rows; DataError where they are not clear.

    `labelled` says that there must be a label; without it a label is taken if there is one.
    """
    return _Chooser(list(names), rows, file).choose(choice or ColumnChoice(), labelled)


class _Chooser:
    def __init__(self, names: list[str], rows: Sequence[Sequence[object]], file: str) -> None:
        self.names = names
        self.cells = {name: [row[place] for row in rows] for place, name in enumerate(names)}
        self.file = file
        self.by_folded = {folded(name): name for name in reversed(names)}

    def choose(self, choice: ColumnChoice, labelled: bool) -> Columns:
        text, pair, id = (self._named(role, getattr(choice, role)) for role in ("text", "pair", "id"))
        flags: tuple[str, ...] = ()
        if isinstance(choice.label, tuple):
            flags = tuple(str(self._named("label", name)) for name in choice.label)
            label = None
        else:
            label = self._named("label", choice.label)
        why = "as you said" if choice.text or choice.label else "by name"
        taken = {name for name in (text, pair, label, id, *flags) if name is not None}
        id = id or self._first([IDS], taken)
        if text is None:
            text, pair = self._pair_by_name(taken, pair)
        if label is None and not flags:
            others = taken | {name for name in (text, pair, id) if name is not None}
            label = self._first(LABELS, others, must=labelled)
        if text is None or (label is None and not flags and labelled):
            text, pair, label = self._by_content(text, pair, label, taken | ({id} if id else set()), labelled)
            why = "by what stands in them"
        found = Columns(text=text, pair=pair, label=None if flags else label, flags=flags, id=id)
        return Columns(found.text, found.pair, found.label, found.flags, found.id, self._sentence(found, why))

    def _named(self, role: str, name: str | None) -> str | None:
        if name is None or name in self.names:
            return name
        if folded(name) in self.by_folded:
            return self.by_folded[folded(name)]
        if name.isdecimal() and 1 <= int(name) <= len(self.names):
            return self.names[int(name) - 1]
        near = difflib.get_close_matches(name, self.names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"its columns are {self._listed()}"
        raise DataError(f"has no column {name!r} for the {role}; {hint}", file=self.file)

    def _first(self, groups: Sequence[Sequence[str]], taken: set[str], *, must: bool = True) -> str | None:
        """The one column whose name is in the first group that has any; of several None, unless one must be meant."""
        for group in groups:
            found = [self.by_folded[name] for name in group if name in self.by_folded]
            found = [name for name in found if name not in taken]
            if len(found) > 1 and group is not IDS:
                if not must:
                    return None
                self._unclear(f"{' and '.join(found)} could each be meant")
            if found:
                return found[0]
        return None

    def _pair_by_name(self, taken: set[str], pair: str | None) -> tuple[str | None, str | None]:
        for first, second in PAIRS:
            names = self.by_folded.get(first), self.by_folded.get(second)
            if pair is None and None not in names and not taken & set(names):
                return names
        return self._first(TEXTS, taken), pair

    def _by_content(
        self, text: str | None, pair: str | None, label: str | None, taken: set[str], labelled: bool
    ) -> tuple[str, str | None, str | None]:
        """What names did not say, from the cells: labels are few and short, texts are many and long."""
        free = [name for name in self.names if name not in taken | {text, pair, label}]
        if label is None:
            label = self._label_by_content(free, labelled, alone=text is None)
        free = [name for name in free if name != label]
        if text is None:
            texts = [name for name in free if _is_text(self.cells[name])]
            texts = texts or (free if len(free) == 1 else [])
            if not texts or len(texts) > 2 or (len(texts) == 2 and pair is not None):
                self._unclear("which column is the text cannot be told")
            text, *rest = texts
            pair = rest[0] if rest else pair
        return text, pair, label

    def _label_by_content(self, free: list[str], labelled: bool, *, alone: bool) -> str | None:
        likely = [name for name in free if _is_label(self.cells[name])]
        whole = [name for name in likely if all(_WHOLE.fullmatch(str(cell)) for cell in self.cells[name])]
        numbers = [name for name in free if _are_numbers(self.cells[name])]
        for names in (likely, whole, numbers if not likely else []):
            if len(names) == 1 and not (alone and len(free) == 1):
                return names[0]
        rest = [name for name in free if not _is_text(self.cells[name])]
        if not likely and len(rest) == 1 and len(free) > 1:
            return rest[0]
        if labelled:
            self._unclear("which column is the label cannot be told" if free else "it has no column for a label")
        return None

    def _unclear(self, what: str) -> NoReturn:
        raise DataError(f"{what}; its columns are {self._listed()}: say which with {OPTION}", file=self.file)

    def _listed(self) -> str:
        shown = []
        for name in self.names[:20]:
            example = next((str(cell) for cell in self.cells[name] if cell not in (None, "")), "")
            example = example if len(example) <= 20 else example[:19] + "…"
            shown.append(f"{name} ({example!r})" if example else f"{name} (empty)")
        return ", ".join(shown) + (" …" if len(self.names) > 20 else "")

    def _sentence(self, found: Columns, why: str) -> str:
        parts = [f"text is {_column(found.text)}"]
        if found.pair is not None:
            parts.append(f"its pair is {_column(found.pair)}")
        if found.label is not None:
            parts.append(f"label is {_column(found.label)}")
        if found.flags:
            parts.append(f"labels are the columns {', '.join(found.flags)}")
        used = {found.text, found.pair, found.label, found.id, *found.flags}
        unused = [name for name in self.names if name not in used]
        more = f"; not used: {', '.join(unused)}" if unused else ""
        return f"{', '.join(parts)} ({why}){more}"


def _column(name: str) -> str:
    return name if re.fullmatch(r"column \d+", name) else f"column {name!r}"


def _is_label(cells: Sequence[object]) -> bool:
    """Whether values are few and short."""
    values = [str(cell) for cell in cells if cell not in (None, "") and not isinstance(cell, list | dict)]
    if any(isinstance(cell, list) for cell in cells):
        return all(isinstance(cell, list | None) and len(str(cell)) < 500 for cell in cells)
    few = len(set(values)) <= max(1, len(values) // 2)
    return len(values) >= 0.95 * len(cells) and few and max(map(len, values), default=0) <= _LONGEST_LABEL


def _are_numbers(cells: Sequence[object]) -> bool:
    try:
        return bool(cells) and all(math.isfinite(float(str(cell))) for cell in cells)
    except ValueError:
        return False


def _is_text(cells: Sequence[object]) -> bool:
    """Whether most cells are more than one word."""
    strings = [cell for cell in cells if isinstance(cell, str) and cell]
    wordy = sum(" " in cell.strip() or HAN.search(cell) is not None or len(cell) > _LONGEST_LABEL for cell in strings)
    return bool(strings) and wordy >= 0.5 * len(cells)
