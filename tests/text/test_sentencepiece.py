"""SentencePiece files, with its own library and `transformers.MarianTokenizer` as references."""

from __future__ import annotations

import io
import json
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import DataError, ModelError, TaskError
from unmask.text.marian import MarianTokenizer
from unmask.text.marian_folder import read_marian_tokenizers, write_marian_tokenizers
from unmask.text.sentencepiece import SentencePiece
from unmask.text.sentencepiece_file import PieceType, read_piece_file

sentencepiece = pytest.importorskip("sentencepiece")

from sentencepiece import sentencepiece_model_pb2 as proto  # noqa: E402

ENGLISH = "the quick brown fox jumps over a lazy dog while we translate small sentences hahaha aaaa ... !!! 12 café"
GERMAN = "der schnelle braune Fuchs springt über den faulen Hund und wir übersetzen kleine Sätze über Häuser Flüße"
CHINESE = "我们今天去北京看天安门然后翻译一些简单的句子关于房子河流和山银行人民中国"
ODD = [
    *"aaabcdeh  ..!?▁<>/s0123ÄäöüßéÉ\t\n\x00\x01\x1f\x7f\x85\u00a0\u200b\u200d\u2028\ufeff\u3000\ue000\U000f0000",
    *["e\u0301", "a\u0308", "\u0301", "\u0327\u0301", "ç\u0301", "\u1e9b\u0323", "か\u3099", "नि", "ไทย"],
    *["한", "ᄒ", "ᅡ", "ᆫ", "中", "国", "我们"],
    *["Ａ", "ｂ", "ｶﾞ", "ﬁ", "①", "™", "½", "ﷺ", "...", "𝐀", "😀", "👨\u200d👩\u200d👧", "🇩🇪"],
    *["<s>", "</s>", "<unk>", "<pad>", "<0x41>", "<sep>", "haha", ">>deu<<", ">>", "<<"],
]


MODELS: dict[str, dict[str, Any]] = {
    "unigram": {},
    "unigram, bytes": {"byte_fallback": True},
    "unigram, unchanged text": {"normalization_rule_name": "identity"},
    "unigram, lower case": {"normalization_rule_name": "nmt_nfkc_cf"},
    "unigram, symbols": {"user_defined_symbols": ["<sep>", "haha", "ab ", " b"], "control_symbols": ["<pad>"]},
    "unigram, spaces kept": {"remove_extra_whitespaces": False},
    "unigram, no first space": {"add_dummy_prefix": False},
    "unigram, all": {
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "split_by_whitespace": False,
    },
    "bpe": {"model_type": "bpe"},
    "bpe, bytes": {"model_type": "bpe", "byte_fallback": True},
    "bpe, symbols": {"model_type": "bpe", "user_defined_symbols": ["<sep>", "haha", "ab ", " b"]},
    "bpe, spaces kept": {"model_type": "bpe", "remove_extra_whitespaces": False, "add_dummy_prefix": False},
}


class Strings:
    """Texts of all kinds, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.kinds: list[Callable[[], str]] = [self.words, self.disturbed, self.repeated, self.any, self.ties, self.odd]

    def many(self, count: int) -> list[str]:
        """An empty one, and so many others."""
        return ["", *(self.draw.choice(self.kinds)() for _ in range(count))]

    def words(self) -> str:
        language = self.draw.choice([ENGLISH.split(), GERMAN.split(), list(CHINESE)])
        between = "" if language[0] in CHINESE else " "
        return between.join(self.draw.choice(language) for _ in range(self.draw.randint(1, 15)))

    def disturbed(self) -> str:
        letters = list(self.words())
        for _ in range(self.draw.randint(1, 6)):
            letters.insert(self.draw.randint(0, len(letters)), self.draw.choice(ODD))
        return "".join(letters)

    def repeated(self) -> str:
        return self.draw.choice(ODD) * self.draw.randint(1, 30)

    def any(self) -> str:
        codes = [self.draw.randint(0, 0x2FFFF) for _ in range(self.draw.randint(1, 8))]
        return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)

    def ties(self) -> str:
        """What can be cut in several ways of the same score."""
        return "".join(self.draw.choice(["a", "aa", "ha", "h", "e", "s", "."]) for _ in range(self.draw.randint(1, 60)))

    def odd(self) -> str:
        return "".join(self.draw.choice(ODD) for _ in range(self.draw.randint(0, 25)))


def train(path: Path, lines: list[str], options: dict[str, Any] | None = None) -> Path:
    """A small model that the library has learned itself."""
    made = io.BytesIO()
    settings = {"vocab_size": 500, "character_coverage": 0.99, "hard_vocab_limit": False, "minloglevel": 2}
    settings |= {"normalization_rule_name": "nmt_nfkc"} | (options or {})
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=made, **settings)
    path.write_bytes(made.getvalue())
    return path


def sentences(language: str, count: int = 600) -> list[str]:
    strings = Strings(1)
    words = list(language) if language == CHINESE else language.split()
    between = "" if language == CHINESE else " "
    return [between.join(strings.draw.choice(words) for _ in range(strings.draw.randint(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def mixed() -> list[str]:
    return [line for language in (ENGLISH, GERMAN, CHINESE) for line in sentences(language)]


def unused(path: Path) -> Path:
    """The same model, some of its pieces not to be used."""
    model = proto.ModelProto()
    model.ParseFromString(path.read_bytes())
    draw = random.Random(0)
    for piece in model.pieces:
        if piece.type == PieceType.NORMAL and draw.random() < 0.1:
            piece.type = PieceType.UNUSED
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("kind", "change"), [*((kind, None) for kind in MODELS), ("unigram, symbols", unused), ("bpe, symbols", unused)]
)
def test_pieces_and_text_are_the_librarys(
    kind: str, change: Callable[[Path], Path] | None, mixed: list[str], tmp_path: Path
) -> None:
    path = train(tmp_path / "model.spm", mixed, MODELS[kind])
    path = path if change is None else change(path)
    theirs, ours = sentencepiece.SentencePieceProcessor(model_file=str(path)), SentencePiece.read(path)
    names = [theirs.id_to_piece(id) for id in range(theirs.get_piece_size())]
    strings = Strings(2)
    for text in strings.many(500):
        expected = theirs.encode(text, out_type=str)
        assert [found.piece for found in ours.encode(text)] == expected, repr(text)
        pieces = [strings.draw.choice([*names, "中", "▁x", "x▁"]) for _ in range(strings.draw.randint(0, 9))]
        for some in (expected, pieces):
            assert ours.decode(some) == theirs.decode_pieces(some), some


def test_made_up_models_with_many_ties(tmp_path: Path) -> None:
    draw = random.Random(5)
    for number in range(120):
        path = tmp_path / f"{number}.spm"
        path.write_bytes(made_up(draw).SerializeToString())
        theirs, ours = sentencepiece.SentencePieceProcessor(model_file=str(path)), SentencePiece.read(path)
        for _ in range(40):
            text = "".join(draw.choice("ab中 ") for _ in range(draw.randint(1, 40)))
            assert [found.piece for found in ours.encode(text)] == theirs.encode(text, out_type=str), text


def made_up(draw: random.Random) -> Any:
    model = proto.ModelProto()
    wanted = [("<unk>", 0.0, 2), ("▁", draw.uniform(-5, 1), 1)]
    scores = (draw.uniform(-8, 1), -1.0, 0.1, 0.3)
    for most, values, types in ((9, (0.0,), (4,)), (4, scores, (1, 1, 1, 5))):
        for _ in range(draw.randint(2, 8)):
            text = "".join(draw.choice("ab中") for _ in range(draw.randint(1, most)))
            wanted.append((text, draw.choice(values), draw.choice(types)))
    for text, score, kind in {one[0]: one for one in reversed(wanted)}.values():
        model.pieces.add(piece=text, score=score, type=kind)
    model.trainer_spec.model_type = draw.choice([1, 2])
    model.normalizer_spec.add_dummy_prefix = draw.random() < 0.5
    return model


def test_by_hand(tmp_path: Path) -> None:
    """Sums by hand: ▁ab + c is −3, ▁a + bc −3.5; é is nowhere, so a run of it is one unknown piece."""
    model = proto.ModelProto()
    for text, score in (("▁ab", -2.0), ("c", -1.0), ("▁a", -1.5), ("bc", -2.0), ("▁", -4.0)):
        model.pieces.add(piece=text, score=score, type=1)
    model.pieces.add(piece="<unk>", score=0.0, type=2)
    path = tmp_path / "hand.spm"
    path.write_bytes(model.SerializeToString())
    ours = SentencePiece.read(path)
    assert ours.encode("abc  éé") == [("▁ab", 0, 2), ("c", 2, 3), ("▁", 3, 4), ("éé", 5, 7)]
    assert ours.decode(["▁ab", "c", "▁", "éé"]) == "abc éé"
    assert ours.normalise(" a  b ") == "▁a▁b"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("spm")
    return train(folder / "m.spm", sentences(ENGLISH, 100), {"vocab_size": 60}).read_bytes()


class TestDamage:
    def test_cut_off_anywhere(self, good: bytes, tmp_path: Path) -> None:
        path = tmp_path / "cut.spm"
        draw = random.Random(0)
        refused = 0
        for end in [*range(300), *(draw.randrange(len(good)) for _ in range(100))]:
            path.write_bytes(good[:end])
            refused += not readable(path)
        assert refused > 350  # what is cut between two fields can be whole

    def test_bytes_changed_anywhere(self, good: bytes, tmp_path: Path) -> None:
        path = tmp_path / "changed.spm"
        draw = random.Random(1)
        for _ in range(300):
            data = bytearray(good)
            for _ in range(draw.randint(1, 4)):
                data[draw.randrange(2000) if draw.random() < 0.7 else draw.randrange(len(data))] = draw.randrange(256)
            path.write_bytes(data)
            readable(path)

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b"", "0 unknown pieces"),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "bytes where 0 are left"),
            (b"\x0a" + b"\xff" * 11, "more than 64 bits"),
            (b"\x0b", "wire type 3"),
            (b"\x00\x00", "without a number"),
            (b"\x08\x01", "a piece is a number where bytes are expected"),
            (b"\x0a\x03\x0a\x01\xff", "piece 0 is not UTF-8"),
            (b"\x0a\x05\x0a\x01a\x10\x01", "score of piece 0 is not a number of four bytes"),
            (b"\x0a\x08\x0a\x01a\x15\x00\x00\xc0\x7f", "score of piece 0 is nan"),
            (b"\x0a\x05\x0a\x01a\x18\x09", "type 9"),
            (b"\x0a\x00", "piece 0 is empty"),
            (b"\x0a\x03\x0a\x01a\x0a\x05\x0a\x01u\x18\x02\x0a\x03\x0a\x01a", "piece 2 is there twice"),
            (
                b"\x0a\x03\x0a\x01a\x0a\x05\x0a\x01u\x18\x02\x12\x03\x98\x02\x01",
                "0 byte pieces where",
            ),
            (b"\x0a\x03\x0a\x01a\x0a\x05\x0a\x01u\x18\x02\x12\x02\x18\x04", "model_type char is not supported"),
            (b"\x0a\x03\x0a\x01a\x0a\x05\x0a\x01u\x18\x02\x12\x02\x18\x63", "model_type 99 does not exist"),
            (b"\x12\x03\xc0\x01\x01", "treat_whitespace_as_suffix"),
            (b"\x2a\x03\x12\x01x", "changing text back"),
        ],
    )
    def test_one_sentence_names_the_file(self, data: bytes, said: str, tmp_path: Path) -> None:
        path = tmp_path / "bad.spm"
        path.write_bytes(data)
        with pytest.raises(ModelError, match=said) as caught:
            read_piece_file(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("table", [b"x", b"\xff\xff\xff\xff", bytes(4), b"\x04\x00\x00\x00\xff\xff\xff\x7f"])
    def test_replacements(self, table: bytes, tmp_path: Path) -> None:
        model = proto.ModelProto()
        model.pieces.add(piece="a", score=-1.0, type=1)
        model.pieces.add(piece="<unk>", type=2)
        model.normalizer_spec.precompiled_charsmap = table
        path = tmp_path / "bad.spm"
        path.write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match="precompiled_charsmap"):
            SentencePiece.read(path).encode("abc é")

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="not a file"):
            read_piece_file(tmp_path)


def readable(path: Path) -> bool:
    """Whether a file could be used; a ModelError that names it is the only way in which it may not."""
    try:
        SentencePiece.read(path).encode("the quick e\u0301 Ａ①ﬁ 中 aaaa")
    except ModelError as error:
        if str(path) not in str(error):
            raise
        return False
    return True


CODES = [">>deu<<", ">>fra<<"]
FOLDERS: dict[str, dict[str, Any]] = {
    "unigram": {},
    "unigram, bytes": {"options": {"byte_fallback": True}},
    "bpe": {"options": {"model_type": "bpe"}},
    "two vocabularies": {"separate": True},
    "tidied": {"config": {"clean_up_tokenization_spaces": True}},
    "added tokens": {"added": ["<ent>", "haha"]},
}


def write_folder(folder: Path, case: dict[str, Any]) -> Path:
    """Tokenizers as published: English pieces, German and Chinese ones, ids for both."""
    folder.mkdir()
    options = case.get("options")
    train(folder / "source.spm", sentences(ENGLISH), options)
    train(folder / "target.spm", sentences(GERMAN) + sentences(CHINESE), options)
    sides = [[piece.text for piece in read_piece_file(folder / name).pieces] for name in ("source.spm", "target.spm")]
    parts = sides if case.get("separate") else [sides[0] + sides[1]]
    config = {"source_lang": "en", "target_lang": "de", **case.get("config", {})}
    for name, pieces in zip(("vocab.json", "target_vocab.json"), parts, strict=False):
        kept = [piece for place, piece in enumerate(pieces) if place % 17 and piece not in ("<s>", "</s>", "<unk>")]
        # Where there are two vocabularies, special tokens have the same ids in both.
        special = ["<pad>"] if case.get("separate") else []
        tokens = dict.fromkeys(["</s>", "<unk>", *special, *kept, *CODES, "ññ", "<pad>"])
        ids = {token: id for id, token in enumerate(tokens)}
        (folder / name).write_text(json.dumps(ids))
        fields = {"special": False, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
        added = case.get("added", [])
        if added:
            config["added_tokens_decoder"] = {
                str(len(ids) + n): {"content": text, **fields} for n, text in enumerate(added)
            }
    if case.get("separate"):
        config["separate_vocabs"] = True
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def reference(folder: Path) -> Any:
    from transformers import MarianTokenizer as Theirs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends a package that it does not use to encode
        return Theirs.from_pretrained(folder)


@pytest.fixture(scope="module", params=list(FOLDERS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("opus") / "folder", FOLDERS[request.param])


def texts(seed: int, count: int) -> Iterator[str]:
    strings = Strings(seed)
    for text in strings.many(count):
        yield text
        yield strings.draw.choice([*CODES, ">>xyz<<", " >>deu<<", ">>deu<", "</s>>>deu<<"]) + text


class TestMarian:
    def test_ids_are_theirs(self, folder: Path) -> None:
        theirs = reference(folder)
        source, target = read_marian_tokenizers(folder)
        known = 0
        for text in texts(3, 400):
            expected = theirs(text)["input_ids"]
            assert source.encode(text).ids == expected, repr(text)
            assert source.encode(text, special_tokens=False).ids == expected[:-1]
            assert target.encode(text).ids == theirs(text_target=text)["input_ids"], repr(text)
            known += sum(id != source.unk_id for id in expected)
        assert known > 3000

    def test_texts_are_theirs(self, folder: Path) -> None:
        theirs = reference(folder)
        _, target = read_marian_tokenizers(folder)
        strings = Strings(4)
        for text in texts(5, 150):
            ids = target.encode(text).ids
            drawn = [strings.draw.randrange(target.vocab_size) for _ in range(strings.draw.randint(0, 20))]
            for some in (ids, drawn):
                for skip in (True, False):
                    expected = theirs.decode(some, skip_special_tokens=skip)
                    assert target.decode(some, skip_special_tokens=skip) == expected, some

    def test_saved_and_read_again(self, folder: Path, tmp_path: Path) -> None:
        write_marian_tokenizers(tmp_path, *read_marian_tokenizers(folder))
        theirs = reference(tmp_path)
        before, again = read_marian_tokenizers(folder), read_marian_tokenizers(tmp_path)
        for text in texts(6, 50):
            for one, two in zip(before, again, strict=True):
                assert one.encode(text).ids == two.encode(text).ids
            assert theirs(text)["input_ids"] == before[0].encode(text).ids

    def test_offsets_point_into_the_text(self, folder: Path) -> None:
        source, _ = read_marian_tokenizers(folder)
        for text in texts(7, 200):
            found = source.encode(text)
            assert len(found) == len(found.words) == len(found.tokens) == len(found.segments)
            spans = found.offsets[:-1]
            assert all(0 <= start <= end <= len(text) for start, end in spans)
            assert [start for start, _ in spans] == sorted(start for start, _ in spans)
            assert found.offsets[-1] == (0, 0)
            assert found.special == [False] * len(spans) + [True]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("opus") / "plain", {})


@pytest.fixture
def copy(plain: Path, tmp_path: Path) -> Path:
    for path in plain.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


class TestTokenizer:
    def test_a_language_code_is_one_token(self, plain: Path) -> None:
        source, _ = read_marian_tokenizers(plain)
        found = source.encode(">>deu<< the quick fox")
        assert found.tokens[0] == ">>deu<<"
        assert found.ids[0] == source.id(">>deu<<") != source.unk_id
        assert found.offsets[:2] == [(0, 7), (8, 11)]
        assert source.encode(">>none<< the").ids[0] == source.unk_id

    def test_unknown_to_one_side_but_not_to_the_vocabulary(self, plain: Path) -> None:
        source, _ = read_marian_tokenizers(plain)
        assert source.encode("ññ").tokens[:2] == ["▁", "ññ"]
        assert source.encode("ññ").ids[1] == source.id("ññ") != source.unk_id
        assert source.encode("ñññ").ids[1] == source.unk_id

    def test_words(self, plain: Path) -> None:
        source, target = read_marian_tokenizers(plain)
        found = source.encode("the quick, fox", special_tokens=False)
        ends = {word: end for word, (_, end) in zip(found.words, found.offsets, strict=True)}
        assert [ends[word] for word in sorted(ends, key=str)] == [3, 9, 10, 14]
        assert len({*target.encode("我们去北京", special_tokens=False).words}) > 1

    def test_facts(self, plain: Path) -> None:
        source, target = read_marian_tokenizers(plain)
        ids = json.loads((plain / "vocab.json").read_text())
        assert source.kind == "unigram"
        assert source.vocab_size == target.vocab_size == len(ids)
        assert (source.sep_id, source.unk_id, source.pad_id) == (0, 1, ids["<pad>"])
        assert source.special_ids == {0, 1, ids["<pad>"]}
        assert source.vocab == ids
        assert source.num_special_tokens() == 1
        assert source.normalize("Ａ  b") == "▁A▁b"

    def test_cut_to_a_length(self, plain: Path) -> None:
        source, _ = read_marian_tokenizers(plain)
        whole = source.encode("the quick brown fox")
        cut = source.encode("the quick brown fox", max_length=3)
        assert cut.ids == [*whole.ids[:2], source.sep_id]
        assert cut.num_dropped == len(whole) - 3
        assert 0 < cut.coverage < 1

    def test_what_it_does_not_do(self, plain: Path, tmp_path: Path) -> None:
        source, _ = read_marian_tokenizers(plain)
        with pytest.raises(DataError, match="lone surrogate"):
            source.encode("a\ud800")
        with pytest.raises(DataError, match="must be a string"):
            source.encode_batch(["a", 3])  # type: ignore[list-item]
        with pytest.raises(DataError, match="not pairs"):
            source.encode("a", "b")
        with pytest.raises(DataError, match="max_length 1"):
            source.encode("a", max_length=1)
        with pytest.raises(TaskError, match="together"):
            source.save(tmp_path)
        with pytest.raises(TaskError, match="new tokens"):
            source.with_tokens(["x"])

    @pytest.mark.parametrize(
        ("name", "content", "said"),
        [
            ("vocab.json", None, "has no vocab.json"),
            ("vocab.json", "[]", "JSON object"),
            ("vocab.json", "{", "not valid JSON"),
            ("vocab.json", '{"</s>": 0}', "<unk>"),
            ("vocab.json", '{"<unk>": 0}', "</s>"),
            ("vocab.json", '{"</s>": 0, "<unk>": 0}', "same id, 0"),
            ("vocab.json", '{"</s>": 0, "<unk>": "1"}', "which is no id"),
            ("vocab.json", '{"</s>": 0, "<unk>": true}', "which is no id"),
            ("vocab.json", '{"</s>": 0, "<unk>": 1, "\\ud800": 2}', "half a character"),
            ("tokenizer_config.json", '{"separate_vocabs": 1}', "separate_vocabs must be true or false"),
            ("tokenizer_config.json", '{"separate_vocabs": true}', "has no target_vocab.json"),
            ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {"content": "a"}}}', "cannot be read"),
            ("tokenizer_config.json", '{"added_tokens_decoder": []}', "must be an object"),
            ("tokenizer_config.json", '{"added_tokens_decoder": {"5": {"content": "</s>"}}}', "0 in vocab.json"),
            ("tokenizer_config.json", '{"added_tokens_decoder": {"9999": {"content": "new"}}}', "do not belong"),
            ("added_tokens.json", '{"new": 9999}', "do not belong"),
            (
                "tokenizer_config.json",
                '{"added_tokens_decoder": {"0": {"content": "</s>", "rstrip": true}}}',
                "asks for rstrip",
            ),
            ("target.spm", None, "target.spm: not a file"),
            ("source.spm", "nonsense", "source.spm: not a SentencePiece model"),
        ],
    )
    def test_folders_that_are_wrong(self, name: str, content: str | None, said: str, copy: Path) -> None:
        if content is None:
            (copy / name).unlink()
        else:
            (copy / name).write_text(content)
        with pytest.raises(ModelError, match=said) as caught:
            read_marian_tokenizers(copy)
        assert "\n" not in str(caught.value)

    def test_ids_with_gaps(self, copy: Path) -> None:
        ids = json.loads((copy / "vocab.json").read_text())
        (copy / "vocab.json").write_text(json.dumps({token: 3 * id for token, id in ids.items()}))
        source, _ = read_marian_tokenizers(copy)
        assert isinstance(source, MarianTokenizer)
        found = source.encode("the quick fox").ids
        assert all(id % 3 == 0 for id in found)
        assert source.decode(found) == "the quick fox"
