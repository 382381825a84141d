"""Words of an English text in the manner of the Penn Treebank, as the official score of CMRC 2018 wants them.

The script splits what is not Chinese with nltk's word_tokenize. Here the same rules are written out, so that no package
and no trained sentence splitter is needed: punctuation stands alone, a comma or colon before a digit belongs to the
number, a full stop only at the end is a token, don't is do + n't, she's is she + 's, cannot is can + not.

Where it can differ from nltk: nltk first cuts the text into sentences by a trained model, so that a full stop inside
it may become a token of its own; here the text is one sentence. And piles of marks are cut in a plainer way: every
comma of `,,x` stands alone, and of two marks at one end of a word (`don't'`, `.'em`) only the outer one is cut off.
"""

from __future__ import annotations

import re

#: A quote opens at the beginning and behind a space or bracket, else it closes; the Treebank writes them `` and ''.
_OPENING = re.compile(r"^\"|(?:(?<=^\")|(?<=[ (\[{<«“‘„`]))(?:\"|'')")
_CLOSING = re.compile(r"\"|''")
_ALONE = re.compile(r"``|''|`+|\.{2,}|--|[;@#$%&?!*()\[\]{}<>«»“”‘’„\u2012-\u2015]|[:,](?!\d)")
_LAST_STOP = re.compile(r"(?<=[^.])\.(?=[\])}>\"'»”’\s]*$)")

#: Inside a word, in this order: a quote before it, what is cut off its end, two words written as one.
_LEADING = re.compile(r"^'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)", re.I)
_TRAILING = re.compile(r"(?<=[^'])(?:n't|'(?:ll|re|ve|s|m|d)?)$", re.I)
_JOINED = re.compile(
    r"\b(can)(not)\b|\b(d)('ye)\b|\b(gim|lem)(me)\b|\b(gon|wan)(na)\b|\b(got)(ta)\b|\b(more)('n)\b", re.I
)
_OLD = re.compile(r"^('t)(is|was)\b", re.I)


def split_words(text: str) -> list[str]:
    """The words and punctuation marks of a text."""
    text = _CLOSING.sub(" '' ", _OPENING.sub(" `` ", text))
    text = _LAST_STOP.sub(" . ", text)
    return [piece for word in _ALONE.sub(r" \g<0> ", text).split() for piece in _pieces(word)]


def _pieces(word: str) -> list[str]:
    if word in ("''", "``"):
        return [word]
    word = _LEADING.sub("' ", word)
    word = _TRAILING.sub(r" \g<0>", word)
    word = _OLD.sub(r"\1 \2 ", _JOINED.sub(lambda pair: " " + " ".join(filter(None, pair.groups())) + " ", word))
    return word.split()
