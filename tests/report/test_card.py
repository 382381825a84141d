from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import report_samples as samples
from unmask.report.card import model_card
from unmask.report.outcome import ModelFacts

TAGS = {"classify": "text-classification", "tag": "token-classification", "qa": "question-answering"}


def front(card: str) -> dict[str, Any]:
    start, matter, _ = card.split("---\n", 2)
    assert start == ""
    found: dict[str, Any] = yaml.safe_load(matter)
    return found


@pytest.mark.parametrize("name", sorted(samples.ALL))
def test_the_front_matter_is_yaml(name: str) -> None:
    evaluation = samples.ALL[name]()
    card = model_card(evaluation)
    card.encode()
    matter = front(card)
    assert matter["pipeline_tag"] == TAGS[evaluation.task]
    assert len(matter["metrics"]) == len(evaluation.scores)
    assert matter.get("language", []) == list(evaluation.model.language)
    if name not in ("hostile", "regression"):
        assert matter["license"] == "unknown"


def test_hubs_find_the_scores() -> None:
    matter = front(model_card(samples.regression()))
    assert matter["license"] == "apache-2.0"
    assert matter["base_model"] == "google-bert/bert-base-uncased"
    (index,) = matter["model-index"]
    (result,) = index["results"]
    assert {metric["type"]: metric["value"] for metric in result["metrics"]} == {
        "pearson": 0.893,
        "spearman": 0.889,
        "mse": 0.41,
    }
    assert "model-index" not in front(model_card(samples.empty()))


def test_the_card_tells_what_the_report_tells() -> None:
    card = model_card(samples.single())
    assert "# sst2-bert-base\n" in card
    assert "| accuracy | 90.5\u00a0% | 88.7 – 92.3\u00a0% | 872 |" in card
    assert "Measured on SST-2/dev.tsv (872 examples)." in card
    assert "- The dev set of 872 measures accuracy to ±1.8 points." in card
    assert "| train | SST-2/train.tsv | 67,349 |" in card
    assert "Trained in 1.5 hours." in card
    (settings,) = re.findall(r"```json\n(.*?)\n```", card, re.S)
    assert json.loads(settings) == samples.SETTINGS
    assert "新闻分类" in model_card(samples.topics())
    assert "None" not in model_card(samples.empty())


def test_a_head_that_transformers_lacks_gets_no_code_of_theirs() -> None:
    evaluation = samples.single()
    assert "pipeline(" in model_card(evaluation)
    card = model_card(replace(evaluation, model=replace(evaluation.model, own_head=True)))
    assert "pipeline(" not in card
    assert "has no head like this one" in card


def test_notes_are_whole_sentences() -> None:
    note = "long texts: " + "windows " * 40 + "to the end"
    assert note in model_card(replace(samples.single(), notes=(note,)))


def test_hostile_names_stay_text() -> None:
    card = model_card(samples.hostile())
    _, body = card.split("\n---\n", 1)
    prose = re.sub(r"(`{3,})json\n.*?\n\1\n", "", body, flags=re.S)
    assert "<" not in prose
    assert not set("\x00\x1b\ud800\u202e") & set(card)
    rows = [line for line in prose.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (5, 6) for row in rows)
    tricky = replace(
        samples.empty(), settings={"a": "```\n# not a heading"}, model=ModelFacts("a|b\n# c `d` *e* [f](g)")
    )
    card = model_card(tricky)
    assert "# a\\|b # c \\`d\\` \\*e\\* \\[f\\](g)\n" in card
    assert "````json" in card


def test_the_code_of_the_cards_runs_in_transformers(tmp_path: Path) -> None:
    script = ["import os, torch, transformers as t", "torch.manual_seed(0)"]
    script.append(
        'words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "text", "who", "?", "that", "tells", "."]'
    )
    script.append('open("vocab.txt", "w").write("\\n".join(words))')
    script.append("small = dict(vocab_size=12, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)")
    heads = {
        "single": ("SequenceClassification", 2),
        "multi": ("SequenceClassification", 4),
        "regression": ("SequenceClassification", 1),
        "entities": ("TokenClassification", 3),
        "questions": ("QuestionAnswering", 2),
    }
    for name, (head, labels) in heads.items():
        (tmp_path / name).mkdir()
        (code,) = re.findall(r"```python\n(.*?)```", model_card(samples.ALL[name]()), re.S)
        (tmp_path / name / "card.py").write_text(code, encoding="utf-8")
        config = f"t.BertConfig(**small, intermediate_size=8, num_labels={labels})"
        script.append(f't.BertFor{head}({config}).save_pretrained("{name}")')
        script.append(f't.BertTokenizer("vocab.txt").save_pretrained("{name}")')
        script.append(f'os.chdir("{name}"); print("#", "{name}"); exec(open("card.py").read()); os.chdir("..")')
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = dict(part.split("\n", 1) for part in done.stdout.split("# ")[1:])
    assert re.search(r"\[\{'label': 'LABEL_\d', 'score': 0\.\d+\}\]", said["single"])
    assert said["multi"].count("LABEL_") == 4
    assert set(said) == set(heads)
