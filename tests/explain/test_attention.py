from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from unmask.bundle import Bundle
from unmask.errors import TaskError
from unmask.explain import fonts
from unmask.explain.attention import AttentionMap, attention_map, write_html, write_png
from unmask.models.folder import LoadReport
from unmask.models.init import build_model
from unmask.models.settings import BertSettings
from unmask.models.surgery import remove_heads
from unmask.text import Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "北", "京"]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    settings = BertSettings(vocab_size=8, num_layers=2, hidden_size=15, num_heads=3, ffn_size=7, init_std=0.5)
    return Bundle(build_model(settings).eval(), Tokenizer.from_vocab(WORDS), LoadReport(0, 0))


@pytest.fixture(scope="module")
def found(bundle: Bundle) -> AttentionMap:
    return attention_map(bundle, "北京 a")


def data_of(page: str) -> dict[str, list[object]]:
    found = re.search(r'type="application/json">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, list[object]] = json.loads(found[1])
    return data


def test_pairs_and_long_texts(bundle: Bundle) -> None:
    assert attention_map(bundle, "a", "北").tokens == ["[CLS]", "a", "[SEP]", "北", "[SEP]"]
    with pytest.raises(TaskError, match="at most 128"):
        attention_map(bundle, "a " * 200)


def test_every_layer_and_head_is_there_and_rows_sum_to_one(found: AttentionMap) -> None:
    assert found.tokens == ["[CLS]", "北", "京", "a", "[SEP]"]
    assert [layer.shape for layer in found.weights] == [(3, 5, 5), (3, 5, 5)]
    for layer in found.weights:
        np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-5)


def test_layers_may_have_different_numbers_of_heads(bundle: Bundle, tmp_path: Path) -> None:
    pruned = Bundle(remove_heads(bundle.model, {0: [0, 2]}), bundle.tokenizer)
    found = attention_map(pruned, "a a")
    assert [len(layer) for layer in found.weights] == [1, 3]
    write_html(found, tmp_path / "page.html", "title")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert [len(layer) for layer in data_of(page)["weights"]] == [1, 3]
    write_png(found, tmp_path / "head.png", layer=1, head=2)
    with pytest.raises(TaskError, match="no head 1 in layer 0: they go from 0 to 0"):
        write_png(found, tmp_path / "none.png", layer=0, head=1)


def test_the_page_carries_its_data_and_needs_nothing_else(found: AttentionMap, tmp_path: Path) -> None:
    hostile = AttentionMap(["</script><!--<script>alert(1)</script>", *found.tokens[1:]], found.weights)
    path = tmp_path / "page.html"
    write_html(hostile, path, "<b>title</b>")
    page = path.read_text(encoding="utf-8")
    assert "<b>title</b>" not in page
    assert page.count("</script>") == 2
    assert "<!--" not in page
    assert not re.search(r"(src|href)=|@import|https?://(?!www\.w3\.org)", page)
    data = data_of(page)
    assert data["tokens"] == hostile.tokens
    np.testing.assert_allclose(np.array(data["weights"]) / 1000, found.weights, atol=6e-4)


@pytest.mark.parametrize("title", ["{{data}}", "{{title}}", "\\g<1> \\1"])
def test_a_title_is_only_a_title(found: AttentionMap, tmp_path: Path, title: str) -> None:
    hostile = AttentionMap(["{{title}}", *found.tokens[1:]], found.weights)
    write_html(hostile, tmp_path / "page.html", title)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"<h1>{html.escape(title)}</h1>" in page
    assert data_of(page)["tokens"][0] == "{{title}}"
    assert page.count('"tokens"') == 1


def test_paths_may_be_strings(found: AttentionMap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_html(found, "page.html", "half a character \ud800")
    plain = AttentionMap(["a", "b", "c", "d", "e"], found.weights)
    write_png(plain, "head.png", layer=0, head=0)
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "head.png"}


def test_the_page_says_how_it_is_read_on_any_screen(found: AttentionMap, tmp_path: Path) -> None:
    write_html(found, tmp_path / "page.html", "title")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "count from 0" in page
    assert "Point at or tap a row" in page
    assert '"pointerover", "click"' in page
    assert re.search(r"#names \{[^}]*position: sticky", page)


def test_one_head_as_a_picture(found: AttentionMap, tmp_path: Path) -> None:
    odd = AttentionMap(["$", "$x_$", "c" * 300, "<0xB2>", "[SEP]"], found.weights)
    write_png(odd, tmp_path / "head.png", layer=1, head=2)
    assert (tmp_path / "head.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(TaskError, match="no layer 2: they go from 0 to 1"):
        write_png(odd, tmp_path / "none.png", layer=2, head=0)
    with pytest.raises(TaskError, match="no layer -1"):
        write_png(odd, tmp_path / "none.png", layer=-1, head=0)


def test_chinese_is_drawn_if_a_font_can(found: AttentionMap, tmp_path: Path) -> None:
    try:
        families = fonts.families_for("北京a")
    except TaskError:
        pytest.skip("no font with Chinese is installed")
    assert families[0] == "DejaVu Sans"
    assert families[1] in fonts.CHINESE
    write_png(found, tmp_path / "head.png", layer=0, head=0)  # a glyph that is missing would be a warning, so an error
    assert (tmp_path / "head.png").exists()


def test_without_a_font_the_page_is_pointed_to(
    found: AttentionMap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "_installed", lambda: iter([("DejaVu Sans", set("[]CLSEPa"))]))
    with pytest.raises(TaskError, match="can draw 京 北 in a PNG.*write_html"):
        write_png(found, tmp_path / "head.png", layer=0, head=0)
    assert list(tmp_path.iterdir()) == []
