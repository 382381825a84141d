"""`unmask train pretrain`, from text to a model that others read."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import train_toy as toy
from unmask.cli.main import run as unmask
from unmask.data.corpus.store import Corpus
from unmask.data.pretraining import Examples
from unmask.models.bert import Bert
from unmask.models.folder import load_model
from unmask.tasks.pretrain import Pretraining
from unmask.tasks.pretrain_settings import read_pretrain_settings
from unmask.text import Tokenizer
from unmask.train.checkpoint import newest_checkpoint

command, digest, environment, flags, interrupted, write_text = (
    toy.command,
    toy.digest,
    toy.environment,
    toy.flags,
    toy.interrupted,
    toy.write_text,
)

DEMO = "bert-tiny-demo"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_text(tmp_path_factory.mktemp("text") / "text.txt"))


@pytest.fixture(scope="module")
def done(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    run = tmp_path_factory.mktemp("runs") / "done"
    assert pretrain(run, "--text", text, *flags()) == 0
    return run


@pytest.fixture
def copy(done: Path, tmp_path: Path) -> Path:
    """A finished run that may be spoilt."""
    return Path(shutil.copytree(done, tmp_path / "copy"))


def pretrain(out: Path, *arguments: object, config: object = DEMO) -> int:
    return unmask(["train", "pretrain", str(config), "--out", str(out), *map(str, arguments)])


def model_of(run: Path) -> Bert:
    model, report = load_model(run / "model")
    assert isinstance(model, Bert)
    assert not report.new
    return model


def refused(capsys: Captured, *words: str) -> None:
    """What was said is one line with these words."""
    out, err = capsys.readouterr()
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("unmask: ")
    for word in words:
        assert word in last
    assert "Traceback" not in err


# A run


def test_the_folder_of_a_run(done: Path) -> None:
    names = {path.name for path in done.iterdir()}
    files = {"environment.json", "loss.png", "masking.json", "metrics.jsonl", "settings.json", "times.jsonl"}
    assert names == files | {"best", "checkpoint-10", "checkpoint-12", "data", "model", "tensorboard"}
    model = {path.name for path in (done / "model").iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json", "vocab.txt"} <= model
    card = (done / "model" / "README.md").read_text(encoding="utf-8")
    assert "# BERT-tiny, pre-trained with unmask" in card
    assert "text.txt" in card
    assert "| mlm_loss |" in card
    masking = json.loads((done / "masking.json").read_text(encoding="utf-8"))
    assert masking


def test_the_model_is_what_transformers_reads(done: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs, info = transformers.BertForPreTraining.from_pretrained(done / "model", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    settings = read_pretrain_settings(str(done / "settings.json"))
    corpus = Corpus.open(done / "data" / "corpus")
    ours = model_of(done)
    task = Pretraining("nsp")
    for number in range(3):
        batch = Examples(corpus, settings.examples(settings.stages[0]))[number]
        layout = batch.batch.layout
        labels = torch.full_like(batch.batch.ids, -100)
        labels[batch.masked_rows] = batch.targets
        with torch.no_grad():
            sums, counts = task.sums(ours, batch), task.counts(batch)
            found = theirs.eval()(
                input_ids=layout.pad(batch.batch.ids),
                token_type_ids=layout.pad(batch.batch.segments),
                attention_mask=layout.key_mask(labels.device).long(),
                labels=layout.pad(labels, -100),
                next_sentence_label=batch.pair_labels,
            )
        mean = sum(float(sums[name]) / counts[name] for name in sums)
        assert float(found.loss) == pytest.approx(mean, abs=1e-5)


def test_the_model_fills_masks(done: Path, capsys: Captured) -> None:
    assert (
        unmask(["fill-mask", "-m", str(done / "model"), "--json", "The cat [MASK] bread.", "北京是中国的[MASK]都"]) == 0
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 2


def test_json_says_what_was_measured_of_the_model_that_is_kept(copy: Path, capsys: Captured) -> None:
    assert pretrain(copy, "--resume", "--json", config=copy / "settings.json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["model"] == str(copy / "model")
    assert {"mlm_loss", "perplexity", "mlm_accuracy", "nsp_loss", "nsp_accuracy"} == set(said["evaluation"])
    position = json.loads((copy / "best" / "position.json").read_text(encoding="utf-8"))
    assert said["evaluation"]["mlm_loss"] == pytest.approx(position["best"], rel=1e-4)


def test_a_pipe_gets_plain_lines(text: str, tmp_path: Path, capsys: Captured) -> None:
    assert pretrain(tmp_path / "run", "--text", text, *flags(4)) == 0
    out, err = capsys.readouterr()
    assert str(tmp_path / "run" / "model") in out
    lines = err.splitlines()
    assert lines[:3] == ["run: 4 updates", "learning a vocabulary of 200 tokens", "building the corpus"]
    assert "\x1b" not in err + out
    assert any(line.startswith("update 1/4  loss mlm ") for line in lines)
    assert any(line.startswith("held out, update 4: mlm_loss ") for line in lines)
    assert "chosen, of ordinary tokens" in err


# Going on


@pytest.fixture(scope="module")
def long(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "long"
    assert pretrain(run, "--text", text, *flags(120, train__save_every=1000, train__evaluate_every=50)) == 0
    return run


@pytest.mark.slow  # test_crash.py stops programs in every run of the tests
def test_stopped_from_outside_it_goes_on_to_the_same_bits(text: str, long: Path, tmp_path: Path) -> None:
    given = ["--text", text, *flags(120, train__save_every=1000, train__evaluate_every=50)]
    run = tmp_path / "run"
    ended = interrupted(signal.SIGTERM, run, 15, DEMO, "--out", run, *given)
    assert ended.returncode == 143, ended.stderr
    assert ended.stderr.splitlines()[-1] == "unmask: stopped"
    first = newest_checkpoint(run)
    assert first is not None
    ended = interrupted(signal.SIGINT, run, 60, DEMO, "--out", run, *given, "--resume")
    assert ended.returncode == 130, ended.stderr
    assert "going on after update" in ended.stderr
    assert newest_checkpoint(run) != first
    assert not (run / "model").exists()
    assert pretrain(run, "--resume", "--threads", 1, config=run / "settings.json") == 0
    assert digest(run, 120) == digest(long, 120)


def test_another_run_is_not_written_over(copy: Path, text: str, capsys: Captured) -> None:
    assert pretrain(copy, "--text", text, *flags()) == 2
    refused(capsys, "a run is there already", "--resume")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["--set", "seed=5"], ["had another seed (0, now 5)"]),
        (["--set", "train.optimizer.learning_rate=0.5"], ["train.optimizer.learning_rate (0.002, now 0.5)"]),
        (["--set", 'model.other={"num_layers": 2}'], ["had another model.other."]),
        (["--extend", "5"], ["had another inputs.extend (0, now 5)"]),
    ],
)
def test_other_settings_do_not_go_on(
    changes: list[str], words: list[str], copy: Path, text: str, capsys: Captured
) -> None:
    assert pretrain(copy, "--text", text, *flags(), *changes, "--resume") == 2
    refused(capsys, *words)


def test_what_changes_nothing_learned_may_change(copy: Path, text: str) -> None:
    before = (copy / "model" / "model.safetensors").read_bytes()
    assert pretrain(copy, "--text", text, *flags(train__save_every=7, train__log_every=3), "--resume") == 0
    assert (copy / "model" / "model.safetensors").read_bytes() == before


def test_it_goes_on_without_the_text(text: str, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    shutil.copy(text, own)
    run = tmp_path / "run"
    assert pretrain(run, "--text", own, *flags(6)) == 0
    own.unlink()
    assert pretrain(run, "--resume", config=run / "settings.json") == 0


def test_what_an_unfinished_start_left_is_not_taken_for_ours(text: str, tmp_path: Path) -> None:
    """A run without a checkpoint is begun anew; data that were made of other text must not be used."""
    run = tmp_path / "run"
    assert pretrain(run, "--text", text, *flags(4)) == 0
    for folder in run.glob("checkpoint-*"):
        shutil.rmtree(folder)
    other = write_text(tmp_path / "other.txt", documents=30, seed=1)
    assert pretrain(run, "--text", other, *flags(4, vocabulary__size=150, held_out=0)) == 0
    assert Tokenizer.from_folder(run / "model").vocab_size == 150
    assert len(Corpus.open(run / "data" / "corpus")) == 30
    assert not (run / "best").exists()


# Several seeds, learning rates, another model


def test_several_seeds(text: str, tmp_path: Path, capsys: Captured) -> None:
    run = tmp_path / "seeds"
    assert pretrain(run, "--text", text, "--seeds", 2, "--json", *flags(4)) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads((run / "seeds.json").read_text(encoding="utf-8"))
    loss = said["scores"]["mlm_loss"]
    assert loss["n"] == 2
    assert loss["low"] < loss["mean"] < loss["high"]
    assert loss["min"] < loss["max"]  # they really differ
    assert pretrain(run, "--text", text, "--seeds", 2, "--json", "--resume", *flags(4)) == 0
    assert json.loads(capsys.readouterr().out) == said  # nothing was left to do, and the scores are known
    (run / "seed-1" / "checkpoint-4" / "position.json").write_text("{}", encoding="utf-8")
    shutil.rmtree(run / "seed-0")
    (run / "seed-0").write_text("in the way", encoding="utf-8")
    assert pretrain(run, "--text", text, "--seeds", 2, "--resume", *flags(4)) == 2
    out, err = capsys.readouterr()
    assert "mlm_loss" in out
    assert f"1 of 2 seeds failed (seed 0: {run / 'seed-0'}: is a file" in err
    assert json.loads((run / "seeds.json").read_text(encoding="utf-8"))["failed"] == [0]


def test_learning_rates_are_tried_and_then_the_run_begins(text: str, tmp_path: Path, capsys: Captured) -> None:
    run = tmp_path / "run"
    assert pretrain(run, "--text", text, "--find-rate", "--json", *flags(4)) == 0
    said = json.loads(capsys.readouterr().out)
    assert (run / "rates.png").read_bytes().startswith(b"\x89PNG")
    assert said["plot"] == str(run / "rates.png")
    assert not (run / "model").exists()
    assert pretrain(run, "--text", text, *flags(4, train__optimizer__learning_rate=0.01)) == 0
    assert (run / "model").is_dir()


def test_going_on_from_a_model_with_more_words(done: Path, text: str, tmp_path: Path, capsys: Captured) -> None:
    own = tmp_path / "drugs.txt"
    lines = Path(text).read_text(encoding="utf-8").replace("bread", "ibuprofen").replace("fish", "paracetamol")
    own.write_text(lines, encoding="utf-8")
    run = tmp_path / "run"
    assert pretrain(run, "--text", own, "--from", done / "model", "--extend", 2, *flags(30)) == 0
    assert "2 words get a token of their own: paracetamol, ibuprofen" in capsys.readouterr().err
    old, new = Tokenizer.from_folder(done / "model"), Tokenizer.from_folder(run / "model")
    assert new.vocab_size == old.vocab_size + 2
    assert new.encode("Ibuprofen", special_tokens=False).ids == [new.id("ibuprofen")]
    model = model_of(run)
    assert model.settings.vocab_size == new.vocab_size
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [entry["evaluation"]["mlm_loss"] for entry in entries if "evaluation" in entry]
    assert losses[-1] < losses[0]
    assert losses[0] < 5.3  # it began with what the model knew: from nothing it would be 5.3
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert "# model, pre-trained further with unmask" in card
    assert "BERT-tiny" not in card


def test_a_corpus_that_was_built_before(done: Path, tmp_path: Path) -> None:
    corpus = done / "data" / "corpus"
    assert pretrain(tmp_path / "run", "--corpus", corpus, *flags(4)) == 0
    assert pretrain(tmp_path / "more", "--corpus", corpus, "--from", done / "model", *flags(4)) == 0
    assert pretrain(tmp_path / "rates", "--corpus", corpus, "--find-rate", *flags(4)) == 0


# What is wrong


def test_wrong_settings(text: str, tmp_path: Path, capsys: Captured) -> None:
    for changes, words in [
        ({"train__save_evry": 5}, ["unknown setting save_evry; did you mean save_every?"]),
        ({"stages": 5}, ["stages"]),
        ({"stages": "x"}, ["stages"]),
        ({"stages": []}, ["stages"]),
        ({"train": 5}, ["train"]),
        ({"train__updates": 7}, ["train.updates is 7 but the stages have 12 together"]),
        ({"model__size": "huge"}, ["unknown size huge", "tiny"]),
        ({"model__other": {"hiden_size": 5}}, ["did you mean hidden_size?"]),
        ({"model__other": {"vocab_size": 5}}, ["other has vocab_size"]),
        ({"model__other": {"max_length": 16}}, ["length 24", "16 tokens at most"]),
    ]:
        assert pretrain(tmp_path / "run", "--text", text, *flags(**changes)) == 2, changes
        refused(capsys, *words)
    assert pretrain(tmp_path / "run", "--text", text, *flags(), "--set", "seed") == 2
    refused(capsys, "'seed' does not say what to set")
    assert not (tmp_path / "run").exists()


def test_wrong_inputs(text: str, done: Path, tmp_path: Path, capsys: Captured) -> None:
    corpus = done / "data" / "corpus"
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("precious", encoding="utf-8")
    for out, arguments, words in [
        ("a", [], ["nothing to learn from", "--text", "--corpus"]),
        ("b", ["--text", text, "--corpus", corpus], ["--text or --corpus, not both"]),
        ("c", ["--corpus", corpus, "--extend", 5], ["--extend needs --text"]),
        ("d", ["--corpus", corpus, "--tokenizer", done / "model"], ["--tokenizer needs --text"]),
        ("e", ["--text", tmp_path / "absent.txt"], ["absent.txt: no such file"]),
        ("f", ["--corpus", tmp_path], ["corpus"]),
        ("other", ["--text", text], ["other: holds other things"]),
        ("other/thesis.txt", ["--text", text], ["thesis.txt: is a file"]),
    ]:
        assert pretrain(tmp_path / out, *arguments, *flags()) == 2, arguments
        refused(capsys, *words)
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]
    assert pretrain(tmp_path / "run", "--text", text, config="bert-tiny-dmeo") == 2
    refused(capsys, "bert-tiny-dmeo: no such file, nor a config of that name", DEMO, "bert-base")


def test_other_peoples_settings_and_data_are_left_alone(text: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "settings.json").write_text('{"editor": 5}', encoding="utf-8")
    (tmp_path / "data" / "corpus").mkdir(parents=True)
    (tmp_path / "data" / "corpus" / "precious").write_text("x", encoding="utf-8")
    assert pretrain(tmp_path, "--text", text, *flags()) == 2
    refused(capsys, "holds other things")
    assert (tmp_path / "data" / "corpus" / "precious").is_file()


def test_wrong_text(tmp_path: Path, capsys: Captured) -> None:
    few = write_text(tmp_path / "few.txt", documents=3)
    assert pretrain(tmp_path / "few", "--text", few, *flags()) == 2
    refused(capsys, "documents for held out but at least 2 are needed", "held_out")
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"a good line\n\n" + "北京\n".encode("gb18030"))
    assert pretrain(tmp_path / "bad", "--text", bad, *flags()) == 2
    refused(capsys, "bad.txt", "line 3")
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n", encoding="utf-8")
    assert pretrain(tmp_path / "empty", "--text", empty, *flags()) == 2
    refused(capsys, "empty.txt")


def test_a_model_that_does_not_fit(text: str, done: Path, tmp_path: Path, capsys: Captured) -> None:
    assert pretrain(tmp_path / "first", "--text", text, *flags(4, vocabulary__size=150)) == 0
    capsys.readouterr()
    assert (
        pretrain(tmp_path / "a", "--corpus", tmp_path / "first/data/corpus", "--from", done / "model", *flags(4)) == 2
    )
    refused(capsys, "its tokens are not those of the corpus")
    long = flags(4, stages=[{"length": 64, "updates": 4, "batch_tokens": 200}], model__other={})
    assert pretrain(tmp_path / "b", "--text", text, "--from", done / "model", *long) == 2
    refused(capsys, "reads 40 tokens at most but a stage has length 64")
    assert pretrain(tmp_path / "c", "--text", text, "--from", tmp_path / "absent", *flags(4)) in (1, 2)
    refused(capsys, "absent")


# Several processes


@pytest.mark.slow  # test_world.py has two processes in every run of the tests
def test_two_processes_speak_with_one_voice(text: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    rest = command(DEMO, "--text", text, "--out", run, *flags(4, train__accumulate=2))[1:]
    ended = subprocess.run(
        [*launch, *rest], capture_output=True, text=True, check=False, timeout=300, env=environment()
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("run: 4 updates") == 1
    assert ended.stderr.count("parameters; Corpus(") == 1
    assert ended.stderr.count("held out, update 4") == 1
    assert ended.stdout.count("the model, in Hugging Face's layout") == 1
    assert model_of(run).settings.num_layers == 2
    alone = tmp_path / "alone"
    assert pretrain(alone, "--text", text, *flags(4, train__accumulate=2)) == 0
    one, two = (model_of(folder).state_dict() for folder in (run, alone))
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=1e-4, atol=1e-5)
