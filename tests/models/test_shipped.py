"""The models that come with the package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

import unmask
from unmask.models.catalogue import shipped
from unmask.models.folder import load_model

NAMES = sorted(shipped())


@pytest.mark.parametrize("name", NAMES)
def test_it_is_small_complete_and_has_a_card(name: str) -> None:
    folder = shipped()[name].folder
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert size <= 20_000_000
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert all(word in card for word in ("## Data", "## Training", "## Limits", "licence"))
    model, report = load_model(folder)
    assert report.loaded == report.total
    assert not report.new
    assert {head.kind for head in model.settings.heads} == {"mlm", "nsp"}


def test_masks_are_filled_without_a_network(tmp_path: Path) -> None:
    blocked = "import socket; socket.socket.connect = lambda *a: (_ for _ in ()).throw(OSError('no network'))"
    code = f"{blocked}; from unmask.cli import main; main(['fill-mask', '北京是中国的[MASK]都', '--json'])"
    environment = {"UNMASK_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": "", "PYTHONUTF8": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    guesses = json.loads(done.stdout)["guesses"]
    assert len(guesses) == 5
    assert not any(tmp_path.iterdir())


def test_it_has_learned_from_context() -> None:
    """What comes after a year is 年: single frequencies would say something else, as they do without the context."""
    bundle = unmask.load("mini-zh")
    assert bundle.fill_mask("他出生于1990[MASK]，是一名足球运动员。")[0][0].token == "年"
    assert bundle.fill_mask("[MASK]。")[0][0].token != "年"


@pytest.mark.parametrize("name", NAMES)
def test_transformers_gives_the_same(name: str) -> None:
    bundle = unmask.load(name)
    theirs = transformers.BertForPreTraining.from_pretrained(str(shipped()[name].folder), dtype=torch.float32).eval()
    batch = bundle.batch(["北京是中国的首都。"], ["上海是一座城市。"])
    layout = batch.layout
    with torch.no_grad():
        expected = theirs(
            input_ids=layout.pad(batch.ids),
            token_type_ids=layout.pad(batch.segments),
            attention_mask=layout.key_mask(batch.ids.device).long(),
        )
        encoded = bundle.model(batch)
        tokens = bundle.model.masked_token_logits(encoded.sequence)
        pairs = bundle.model.next_sentence_logits(encoded)
    assert (tokens - expected.prediction_logits[0]).abs().max() < 1e-4
    assert (pairs - expected.seq_relationship_logits).abs().max() < 1e-4
