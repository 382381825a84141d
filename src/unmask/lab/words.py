"""Sentences in English and Chinese."""

from __future__ import annotations

from typing import Literal, NamedTuple

Language = Literal["en", "zh"]


class Text(NamedTuple):
    """The same said twice."""

    en: str
    zh: str

    def said(self, language: Language) -> str:
        """In one of the languages."""
        return self.zh if language == "zh" else self.en


def both(text: str) -> Text:
    """What is the same in both: a name, a number, a formula."""
    return Text(text, text)
