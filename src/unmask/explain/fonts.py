"""Which fonts of this machine can draw a text: the usual one of matplotlib has no Chinese."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from unmask.errors import TaskError

#: Fonts with Chinese that systems come with, the better ones first.
CHINESE = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Noto Serif CJK SC",
    "Noto Serif CJK JP",
    "Heiti SC",
    "SimHei",
    "SimSun",
    "Arial Unicode MS",
    "Droid Sans Fallback",
)


def families_for(text: str) -> list[str]:
    """Font families that together have every character of a text; TaskError if this machine lacks one."""
    missing = set(text)
    chosen = []
    for name, characters in _installed():
        if name == _USUAL or missing & characters:
            chosen.append(name)
        missing -= characters
        if not missing:
            return chosen
    shown = " ".join(sorted(missing)[:10])
    raise TaskError(
        f"no font on this machine can draw {shown} in a PNG; install one (such as {CHINESE[0]}), or write the page "
        "with write_html, which leaves fonts to the browser"
    )


_USUAL = "DejaVu Sans"  # comes with matplotlib
_FILES = re.compile(
    "CJK|Noto ?Sans ?SC|Source ?Han|PingFang|Hiragino|msyh|YaHei|wqy|Heiti|simhei|simsun|Fallback", re.I
)


def _installed() -> Iterator[tuple[str, set[str]]]:
    """The name of each font that is here, with the characters it has."""
    from matplotlib.font_manager import FontProperties, fontManager, get_font

    def characters(name: str) -> set[str]:
        return set(map(chr, get_font(fontManager.findfont(FontProperties(family=[name]))).get_charmap()))

    listed = {font.name for font in fontManager.ttflist}
    for name in (_USUAL, *CHINESE):
        if name in listed:
            yield name, characters(name)
    _list_new_files()
    new = {font.name for font in fontManager.ttflist} - listed
    for name in CHINESE:
        if name in new:
            yield name, characters(name)


def _list_new_files() -> None:
    """Tell matplotlib of fonts that came after it made its list, which it keeps for good."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    listed = {font.fname for font in fontManager.ttflist}
    for file in sorted(findSystemFonts()):
        if file not in listed and _FILES.search(Path(file).name):
            with contextlib.suppress(OSError, RuntimeError):  # a broken font is as good as none
                fontManager.addfont(file)
