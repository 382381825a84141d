from __future__ import annotations

import torch

from unmask.models.init import assemble
from unmask.models.inspect import inspect
from unmask.models.settings import bert_preset, transformer_preset


def test_the_table_adds_up_and_says_how() -> None:
    with torch.device("meta"):
        facts = inspect(assemble(bert_preset("base")))
    assert facts.total == 109_482_240
    parts = {part.stored_as: part for part in facts.parts}
    query = parts["encoder.layer.*.attention.self.query"]
    assert (query.tensors, query.parameters) == (24, 12 * (768 * 768 + 768))
    assert query.formula == "12 × (768×768 + 768)"
    assert parts["embeddings.word_embeddings"].formula == "30,522×768"


def test_a_tied_matrix_is_counted_once() -> None:
    settings = transformer_preset("tiny", 1000)
    with torch.device("meta"):
        tied, untied = inspect(assemble(settings)), inspect(assemble(settings.replace(tie="none")))
    assert untied.total - tied.total == 2 * 1000 * 128
