"""Strings to ids: tokenizers that are exact, training of vocabularies, words, and reports. Knows no tensors."""

from unmask.text.encoding import Encoding
from unmask.text.files import read_lines
from unmask.text.report import TokenizerReport, report
from unmask.text.tokenizer import Tokenizer
from unmask.text.training import Progress, VocabularySettings, train_tokenizer
from unmask.text.words import segment, whole_words

__all__ = [
    "Encoding",
    "Progress",
    "Tokenizer",
    "TokenizerReport",
    "VocabularySettings",
    "read_lines",
    "report",
    "segment",
    "train_tokenizer",
    "whole_words",
]
