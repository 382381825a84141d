"""Which engine runs a model, and what is said about it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import unmask
from unmask.engine import choose as choosing
from unmask.engine import compile as compiling
from unmask.engine.choose import Choice, choose, kernels
from unmask.engine.encoder import FastEncoder
from unmask.errors import TaskError
from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.models.settings import bert_preset

needs_kernels = pytest.mark.skipif(kernels() is None, reason="no C compiler here")


@pytest.fixture
def model() -> Bert:
    built = build_model(bert_preset("tiny", vocab_size=60))
    assert isinstance(built, Bert)
    return built.eval()


@pytest.fixture
def afresh() -> Iterator[None]:
    """Nothing compiled, loaded or measured yet, before and after."""
    cached = (compiling.native, choosing.kernels, choosing.speeds)
    for one in cached:
        one.cache_clear()
    yield
    for one in cached:
        one.cache_clear()


def speeds(monkeypatch: pytest.MonkeyPatch, **found: float) -> None:
    monkeypatch.setattr(choosing, "speeds", lambda: found)


@needs_kernels
def test_the_fastest_that_loses_nothing(model: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, torch=100.0, fp32=150.0, int8=400.0)
    assert choose(model, "auto") == Choice("fp32")
    assert choose(model, "fp32") == Choice("fp32")
    assert choose(model, "int8") == Choice("int8")
    assert choose(model, "torch") == Choice("torch")


@needs_kernels
def test_int8_that_does_not_pay(model: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, torch=100.0, fp32=150.0, int8=140.0)
    assert str(choose(model, "int8")) == "engine fp32 (int8 is no faster here: 140 tokens/s against 150)"


@needs_kernels
def test_a_processor_without_int8(model: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, torch=100.0, fp32=150.0)
    assert str(choose(model, "int8")) == "engine fp32 (int8 needs a processor with AVX-512 VNNI)"


@needs_kernels
def test_kernels_that_do_not_pay(model: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, torch=100.0, fp32=90.0)
    assert str(choose(model, "auto")) == "engine torch (the kernels are no faster here: 90 tokens/s against 100)"


@needs_kernels
def test_the_measurement_finds_something() -> None:
    assert min(choosing.speeds().values()) > 0


def test_no_compiler(model: Bert, monkeypatch: pytest.MonkeyPatch, afresh: None) -> None:
    monkeypatch.setattr(compiling, "find_compiler", lambda: None)
    chosen = choose(model, "int8")
    assert chosen.engine == "torch"
    assert "no C compiler" in chosen.why


def test_kernels_switched_off(model: Bert, monkeypatch: pytest.MonkeyPatch, afresh: None) -> None:
    monkeypatch.setenv("UNMASK_NATIVE", "0")
    assert choose(model, "auto") == Choice("torch", "UNMASK_NATIVE=0")


def test_a_compiler_that_fails(model: Bert, monkeypatch: pytest.MonkeyPatch, afresh: None, tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'unknown option' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path / "home"))
    chosen = choose(model, "fp32")
    assert chosen.engine == "torch"
    assert "unknown option" in chosen.why
    assert list((tmp_path / "home" / "kernels").iterdir()) == []


def test_a_home_that_cannot_be_written(
    model: Bert, monkeypatch: pytest.MonkeyPatch, afresh: None, tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path / "home"))
    assert choose(model, "fp32").engine == "torch"


@needs_kernels
def test_compiled_once(monkeypatch: pytest.MonkeyPatch, afresh: None, tmp_path: Path) -> None:
    monkeypatch.setenv("UNMASK_HOME", str(tmp_path))
    assert compiling.native().code is not None
    compiled = list((tmp_path / "kernels").iterdir())
    assert len(compiled) == 1
    compiling.native.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert compiling.native().code is not None


def test_an_unknown_engine(model: Bert) -> None:
    with pytest.raises(TaskError, match="auto, torch, fp32, int8; given 'fast'"):
        choose(model, "fast")  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="given 'fast'"):
        unmask.load("minilm", engine="fast")  # type: ignore[arg-type]


TEXTS = ["a small test", "another one, which is somewhat longer than the first", ""]


@needs_kernels
def test_a_bundle_turned_for_good(minilm_folder: Path, tmp_path: Path) -> None:
    plain, fast = unmask.load(minilm_folder, engine="torch"), unmask.load(minilm_folder, engine="fp32")
    assert isinstance(fast.encoder, FastEncoder)
    assert abs(plain.embed(TEXTS) - fast.embed(TEXTS)).max() < 1e-5
    with pytest.raises(TaskError, match="cannot be saved"):
        fast.save(tmp_path / "x")
    with pytest.raises(TaskError, match="stays on the CPU"):
        fast.to("cpu")
    assert not (tmp_path / "x").exists()


@needs_kernels
def test_a_bundle_stays_what_it_was_and_notices_new_weights(
    minilm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds(monkeypatch, torch=1.0, fp32=2.0)
    bundle, plain = unmask.load(minilm_folder), unmask.load(minilm_folder, engine="torch")
    before = bundle.embed(TEXTS)
    assert abs(before - plain.embed(TEXTS)).max() < 1e-5
    assert not isinstance(bundle.encoder, FastEncoder)
    for one in (bundle, plain):
        with torch.no_grad():
            one.encoder.get_parameter("stack.blocks.3.ffn.inner.weight").mul_(1.5)
    after = bundle.embed(TEXTS)
    assert abs(after - before).max() > 1e-3
    assert abs(after - plain.embed(TEXTS)).max() < 1e-5


@needs_kernels
def test_whoever_watches_inside_gets_torch(minilm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds(monkeypatch, torch=1.0, fp32=2.0)
    bundle = unmask.load(minilm_folder)
    seen: list[str] = []
    handle = bundle.encoder.stack.register_forward_hook(lambda *_: seen.append("called"))
    bundle.embed(TEXTS)
    handle.remove()
    assert seen
    seen.clear()
    bundle.embed(TEXTS)
    assert not seen


@needs_kernels
def test_torch_gets_its_threads_back(minilm_folder: Path) -> None:
    before = torch.get_num_threads()
    unmask.load(minilm_folder, engine="fp32").embed(TEXTS)
    assert torch.get_num_threads() == before


FORKED = """
import os, sys, unmask
bundle = unmask.load(sys.argv[1], engine="fp32")
texts = ["some text"] * 40
expected = bundle.embed(texts)
child = os.fork()
if not child:
    os._exit(0 if (bundle.embed(texts) == expected).all() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@needs_kernels
def test_a_process_that_was_forked_off(minilm_folder: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(minilm_folder)]
    subprocess.run(command, check=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "2"})
