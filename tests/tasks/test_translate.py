"""A translator from pairs to use: a toy that must be learned, and all that is promised of translations."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

import unmask
from unmask.bundle import Bundle
from unmask.data.parallel import Pair
from unmask.decode.settings import DecodeSettings, SamplingSettings
from unmask.engine.choose import Engine
from unmask.errors import DataError, ModelError, SettingsError, TaskError, UserError
from unmask.tasks.translate import Translator
from unmask.tasks.translate_evaluate import evaluate_translations
from unmask.tasks.translate_settings import Texts, TranslateSettings, read_translate_settings
from unmask.tasks.translate_train import train_translation
from unmask.train.progress import Listener

SMILE = "\U0001f600"


class Heard(Listener):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def write_letters(path: Path, count: int = 5000, seed: int = 0) -> Path:
    """Lines of letters and the same backwards."""
    draw = random.Random(seed)
    words = [[draw.choice("abcdefgh") for _ in range(draw.randint(3, 10))] for _ in range(count)]
    lines = [" ".join(one) + "\t" + " ".join(reversed(one)) for one in words]
    path.write_text("source\ttarget\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def tiny(*changes: str) -> TranslateSettings:
    """Runs of a second."""
    small = ["model.layers=1", "model.hidden=16", "model.ffn=24", "model.heads=2", "train.updates=20"]
    often = ["train.evaluate_every=10", "train.save_every=10", "batch_tokens=200", "model.dropout=0.1"]
    return read_translate_settings("reverse", [*small, *often, *changes])


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The toy of the shipped config, which also learns to keep unknown characters."""
    folder = tmp_path_factory.mktemp("reverse")
    texts = Texts(train=(str(write_letters(folder / "letters.tsv")),))
    settings = read_translate_settings("reverse", ["unknown_share=0.1"])
    found = train_translation(settings, texts, folder / "run", Heard())
    assert found["bleu"] > 98.0
    return unmask.load(folder / "run" / "model")


def backwards(text: str) -> str:
    return " ".join(reversed(text.split()))


def sentences(count: int, seed: int = 7) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choice("abcdefgh") for _ in range(draw.randint(3, 10))) for _ in range(count)]


def decode_by_torch(bundle: Bundle, texts: list[str]) -> list[float]:
    """Scores of the best translations, by the torch modules as they are."""
    assert bundle.languages is not None
    plain = Translator(bundle.model, bundle.languages, bundle.translator.usage)
    return [one.outputs[0].score for one in plain.run(texts)]


class TestLearned:
    def test_it_translates_what_it_has_not_seen(self, learned: Bundle) -> None:
        texts = sentences(200)
        said = learned.translate(texts)
        right = sum(one.text == backwards(text) for text, one in zip(texts, said, strict=True))
        assert right >= 190
        assert all(one.parts == 1 and one.lost == "" for one in said)

    @pytest.mark.parametrize("beam", [1, 4])
    def test_batch_and_order_change_nothing(self, learned: Bundle, beam: int) -> None:
        texts = sentences(60, seed=3)
        settings = DecodeSettings(beam=beam)
        alone = [learned.translate([text], settings)[0].outputs for text in texts]
        together = [one.outputs for one in learned.translate(texts, settings)]
        order = random.Random(1).sample(range(60), 60)
        mixed = learned.translate([texts[place] for place in order], settings)
        assert together == alone
        assert [one.outputs for one in mixed] == [alone[place] for place in order]

    def test_empty_lines_stay_and_order_is_kept(self, learned: Bundle) -> None:
        said = [one.text for one in learned.translate(["a b c d", "", "   ", "h g f"])]
        assert said == ["d c b a", "", "", "f g h"]

    def test_a_stream_is_read_as_it_is_needed(self, learned: Bundle) -> None:
        taken = 0

        def endless():  # type: ignore[no-untyped-def]
            nonlocal taken
            while True:
                taken += 1
                yield "a b c"

        found = learned.translate_stream(endless())
        assert [next(found).text for _ in range(3)] == ["c b a"] * 3
        assert taken < 5000

    def test_long_texts_are_split_at_sentences_and_say_so(self, learned: Bundle) -> None:
        long = " ".join(["a b c d e f g!"] * 4)
        (said,) = learned.translate([long])
        assert said.parts == 4
        words = said.text.split()
        assert words.count("g") >= 3
        assert len(words) >= 24

    def test_a_sentence_without_an_end_is_split_at_words(self, learned: Bundle) -> None:
        (said,) = learned.translate([" ".join("abcdefgh" * 12)])
        assert said.parts > 5
        assert len(said.text.split()) >= 80  # nothing was cut

    def test_unknown_characters_survive(self, learned: Bundle) -> None:
        first, last, none = learned.translate([f"{SMILE} a b c d", f"a b c d {SMILE}", "a b c d"])
        assert first.text == f"{SMILE} d c b a"
        assert last.text == f"d c b a {SMILE}"
        assert none.text == "d c b a"
        assert first.lost == last.lost == ""

    def test_what_is_lost_is_said(self, learned: Bundle) -> None:
        settings = DecodeSettings(beam=1, forbid_unknown=True)
        (said,) = learned.translate([f"a b {SMILE} c"], settings)
        assert said.lost == SMILE
        assert SMILE not in said.text

    def test_best_outputs_fall_in_score(self, learned: Bundle) -> None:
        (said,) = learned.translate(["a b c d e"], DecodeSettings(beam=5, num_best=5))
        scores = [one.score for one in said.outputs]
        assert len({one.text for one in said.outputs}) == 5
        assert scores == sorted(scores, reverse=True)
        assert said.outputs[0].text == said.text == "e d c b a"

    def test_a_start_can_be_forced(self, learned: Bundle) -> None:
        (found,) = learned.translator.begun(["a b c d"], ["b b"])
        assert found.text.startswith("b b")

    def test_sampling_depends_on_the_seed_alone(self, learned: Bundle) -> None:
        def drawn(seed: int) -> list[str]:
            sampling = SamplingSettings(seed=seed, temperature=4.0)
            settings = DecodeSettings(beam=1, sampling=sampling)
            return [one.text for one in learned.translate(sentences(20), settings)]

        assert drawn(1) == drawn(1) != drawn(2)

    def test_alignments_cover_the_words(self, learned: Bundle) -> None:
        (said,) = learned.translate(["a b c"], aligned=True)
        assert said.alignments is not None
        (found,) = said.alignments
        assert found.source == ("a", "b", "c")
        assert found.target == ("c", "b", "a")
        assert found.spans == ((0, 1), (2, 3), (4, 5))
        assert found.weights.shape == (3, 3)
        assert bool((found.weights >= 0).all())
        assert bool((found.weights.sum(1) <= 1 + 1e-5).all())
        assert [link.target for link in found.links] == [0, 1, 2]

    def test_a_saved_bundle_says_the_same(self, learned: Bundle, tmp_path: Path) -> None:
        learned.save(tmp_path / "copy")
        again = unmask.load(tmp_path / "copy")
        assert again.translate(sentences(10)) == learned.translate(sentences(10))

    @pytest.mark.parametrize("engine", ["torch", "fp32", "int8"])
    def test_every_engine_says_the_same(self, learned: Bundle, engine: Engine, tmp_path: Path) -> None:
        assert learned.folder is not None
        texts, settings = [*sentences(30), f"a b {SMILE} c"], DecodeSettings(beam=3, num_best=2)
        fast = unmask.load(learned.folder, engine=engine)
        said = fast.translate(texts, settings, aligned=True)
        expected = unmask.load(learned.folder, engine="torch").translate(texts, settings, aligned=True)
        assert [one.text for one in said] == [one.text for one in expected]
        assert all(one.alignments is not None and len(one.alignments) == 1 for one in said)
        assert str(fast.engine).startswith("engine ")
        if fast.engine.engine != "torch":
            with pytest.raises(TaskError, match="cannot be saved"):
                fast.save(tmp_path / "copy")

    def test_new_weights_are_noticed(self, learned: Bundle) -> None:
        assert learned.folder is not None
        bundle, texts = unmask.load(learned.folder), sentences(5)
        before = bundle.translate(texts)
        assert all(tensor.requires_grad for tensor in bundle.model.parameters())
        with torch.no_grad():
            bundle.model.get_parameter("decoder.blocks.0.ffn.inner.weight").neg_()
        after = bundle.translate(texts)
        assert [one.outputs[0].score for one in before] != [one.outputs[0].score for one in after]
        expected = decode_by_torch(bundle, texts)
        assert [one.outputs[0].score for one in after] == pytest.approx(expected, abs=1e-4)

    def test_measured_scores(self, learned: Bundle) -> None:
        pairs = [Pair(text, backwards(text), line) for line, text in enumerate(sentences(80), 1)]
        found = evaluate_translations(learned.translator, pairs)
        assert found.scores.bleu > 95
        assert found.scores.n == 80
        assert found.perplexity is not None
        assert 1.0 <= found.perplexity < 1.1
        assert sum(bucket.n for bucket in found.lengths) == 80

    def test_it_is_not_asked_for_labels(self, learned: Bundle) -> None:
        with pytest.raises(TaskError, match="translator"):
            learned.predict(["a"])
        with pytest.raises(TaskError, match="translator"):
            learned.embed(["a"])


@pytest.mark.parametrize("arch", ["transformer", "lstm", "lstm-attention"])
@pytest.mark.parametrize("joint", [True, False])
def test_every_kind_goes_from_file_to_use(arch: str, joint: bool, tmp_path: Path) -> None:
    tie = [] if joint else ["model.tie=target"]
    settings = tiny(f"arch={arch}", f"joint={str(joint).lower()}", *tie)
    texts = Texts(train=(str(write_letters(tmp_path / "train.tsv", 300)),))
    train_translation(settings, texts, tmp_path / "run", Heard())
    bundle = unmask.load(tmp_path / "run" / "model")
    assert bundle.languages is not None
    assert bundle.languages.is_joint == joint
    said = bundle.translate(["a b c", "", f"h g {SMILE}"])
    assert [one.parts for one in said] == [1, 0, 1]
    if arch != "transformer":
        with pytest.raises(TaskError, match="cross-attention"):
            bundle.translate(["a"], aligned=True)


def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path) -> None:
    texts = Texts(train=(str(write_letters(tmp_path / "train.tsv", 300)),))
    settings = tiny("average_last=2")
    train_translation(settings, texts, tmp_path / "whole", Heard())

    class Enough(Exception):
        """What stops the run."""

    class Stops(Heard):
        def update(self, progress) -> None:  # type: ignore[no-untyped-def]
            if progress.update == 13:
                raise Enough

    with pytest.raises(Enough):
        train_translation(settings, texts, tmp_path / "broken", Stops())
    train_translation(settings, texts, tmp_path / "broken", Heard(), resume=True)
    whole, broken = ((tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "broken"))
    assert whole == broken


def test_a_run_may_begin_with_a_translator(tmp_path: Path) -> None:
    texts = Texts(train=(str(write_letters(tmp_path / "train.tsv", 300)),))
    train_translation(tiny(), texts, tmp_path / "first", Heard())
    first = tmp_path / "first" / "model"
    heard, still = Heard(), "train.optimizer.learning_rate=1e-12"
    # Another shape and vocabulary in the settings do not count: what is begun with has its own.
    again = tiny(f"start={first}", still, "model.hidden=32", "vocabulary.size=40", "r_drop=1.0")
    train_translation(again, texts, tmp_path / "second", heard)
    assert any(str(first) in said for said in heard.said)
    one, two = (unmask.load(tmp_path / name / "model") for name in ("first", "second"))
    for (name, left), right in zip(one.model.named_parameters(), two.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-9, msg=name)
    assert (first / "tokenizer.json").read_bytes() == (tmp_path / "second" / "model" / "tokenizer.json").read_bytes()
    losses = json.loads((tmp_path / "second" / "metrics.jsonl").read_text().splitlines()[0])["losses"]
    assert losses["r_drop"] > 0.0  # dropout differs between the two looks
    train_translation(tiny("model.max_length=8"), texts, tmp_path / "short", Heard())
    heard = Heard()
    train_translation(tiny(f"start={tmp_path / 'short'}"), texts, tmp_path / "short-2", heard)  # with its own limit
    assert any("have more than 7 tokens" in said for said in heard.said), heard.said
    with pytest.raises(ModelError, match="no translator"):
        train_translation(tiny("start=mini-zh"), texts, tmp_path / "third", Heard())


def test_micro_batches_do_not_change_the_gradient(tmp_path: Path) -> None:
    from unmask.models.init import build_model
    from unmask.tasks.translate_learn import Translating
    from unmask.tasks.translate_train import learn_languages, prepare, read_texts

    settings = tiny("model.dropout=0.0")
    texts = Texts(train=(str(write_letters(tmp_path / "train.tsv", 60)),))
    train, dev = read_texts(settings, texts, Heard())
    ready = prepare(settings, train, dev, learn_languages(settings, train, Heard()), Heard())
    model = build_model(ready.model.settings, 0).double()
    task, pairs = Translating(0.1), ready.source.pairs

    def gradient(parts: list[list[int]]) -> torch.Tensor:
        model.zero_grad()
        batches = [pairs.batch(part) for part in parts]
        total = sum(task.counts(batch)["loss"] for batch in batches)
        for batch in batches:
            (task.sums(model, batch)["loss"] / total).backward()
        return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])

    whole = gradient([list(range(40))])
    apart = gradient([list(range(3)), list(range(3, 25)), list(range(25, 40))])
    torch.testing.assert_close(whole, apart, rtol=1e-10, atol=1e-13)


def test_too_long_pairs_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write_letters(tmp_path / "train.tsv", 100)
    with path.open("a") as lines:
        lines.write(" ".join("a" * 40) + "\ta b\n")
    heard = Heard()
    train_translation(tiny("model.max_length=30"), Texts(train=(str(path),)), tmp_path / "run", heard)
    assert any("1 of" in said and "more than 29 tokens" in said and "line 102" in said for said in heard.said), (
        heard.said
    )


def test_mistakes_get_a_sentence_and_leave_nothing(tmp_path: Path) -> None:
    short = write_letters(tmp_path / "a.txt", 5)
    other = tmp_path / "b.txt"
    other.write_text("one\n")
    with pytest.raises(DataError, match="ends after 1 line"):
        train_translation(tiny(), Texts(train=(str(short), str(other))), tmp_path / "run", Heard())
    with pytest.raises(UserError, match="3 files"):
        train_translation(tiny(), Texts(train=(str(short),) * 3), tmp_path / "run", Heard())
    with pytest.raises(DataError, match="at most 1 tokens|no pair"):
        train_translation(tiny("model.max_length=2"), Texts(train=(str(short),)), tmp_path / "run", Heard())
    assert not (tmp_path / "run").exists()
    with pytest.raises(SettingsError, match="joint"):
        tiny("joint=false")
    with pytest.raises(SettingsError, match=r"train\.keep"):
        tiny("average_last=9")


def test_the_noam_schedule_knows_the_width(tmp_path: Path) -> None:
    settings = tiny("train.schedule.kind=noam", "train.schedule.warmup=5", "train.optimizer.learning_rate=1.0")
    texts = Texts(train=(str(write_letters(tmp_path / "train.tsv", 100)),))
    train_translation(settings, texts, tmp_path / "run", Heard())
    entries = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = {one["update"]: one["learning_rate"] for one in entries if "learning_rate" in one}
    assert rates[10] == pytest.approx(16**-0.5 * min(10**-0.5, 10 * 5**-1.5), rel=1e-6)


def test_every_part_of_a_long_text_says_its_language() -> None:
    from unmask.tasks.translate_parts import split
    from unmask.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *">a.<", "##b"])
    parts = split(
        ">>ab<< a a a. A a a a a a a a a a a a a.",
        lambda texts: tokenizer.encode_batch(texts, special_tokens=False),
        12,
        ">>ab<< ",
    )
    assert len(parts) > 2
    assert all(part.text.startswith(">>ab<< ") and len(part.ids) <= 12 for part in parts)
    assert sum(part.text.lower().count(" a") for part in parts) == 16


def test_a_long_line_without_sentences_is_split_into_any_number_of_parts() -> None:
    from unmask.tasks.translate_parts import split
    from unmask.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    parts = split("a " * 3600, lambda texts: tokenizer.encode_batch(texts, special_tokens=False), 3)
    assert len(parts) == 1200  # more than Python calls itself
    assert all(len(part.ids) == 3 for part in parts)
