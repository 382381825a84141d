"""Published translators (opus-mt folders): `MarianTokenizer` and `MarianMTModel.generate` are the references."""

from __future__ import annotations

import io
import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MarianConfig, MarianMTModel
from transformers import MarianTokenizer as Theirs

import unmask
from unmask.cli.main import run
from unmask.decode.settings import DecodeSettings
from unmask.errors import ModelError, TaskError
from unmask.models.init import build_model
from unmask.models.marian_export import TranslationIds, export_marian
from unmask.models.settings import TransformerSettings
from unmask.tasks.languages import SPECIAL, Languages, TranslateUsage, read_translate_usage
from unmask.tasks.translate import Translator
from unmask.tasks.usage import USAGE
from unmask.text import Tokenizer

sentencepiece = pytest.importorskip("sentencepiece")

ENGLISH = "the quick brown fox jumps over a lazy dog while we translate small sentences and then sleep under trees"
GERMAN = "der schnelle braune Fuchs springt über den faulen Hund und wir übersetzen kleine Sätze unter Bäumen"
CODES = [">>deu<<", ">>fra<<"]
LIMIT = 30


def sentences(words: str, count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choice(words.split()) for _ in range(draw.randint(1, 12))) for _ in range(count)]


TEXTS = [
    *sentences(ENGLISH, 25, seed=1),
    *(f">>{code}<< {text}" for code in ("deu", "fra", "xyz") for text in sentences(ENGLISH, 3, seed=2)),
    "  The QUICK\u00a0ﬁox,  é e\u0301 ①!! ",
    "der Fuchs springt über 中国 und 😀😀",
    "</s> the <unk> dog <pad>",
    "hahahaha aaaaaaa",
]


def write_tokenizers(folder: Path, options: dict[str, Any]) -> dict[str, int]:
    """Pieces that SentencePiece has learned itself, and ids for those of both sides."""
    pieces: dict[str, None] = {}
    for name, words in (("source.spm", ENGLISH), ("target.spm", GERMAN)):
        made = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences(words, 200)),
            model_writer=made,
            **{"vocab_size": 120, "hard_vocab_limit": False, "minloglevel": 2} | options,
        )
        (folder / name).write_bytes(made.getvalue())
        learned = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
        pieces |= dict.fromkeys(learned.id_to_piece(id) for id in range(3, learned.get_piece_size()))
    ids = {token: id for id, token in enumerate(["</s>", "<unk>", *pieces, *CODES, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
    return ids


def write_opus(folder: Path, options: dict[str, Any] | None = None, ending: float = 0.5) -> Path:
    """A folder as published ones are, with a random model in it."""
    folder.mkdir()
    ids = write_tokenizers(folder, options or {})
    pad = ids["<pad>"]
    config = MarianConfig(
        vocab_size=len(ids),
        d_model=24,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=40,
        decoder_ffn_dim=40,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=64,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = MarianMTModel(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "embed_positions" not in name:
                    parameter.mul_(8.0 if parameter.dim() > 1 else 1.0).add_(torch.randn_like(parameter), alpha=0.05)
            model.final_logits_bias.normal_()
            model.final_logits_bias[0, 0] += ending  # so that some sentences end by themselves
    said = {"num_beams": 4, "max_length": LIMIT, "bad_words_ids": [[pad]], "renormalize_logits": True}
    model.generation_config.update(**said)
    model.save_pretrained(folder)
    return folder


#: Options of the pieces, and how much likelier the end is made.
KINDS: dict[str, tuple[dict[str, Any], float]] = {
    "unigram": ({}, 0.5),
    "bytes": ({"byte_fallback": True, "vocab_size": 380}, 4.7),
    "bpe": ({"model_type": "bpe"}, 1.2),
}


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_opus(tmp_path_factory.mktemp("opus") / "opus-mt-en-de")


def their_tokenizer(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends a package that it does not use to encode
        return Theirs.from_pretrained(folder)


def their_ids(folder: Path, texts: list[str]) -> list[list[int]]:
    """What `generate` writes with one beam, as a user of `transformers` would call it."""
    tokenizer, model = their_tokenizer(folder), MarianMTModel.from_pretrained(folder).eval()
    found = []
    for text in texts:
        with torch.inference_mode():
            written = model.generate(**tokenizer(text, return_tensors="pt"), num_beams=1, do_sample=False)
        found.append(written[0].tolist())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_translations_are_theirs(kind: str, tmp_path: Path) -> None:
    """Unknown tokens are kept from being written: `generate` leaves them out, we put in what they stand for."""
    folder = write_opus(tmp_path / "opus", *KINDS[kind])
    generation = json.loads((folder / "generation_config.json").read_text())
    generation["bad_words_ids"].append([1])
    (folder / "generation_config.json").write_text(json.dumps(generation))
    bundle = unmask.load(folder)
    assert bundle.languages is not None
    tokenizer = their_tokenizer(folder)
    ids = their_ids(folder, TEXTS)
    assert sum(len(one) < LIMIT for one in ids) > 3
    assert sum(len(one) == LIMIT for one in ids) > 3
    found = bundle.translate(TEXTS, bundle.translator.usage.decode.replace(beam=1))
    assert [one.text for one in found] == tokenizer.batch_decode(ids, skip_special_tokens=True)
    for text in TEXTS:
        assert bundle.languages.source.encode(text).ids == tokenizer(text)["input_ids"]


def test_unknown_tokens_are_written_as_elsewhere(opus: Path) -> None:
    texts = sentences(ENGLISH, 60, seed=4)
    expected = their_tokenizer(opus).batch_decode(their_ids(opus, texts), skip_special_tokens=True)
    bundle = unmask.load(opus)
    assert bundle.languages is not None
    assert bundle.languages.target_ids.unknown is None
    found = bundle.translate(texts, bundle.translator.usage.decode.replace(beam=1))
    assert [one.text for one in found] == expected


class TestUsage:
    def test_as_the_folder_says(self, opus: Path) -> None:
        usage = read_translate_usage(opus)
        decode = DecodeSettings(
            beam=4, length_penalty=1.0, length_formula="plain", max_length=LIMIT - 2, max_ratio=None
        )
        assert usage == TranslateUsage(max_source=64, decode=decode)
        languages = Languages.from_folder(opus)
        pad = languages.source.pad_id
        assert languages.frame.start == pad
        assert languages.frame.end == languages.frame.source_end == 0
        assert languages.target_ids.never == (pad,)
        assert not languages.is_joint

    def test_older_folders_say_it_in_config(self, opus: Path, tmp_path: Path) -> None:
        copy(opus, tmp_path)
        (tmp_path / "generation_config.json").unlink()
        change(tmp_path / "config.json", num_beams=6, max_length=20, forced_eos_token_id=None, bad_words_ids=[[7], [9]])
        usage = read_translate_usage(tmp_path)
        assert usage is not None
        assert (usage.decode.beam, usage.decode.max_length) == (6, 19)
        assert {7, 9} < set(Languages.from_folder(tmp_path).target_ids.never)

    def test_other_settings_of_generate(self, opus: Path, tmp_path: Path) -> None:
        copy(opus, tmp_path)
        changes = {"length_penalty": 0.5, "no_repeat_ngram_size": 3, "min_length": 5, "max_new_tokens": 12}
        change(tmp_path / "generation_config.json", **changes, suppress_tokens=[5], forced_eos_token_id=None)
        usage = read_translate_usage(tmp_path)
        assert usage is not None
        assert usage.decode.length_penalty == 0.5
        assert (usage.decode.no_repeat_ngram, usage.decode.min_length, usage.decode.max_length) == (3, 4, 12)
        texts = sentences(ENGLISH, 30, seed=5)
        expected = their_tokenizer(tmp_path).batch_decode(their_ids(tmp_path, texts), skip_special_tokens=True)
        found = unmask.load(tmp_path).translate(texts, usage.decode.replace(beam=1))
        assert [one.text for one in found] == expected

    @pytest.mark.parametrize(
        ("name", "changes", "said"),
        [
            ("config.json", {"decoder_start_token_id": None}, "decoder_start_token_id"),
            ("config.json", {"eos_token_id": "x"}, "eos_token_id"),
            ("config.json", {"decoder_start_token_id": 999_999}, "the start token has the id 999999"),
            ("config.json", {"vocab_size": 9, "decoder_vocab_size": 9}, "they do not belong together"),
            ("generation_config.json", {"num_beams": 0}, "beam"),
            ("generation_config.json", {"length_penalty": -1.0}, "length_penalty"),
            ("generation_config.json", {"bad_words_ids": [[1, 2]]}, "several tokens"),
            ("generation_config.json", {"max_length": "long"}, "max_length"),
        ],
    )
    def test_folders_that_are_wrong(
        self, name: str, changes: dict[str, Any], said: str, opus: Path, tmp_path: Path
    ) -> None:
        copy(opus, tmp_path)
        change(tmp_path / name, **changes)
        with pytest.raises(ModelError, match=said) as caught:
            Languages.from_folder(tmp_path)
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_broken_config_is_one_sentence(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("[]")
        with pytest.raises(ModelError, match="config.json: holds list"):
            read_translate_usage(tmp_path)

    def test_another_model_is_no_translator(self, tmp_path: Path) -> None:
        assert read_translate_usage(tmp_path) is None
        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
        assert read_translate_usage(tmp_path) is None


class TestFolders:
    def test_saved_as_ours(self, opus: Path, tmp_path: Path) -> None:
        bundle = unmask.load(opus)
        bundle.save(tmp_path / "ours")
        assert {SPECIAL, USAGE, "source.spm", "target.spm", "vocab.json"} <= {
            p.name for p in (tmp_path / "ours").iterdir()
        }
        again = unmask.load(tmp_path / "ours")
        assert again.translator.usage == bundle.translator.usage
        assert again.languages is not None
        assert bundle.languages is not None
        assert again.languages.target_ids == bundle.languages.target_ids
        assert again.translate(TEXTS) == bundle.translate(TEXTS)

    def test_exported_again(self, opus: Path, tmp_path: Path) -> None:
        out = tmp_path / "marian"
        assert run(["export", str(opus), "--to", "marian", "--out", str(out)]) == 0
        change(out / "generation_config.json", max_length=LIMIT, forced_eos_token_id=0)
        assert their_ids(out, TEXTS[:10]) == their_ids(opus, TEXTS[:10])
        found = unmask.load(out).translate(TEXTS[:10], DecodeSettings(beam=1, max_length=LIMIT - 2, max_ratio=None))
        assert [one.text for one in found] == [
            one.text
            for one in unmask.load(opus).translate(
                TEXTS[:10], DecodeSettings(beam=1, max_length=LIMIT - 2, max_ratio=None)
            )
        ]

    @pytest.mark.parametrize("joint", [True, False])
    def test_our_own_exports(self, joint: bool, tmp_path: Path) -> None:
        """What was our translator before it was written for others is the same translator after."""
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        source = Tokenizer.from_vocab([*special, *ENGLISH.split()[:15]])
        target = (
            source
            if joint
            else Tokenizer.from_vocab([*special, *"der die das ein eine Hund Katze Maus".lower().split()])
        )
        sizes = {"hidden_size": 24, "num_heads": 4, "ffn_size": 40, "num_encoder_layers": 1, "num_decoder_layers": 2}
        sizes |= {"source_vocab_size": source.vocab_size, "target_vocab_size": target.vocab_size, "max_length": 40}
        model: Any = build_model(TransformerSettings.parse(sizes | ({} if joint else {"tie": "target"})), seed=2).eval()
        languages = Languages(source, target)
        out = tmp_path / "marian"
        export_marian(model, out, TranslationIds(languages.frame.start, languages.frame.end, 0, 1))
        languages.save(out)
        bundle = unmask.load(out, engine="torch")  # as below, so that numbers may be the same to the bit
        assert bundle.languages is not None
        assert bundle.languages.is_joint == joint
        assert bundle.languages.frame == languages.frame
        assert bundle.languages.target_ids == languages.target_ids
        settings = DecodeSettings(beam=3, max_length=20)
        before = Translator(model, languages, TranslateUsage(max_source=40, decode=settings))
        texts = [*sentences(ENGLISH, 12, seed=6), "the 😀 fox", ""]
        assert bundle.translate(texts, settings) == list(before.run(texts))

    def test_commands(self, opus: Path, capfd: pytest.CaptureFixture[str]) -> None:
        assert run(["translate", str(opus), "--text", TEXTS[0], "--text", TEXTS[1], "--beam", "1"]) == 0
        lines = capfd.readouterr().out.splitlines()
        assert lines == their_tokenizer(opus).batch_decode(their_ids(opus, TEXTS[:2]), skip_special_tokens=True)
        assert run(["translate", str(opus), "--text", TEXTS[0], "--align", "--json"]) == 0
        found = json.loads(capfd.readouterr().out)
        assert found["alignment"][0]["source"] == TEXTS[0].split()

    def test_long_texts_are_split(self, opus: Path) -> None:
        found = unmask.load(opus).translate([" ".join([ENGLISH] * 8)], DecodeSettings(beam=1, max_length=5))
        assert found[0].parts > 1

    def test_it_is_not_an_encoder(self, opus: Path) -> None:
        with pytest.raises(TaskError, match="translator"):
            unmask.load(opus).embed(["a"])


def copy(folder: Path, to: Path) -> None:
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
