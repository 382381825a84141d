"""Measuring: who is fastest is found, likeness is told, and the command says it all."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import unmask
from unmask.bench.contestants import Ids, Ours, Peer, Rows
from unmask.bench.measure import best_batch_size, latency, throughput
from unmask.bench.peers import installed, peers_of
from unmask.bench.run import Plan, bench
from unmask.bench.texts import mixed_texts, text_of
from unmask.cli.main import app
from unmask.errors import TaskError
from unmask.models.init import build_model
from unmask.models.settings import bert_preset
from unmask.text.tokenizer import Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three", "four", "five"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocab(WORDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    place = tmp_path_factory.mktemp("model") / "tiny"
    unmask.Bundle(build_model(bert_preset("tiny", vocab_size=len(WORDS))), tokenizer).save(place)
    return place


def padded(seconds_a_row: float, factor: float = 1.0) -> Peer:
    """A peer that takes so long for each row and once for each batch, and whose vectors are the ids."""

    def run(given: np.ndarray, mask: np.ndarray) -> Rows:
        time.sleep(seconds_a_row * (len(given) + 2))
        return np.repeat(given[:, :, None], 2, axis=2).astype(np.float32) * np.array([factor, 1.0], np.float32)

    return Peer(f"peer {factor}", run)


IDS: Ids = [[2, 5, 3], [2, 5, 6, 7, 3], [2, 3], [2, 8, 3]]


def test_a_peer_pads_and_gives_back_in_order() -> None:
    found = padded(0.0).vectors(IDS)
    assert [rows[:, 0].tolist() for rows in found] == [list(map(float, ids)) for ids in IDS]


def test_the_best_batch_size_is_found() -> None:
    peer = padded(0.002)
    best_batch_size(peer, IDS, sizes=(1, 2, 4))
    assert peer.batch_size == 4  # each batch costs extra, so one is best


def test_ours_keeps_the_order(folder: Path) -> None:
    one = Ours(str(folder), "torch")
    together = one.vectors(IDS)
    for ids, rows in zip(IDS, together, strict=True):
        np.testing.assert_allclose(one.vectors([ids])[0], rows, atol=1e-6)


def test_likeness_is_measured_against_the_first(tokenizer: Tokenizer) -> None:
    texts = mixed_texts(tokenizer, 6)
    first, second, third = throughput([padded(0.0), padded(0.0, 1.5), padded(0.0, -1.0)], tokenizer, texts, rounds=1)
    assert first.cosine == pytest.approx(1.0)
    assert first.difference == 0.0
    assert second.cosine == pytest.approx(2.5 / (2 * 3.25) ** 0.5, abs=1e-6)
    assert third.cosine == pytest.approx(0.0, abs=1e-9)
    assert first.texts_per_second > 0


def test_the_slower_one_is_found_slower() -> None:
    found = latency([padded(0.0), padded(0.003, 2.0)], [2, 5, 3], repeats=5)
    assert found["peer 2.0"]["p50"] > found["peer 1.0"]["p50"] + 2
    assert found["peer 2.0"]["p99"] >= found["peer 2.0"]["p50"]


def test_texts_to_measure_with(tokenizer: Tokenizer) -> None:
    texts = mixed_texts(tokenizer, 50)
    assert texts == mixed_texts(tokenizer, 50)
    lengths = sorted(len(text.split()) for text in texts)
    assert lengths[-1] > 3 * lengths[0]
    for size in (3, 16, 128):
        ids = text_of(tokenizer, size, ["one two", "three"])
        assert len(ids) == size
        assert (ids[0], ids[-1]) == (2, 3)


def test_every_peer_that_is_installed_says_the_same(folder: Path) -> None:
    names = [name for name in installed() if name != "openvino"]
    bundle = unmask.load(folder, engine="torch")
    expected = Ours(str(folder), "torch").vectors(IDS)
    environment = dict(os.environ)
    with peers_of(bundle, names, IDS, 1) as peers:
        assert {peer.name.split()[0].lower() for peer in peers} >= {"transformers"} & set(names)
        for peer in peers:
            tolerance = 0.2 if "int8" in peer.name else 1e-4
            for found, rows in zip(peer.vectors(IDS), expected, strict=True):
                assert np.abs(found - rows).max() < tolerance, peer.name
    kept = {name for name in environment | dict(os.environ) if environment.get(name) != os.environ.get(name)}
    assert not kept & {"HF_HUB_OFFLINE", "UNMASK_OFFLINE", "CI"}


def test_the_command(folder: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("one two three\nfour\n\nfive five five five\n")
    command = ["bench", str(folder), "--texts", str(texts), "--peers", "none", "--rounds", "1", "--repeats", "5"]
    command += ["--lengths", "8", "--out", str(tmp_path / "out"), "--threads", "1"]
    said = CliRunner().invoke(app, [*command, "--json"])
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)
    assert found["texts"] == 3
    assert found["contestants"][0]["name"] == "unmask torch"
    assert set(found["contestants"][0]["latency"]["8"]) == {"p50", "p99"}
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == found
    assert "<svg" in (tmp_path / "out" / "bench.svg").read_text()
    shown = CliRunner().invoke(app, [*command, "--overwrite"])
    assert shown.exit_code == 0
    assert "texts/s" in shown.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "tensorrt"], "known are transformers"),
        (["--engines", "fast"], "given 'fast'"),
        (["--engines", ","], "at least one"),
        (["--lengths", "many"], "given 'many'"),
        (["--lengths", "2"], "at least 3"),
    ],
)
def test_wrong_words(folder: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        CliRunner().invoke(app, ["bench", str(folder), *arguments], catch_exceptions=False)


def test_an_empty_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(Exception, match="has no text in it"):
        CliRunner().invoke(app, ["bench", str(folder), "--texts", str(tmp_path / "empty.txt")], catch_exceptions=False)


def test_a_text_too_long(folder: Path) -> None:
    with pytest.raises(TaskError, match="reads 512"):
        bench(str(folder), ["one " * 600], Plan(engines=("torch",)))
