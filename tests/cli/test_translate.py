"""The commands of translation: from files to a model, and from texts to translations."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from unmask.cli.main import run
from unmask.cli.train_translate import expanded
from unmask.tasks.translate_settings import read_translate_settings

TINY = [
    *("--set", "model.layers=1", "--set", "model.hidden=16", "--set", "model.ffn=24", "--set", "model.heads=2"),
    *("--set", "train.evaluate_every=10", "--set", "batch_tokens=200"),
    *("--updates", "20"),
]


def write_files(folder: Path, count: int = 200) -> tuple[Path, Path]:
    """Two files of lines that belong together."""
    draw = random.Random(0)
    words = [[draw.choice("abcdefgh") for _ in range(draw.randint(3, 8))] for _ in range(count)]
    paths = folder / "train.aa", folder / "train.bb"
    paths[0].write_text("".join(" ".join(one) + "\n" for one in words))
    paths[1].write_text("".join(" ".join(reversed(one)) + "\n" for one in words))
    return paths


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translate")
    files = [str(path) for path in write_files(folder)]
    out = folder / "run"
    assert run(["train", "translate", "reverse", "--train", *files, "--dev", *files, "--out", str(out), *TINY]) == 0
    return out


class TestCommands:
    def test_a_run_leaves_model_card_and_curves(self, model: Path) -> None:
        assert "BLEU" in (model / "model" / "README.md").read_text()
        assert (model / "loss.png").is_file()

    def test_lines_in_lines_out(self, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "in.txt"
        file.write_text("a b c\n\nd e\n")
        assert run(["translate", str(model), str(file), "--beam", "1"]) == 0
        lines = capfd.readouterr().out.split("\n")
        assert len(lines) == 4
        assert lines[1] == lines[3] == ""
        assert run(["translate", str(model), str(file), "--beam", "1", "--out", str(tmp_path / "out.txt")]) == 0
        assert (tmp_path / "out.txt").read_text().split("\n") == lines
        assert run(["translate", str(model), str(file), "--out", str(tmp_path / "out.txt")]) == 2

    def test_engines(self, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "in.txt"
        file.write_text("a b c\nd e\n" * 3)
        said = {}
        for engine in ("auto", "torch", "fp32"):
            assert run(["translate", str(model), str(file), "--engine", engine]) == 0
            said[engine] = capfd.readouterr().out
        assert said["auto"] == said["torch"] == said["fp32"]
        assert run(["translate", str(model), str(file), "--engine", "int8"]) == 0
        assert len(capfd.readouterr().out.split("\n")) == 7
        assert run(["translate", str(model), str(file), "--engine", "fast"]) == 2
        assert "auto, torch, fp32, int8" in capfd.readouterr().err

    def test_records(self, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
        assert run(["translate", str(model), "--text", "a b c", "--align", "--best", "3", "--json"]) == 0
        found = json.loads(capfd.readouterr().out)
        assert found["text"] == "a b c"
        assert len(found["best"]) == 3
        assert found["alignment"][0]["source"] == ["a", "b", "c"]
        assert len(found["alignment"][0]["links"]) == len(found["alignment"][0]["target"])

    def test_more_best_ones_than_the_beam_holds(self, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
        assert run(["translate", str(model), "--text", "a", "--best", "3", "--beam", "2"]) == 2
        assert "--best 3 needs a beam at least as wide, given --beam 2" in capfd.readouterr().err

    def test_picture(self, model: Path, tmp_path: Path) -> None:
        picture = tmp_path / "look.svg"
        assert run(["translate", str(model), "--text", "a b c d", "--min-length", "3", "--picture", str(picture)]) == 0
        assert "<svg" in picture.read_text()
        assert run(["translate", str(model), "--text", "a", "--picture", str(tmp_path / "look.txt")]) == 2

    def test_starts_and_draws(self, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
        assert run(["translate", str(model), "--text", "a b c", "--start", "h h"]) == 0
        assert capfd.readouterr().out.startswith("h h")
        assert run(["translate", str(model), "--text", "a b", "--text", "", "--start", "h"]) == 0
        assert capfd.readouterr().out.splitlines()[1] == ""
        assert run(["translate", str(model), "--text", "a b", "--start", "h", "--align"]) == 2
        assert "--align does not go with --start" in capfd.readouterr().err
        drawn = ["translate", str(model), "--text", "a b c", "--sample", "--best", "4", "--seed", "3"]
        assert run([*drawn, "--temperature", "2"]) == 0
        assert len(capfd.readouterr().out.splitlines()) == 4

    def test_measured(self, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        files = [str(path) for path in write_files(tmp_path, 30)]
        assert run(["evaluate", str(model), *files, "--json", "--out", str(tmp_path / "found"), "--beam", "1"]) == 0
        found = json.loads(capfd.readouterr().out)
        assert found["n"] == 30
        assert "tok:13a" in found["bleu_signature"]
        assert len((tmp_path / "found" / "translations.txt").read_text().splitlines()) == 30
        assert run(["evaluate", str(model), *files]) == 0
        assert "perplexity" in capfd.readouterr().out

    def test_measured_with_another_length_penalty(
        self, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """As `translate` does with the same one; on a model that knows little, it changes what is said."""
        files = [str(path) for path in write_files(tmp_path, 30)]
        said = {}
        for penalty in ("0", "5"):
            out = tmp_path / penalty
            assert run(["evaluate", str(model), *files, "--length-penalty", penalty, "--out", str(out)]) == 0
            capfd.readouterr()
            assert run(["translate", str(model), files[0], "--length-penalty", penalty]) == 0
            said[penalty] = (out / "translations.txt").read_text()
            assert said[penalty] == capfd.readouterr().out
        assert len(said["0"]) < len(said["5"])

    @pytest.mark.parametrize("kind", ["marian", "ctranslate2"])
    def test_exported(self, kind: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("transformers" if kind == "marian" else "ctranslate2")
        out = tmp_path / kind
        assert run(["export", str(model), "--to", kind, "--out", str(out)]) == 0
        assert run(["export", str(model), "--to", kind, "--out", str(out)]) == 2
        texts = ["a b c d", "h g f", "b b b a c d"]
        capfd.readouterr()
        assert run(["translate", str(model), *(w for t in texts for w in ("--text", t)), "--beam", "1"]) == 0
        ours = capfd.readouterr().out.splitlines()
        assert (_by_marian if kind == "marian" else _by_ctranslate2)(out, model, texts) == ours

    def test_resume_needs_to_be_said(self, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
        files = [str(path) for path in (model.parent / "train.aa", model.parent / "train.bb")]
        call = ["train", "translate", "reverse", "--train", *files, "--dev", *files, "--out", str(model), *TINY]
        assert run(call) == 2
        assert "--resume" in capfd.readouterr().err
        assert run([*call, "--resume"]) == 0

    @pytest.mark.parametrize(
        ("call", "said"),
        [
            (["translate", "MODEL"], "give a FILE"),
            (["translate", "MODEL", "--text", "a", "--top-k", "3"], "--top-k goes with --sample"),
            (["translate", "MODEL", "nothing.txt"], "nothing.txt: no such file"),
            (["translate", "MODEL", "--text", "a", "--sample", "--beam", "4"], "no beam"),
            (["predict", "MODEL", "--text", "a"], "translator"),
            (["export", "MODEL", "--to", "onnx", "--out", "x"], "exported to marian or ctranslate2"),
            (["export", "MODEL", "--to", "marian", "--out", "x", "--int8"], "--head and --int8 are for encoders"),
            (["evaluate", "MODEL", "a.txt", "b.txt", "c.txt"], "3 files"),
            (["translate", "MODEL", "--text", "a", "--length-penalty", "-1"], "length_penalty"),
            (["evaluate", "mini-zh", "a.tsv", "--length-penalty", "1"], "are for translators, and mini-zh is none"),
            (["train", "translate", "--train", "a", "b"], "--out"),
            (["train", "translate", "nothing", "--train", "a", "b", "--out", "x"], "no such file, nor a config"),
            (["train", "translate", "--train", "no.aa", "no.bb", "--out", "x"], "no such file"),
            (["train", "translate", "--arch", "rnn", "--train", "a", "b", "--out", "x"], "arch"),
        ],
    )
    def test_mistakes(self, call: list[str], said: str, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
        assert run([str(model) if word == "MODEL" else word for word in call]) == 2
        error = capfd.readouterr().err
        assert said in error
        assert "Traceback" not in error
        assert not Path("x").exists()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_two_processes_learn_the_same(engine: str, tmp_path: Path) -> None:
    files = [str(path) for path in write_files(tmp_path)]
    shared = ["train", "translate", "reverse", "--train", *files, "--dev", *files, *TINY]
    shared += ["--set", "train.accumulate=2", "--set", "train.log_every=1", "--set", f"train.engine={engine}"]
    assert run([*shared, "--out", str(tmp_path / "one")]) == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "unmask"]
    subprocess.run([*torchrun, *shared, "--out", str(tmp_path / "two")], check=True, timeout=300)
    texts = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("one", "two")]
    one, two = ([json.loads(line) for line in text.splitlines()] for text in texts)
    assert len(one) == len(two) > 20
    for mine, theirs in zip(one, two, strict=True):
        kind = "losses" if "losses" in mine else "evaluation"
        assert theirs[kind]["loss"] == pytest.approx(mine[kind]["loss"], rel=1e-5)


def _by_marian(folder: Path, model: Path, texts: list[str]) -> list[str]:
    import torch
    from transformers import MarianMTModel, PreTrainedTokenizerFast

    theirs = MarianMTModel.from_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    said = []
    for text in texts:
        ids = [*tokenizer.encode(text, add_special_tokens=False), theirs.config.eos_token_id]
        limit = 2 * len(ids) + 20
        bad = [[one] for one in range(5) if one not in (theirs.config.eos_token_id,)]
        out = theirs.generate(
            torch.tensor([ids]), num_beams=1, do_sample=False, max_new_tokens=limit, bad_words_ids=bad
        )
        said.append(tokenizer.decode(out[0], skip_special_tokens=True).strip())
    return said


def _by_ctranslate2(folder: Path, model: Path, texts: list[str]) -> list[str]:
    import ctranslate2

    from unmask.text.tokenizer import Tokenizer

    theirs = ctranslate2.Translator(str(folder), compute_type="float32")
    tokenizer = Tokenizer.from_folder(model / "model")
    said = []
    for text in texts:
        encoding = tokenizer.encode(text, special_tokens=False)
        found = theirs.translate_batch(
            [tokenizer.tokens(encoding.ids)],
            beam_size=1,
            max_decoding_length=2 * len(encoding) + 22,
            disable_unk=True,
            suppress_sequences=[["[PAD]"], ["[CLS]"], ["[MASK]"]],
        )
        said.append(tokenizer.decode([tokenizer.id(token) for token in found[0].hypotheses[0]]).strip())
    return said


def test_options_may_be_followed_by_several_names() -> None:
    given = ["c.toml", "--train", "a", "b", "--dev", "d", "--out", "o", "--set", "x=1", "--train=z"]
    said = ["c.toml", "--train", "a", "--train", "b", "--dev", "d", "--out", "o", "--set", "x=1", "--train=z"]
    assert expanded(given) == said


@pytest.mark.parametrize("name", ["multi30k-tiny", "tatoeba-es", "tatoeba-zh", "transformer-base", "reverse"])
def test_shipped_configs_are_whole(name: str) -> None:
    settings = read_translate_settings(name)
    built = settings.build(1000, 1000)
    assert built.model == "transformer"
    assert settings.loop.updates >= 600


def test_the_base_model_is_the_papers() -> None:
    settings = read_translate_settings("transformer-base").build(37_000, 37_000)
    from unmask.models.bert import num_parameters
    from unmask.models.init import build_model

    assert 60e6 < num_parameters(build_model(settings, 0)) < 66e6
