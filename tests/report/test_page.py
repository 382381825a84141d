from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import Element

import html5lib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import report_samples as samples
from unmask.data.examples import Entity
from unmask.errors import FetchError
from unmask.report.outcome import (
    DataFacts,
    Evaluation,
    LabelScore,
    ModelFacts,
    QuestionOutcome,
    Score,
    TaggedOutcome,
    TextOutcome,
)
from unmask.report.page import duration, report_html, write_report

PAGES = sorted(samples.ALL)


def parsed(page: str) -> Element:
    """The page as a browser sees it; any error in the markup raises."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    tree: Element = parser.parse(page)
    return tree


def texts(tree: Element, path: str) -> list[str]:
    return [" ".join("".join(found.itertext()).split()) for found in tree.iterfind(path)]


def name(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_well_formed_and_needs_nothing_else(page: str) -> None:
    html = report_html(samples.ALL[page]())
    tree = parsed(html)
    for element in tree.iter():
        assert name(element) not in {"img", "link", "iframe", "object", "embed", "video", "audio", "base", "image"}
        assert name(element) not in {"use", "form", "a", "foreignObject"}
        for key, _ in element.items():
            assert key not in {"src", "href", "srcset", "action", "style"}
            assert not key.startswith("on")
    (style,) = texts(tree, ".//style")
    assert "url(" not in style
    assert "@import" not in style
    policy = next(meta.get("content", "") for meta in tree.iter("meta") if meta.get("http-equiv"))
    assert policy.startswith("default-src 'none';")


@pytest.mark.parametrize("page", PAGES)
def test_only_our_script_may_run(page: str) -> None:
    html = report_html(samples.ALL[page]())
    (script,) = list(parsed(html).iter("script"))
    digest = base64.b64encode(hashlib.sha256((script.text or "").encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in html or f"script-src 'sha256-{digest}'" in html
    assert "alert" not in (script.text or "")


@pytest.mark.parametrize("page", PAGES)
def test_every_chart_has_a_title_axes_and_a_reading(page: str) -> None:
    tree = parsed(report_html(samples.ALL[page]()))
    for figure in tree.iter("figure"):
        (svg,) = [part for div in figure.iter("div") for part in div if name(part) == "svg"]
        assert svg.get("role") == "img"
        title, desc = list(svg)[:2]
        assert (name(title), name(desc)) == ("title", "desc")
        assert title.text
        assert desc.text
        labels = {word for part in svg.iter() if name(part) == "text" for word in part.get("class", "").split()}
        assert {"axis-x", "axis-y"} <= labels
        (caption,) = texts(figure, "figcaption")
        assert caption.endswith(".")
        for shape in svg.iter():
            numbers = " ".join(value for key, value in shape.items() if key not in ("class", "role"))
            assert not re.search("nan|inf|None", numbers)


def test_charts_of_each_kind_of_task() -> None:
    def titles(page: str) -> list[str]:
        return texts(parsed(report_html(samples.ALL[page]())), ".//figure/h3")

    sure, length = "Can its confidence be trusted?", "Short and long texts"
    training = ["Loss during training", "Scores during training"]
    assert titles("single") == ["What it confuses", sure, length, *training]
    assert titles("forty") == ["What it confuses most", sure, length, *training]
    assert titles("multi") == [sure, length]
    assert titles("regression") == ["What it said and what is so", "How far off", length, *training]
    assert titles("entities") == [sure, length, *training]
    assert titles("questions") == [sure, length, *training]
    assert titles("empty") == []


def test_the_top_says_what_was_measured_on_what() -> None:
    tree = parsed(report_html(samples.single()))
    (header,) = texts(tree, ".//header")
    assert "Made from google-bert/bert-base-uncased, trained on SST-2/train.tsv (67,349 examples)" in header
    assert "measured on SST-2/dev.tsv (872 examples)." in header
    assert "90.5 % 95 % interval 88.7 – 92.3 %" in header
    assert "from 872 examples" in header
    assert "macro F1" in header


def test_mistakes_show_line_labels_probabilities_and_length() -> None:
    evaluation = samples.single()
    worst = max(
        (outcome for outcome in evaluation.outcomes if not outcome.right), key=lambda outcome: outcome.confidence or 0
    )
    found = texts(parsed(report_html(evaluation)), ".//ol[@class='mistakes']/li")
    assert len(found) == 20
    assert f"line {worst.line}" in found[0]
    assert f"{worst.tokens} tokens" in found[0]
    assert str(worst.text)[:200] in found[0]
    assert f"{worst.predicted} {100 * (worst.confidence or 0):.1f} %" in found[0]


def test_answers_are_told_apart() -> None:
    (rows,) = texts(parsed(report_html(samples.questions())), ".//section[@id='answers']")
    assert "with an answer400" in rows
    assert "without an answer200" in rows
    only = replace(samples.questions(), outcomes=tuple(o for o in samples.questions().outcomes if o.answers))
    (rows,) = texts(parsed(report_html(only)), ".//section[@id='answers']")
    assert "nothing is known of the others" in rows


def test_hostile_texts_are_shown_and_nothing_more() -> None:
    tree = parsed(report_html(samples.hostile()))
    whole = "".join(tree.itertext())
    assert whole.count("<script>alert('x')</script><img src=x onerror=alert(1)>") > 10
    assert "{{ 7*7 }}" in whole
    assert "49" not in texts(tree, ".//h1")[0]
    assert not set("\x00\x1b\u202e\ud800") & set(whole)


TEXT = st.text(st.characters(codec=None, categories=None), max_size=30) | st.sampled_from(
    ["</script>", "</style>", "<!--", "]]>", "\ud800", "\x00", "&amp;", '" onload="x', "{{ 1 }}", "\r\n", "\u2028"]
)


@settings(max_examples=60)
@given(TEXT, TEXT, TEXT)
def test_no_text_at_all_breaks_the_page(one: str, two: str, three: str) -> None:
    outcomes = (
        TextOutcome(one, two, three, one, 0.9, ((two, 0.9),), 5, 0.5, 2, 1),
        TaggedOutcome(one + two, (Entity(0, len(one), three),), (), (), 4),
        QuestionOutcome(one, two, (three,), two, 0.9, id=three),
    )
    evaluation = Evaluation(
        "classify",
        "single",
        ModelFacts(one, two),
        (DataFacts("train", three, 1), DataFacts("dev", one, 1, sha256=two)),
        {one: {two: three}},
        {"accuracy": Score(0.5, 0.1, 0.9, 3), one: Score(0.5, 0.1, 0.9, 3)},
        (one, two),
        ((1, 2), (3, 4)),
        (LabelScore(three, 0.5, 0.5, 0.5, 7),),
        outcomes,
        ({"update": 1, "losses": {two: 1.0}}, {"update": 1, "evaluation": {three: 0.5}}),
        (one, two, three),
    )
    html = report_html(evaluation)
    html.encode()
    tree = parsed(html)
    assert len(list(tree.iter("script"))) == 1
    assert not list(tree.iter("img"))


@pytest.mark.parametrize("kind", ["single", "entities", "questions"])
def test_only_what_is_shown_is_in_the_page(kind: str) -> None:
    evaluation = samples.ALL[kind]()
    long = tuple(evaluation.outcomes[i % len(evaluation.outcomes)] for i in range(10_000))
    name = "context" if kind == "questions" else "text"
    long = tuple(replace(outcome, **{name: getattr(outcome, name) + "长文本" * 1000}) for outcome in long)
    assert len(report_html(replace(evaluation, outcomes=long)).encode()) < 500_000


def test_a_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")
    write_report(samples.multi(), path)
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(FetchError, match="there is no folder"):
        write_report(samples.multi(), tmp_path / "none" / "report.html")


def test_a_stored_evaluation_is_drawn_the_same() -> None:
    for page in ("single", "regression", "entities", "questions"):
        evaluation = samples.ALL[page]()
        assert report_html(Evaluation.from_json(evaluation.to_json())) == report_html(evaluation)


def test_many_labels_and_settings_are_cut_and_said() -> None:
    rows = tuple(LabelScore(f"label {number}", 0.5, 0.5, 0.5, 40) for number in range(1000))
    settings = {f"s{number}": number for number in range(1000)}
    html = report_html(replace(samples.multi(), table=rows, settings=settings))
    assert "800 more are not shown" in html
    assert "600 more are not shown" in html
    assert "(1,000)" in html
    assert len(html) < 400_000


@pytest.mark.parametrize(
    ("seconds", "said"), [(12, "12 seconds"), (600, "10 minutes"), (5400, "1.5 hours"), (90, "2 minutes")]
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said
