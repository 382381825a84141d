from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from unmask.bundle import Bundle
from unmask.errors import TaskError
from unmask.explain.attention import AttentionMap, attention_map, write_html, write_png
from unmask.models.folder import LoadReport
from unmask.models.init import build_model
from unmask.models.settings import BertSettings
from unmask.text import Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "北", "京"]


@pytest.fixture(scope="module")
def found() -> AttentionMap:
    settings = BertSettings(vocab_size=8, num_layers=2, hidden_size=15, num_heads=3, ffn_size=7, init_std=0.5)
    bundle = Bundle(build_model(settings).eval(), Tokenizer.from_vocab(WORDS), LoadReport(0, 0))
    with pytest.raises(TaskError, match="at most 128"):
        attention_map(bundle, "a " * 200)
    assert attention_map(bundle, "a", "北").tokens == ["[CLS]", "a", "[SEP]", "北", "[SEP]"]
    return attention_map(bundle, "北京 a")


def test_every_layer_and_head_is_there_and_rows_sum_to_one(found: AttentionMap) -> None:
    assert found.tokens == ["[CLS]", "北", "京", "a", "[SEP]"]
    assert found.weights.shape == (2, 3, 5, 5)
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)


def test_the_page_carries_its_data_and_needs_nothing_else(found: AttentionMap, tmp_path: Path) -> None:
    hostile = AttentionMap(["</script><script>alert(1)</script>", *found.tokens[1:]], found.weights)
    path = tmp_path / "page.html"
    write_html(hostile, path, "<b>title</b>")
    page = path.read_text(encoding="utf-8")
    assert "<b>title</b>" not in page
    assert page.count("</script>") == 2
    assert not re.search(r"(src|href)=|@import|https?://(?!www\.w3\.org)", page)
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', page, re.S)[1].replace("<\\/", "</"))
    assert data["tokens"] == hostile.tokens
    np.testing.assert_allclose(np.array(data["weights"]) / 1000, found.weights, atol=6e-4)


def test_one_head_as_a_picture(found: AttentionMap, tmp_path: Path) -> None:
    plain = AttentionMap(["a", "b", "c", "d", "e"], found.weights)  # the default font has no Chinese
    write_png(plain, tmp_path / "head.png", layer=1, head=2)
    assert (tmp_path / "head.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(TaskError, match="2 layers of 3 heads"):
        write_png(plain, tmp_path / "none.png", layer=2, head=0)
