from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.errors import DataError, SettingsError
from unmask.text import Progress, Tokenizer, VocabularySettings, train_tokenizer
from unmask.text.training import PIECE_LENGTH, _pieces

ENGLISH = ["The lower the newer, the widest river.", "Lowest and newest rivers are wider than the low river"] * 7
CHINESE = ["我爱北京天安门。", "中国人民银行在北京。", "北京的人民 love rivers"] * 7
ALL = ["wordpiece", "wordpiece+bytes", "bpe", "bpe+bytes", "byte_bpe"]


def _settings(kind: str, **changes: object) -> VocabularySettings:
    name, _, fallback = kind.partition("+")
    return VocabularySettings.parse({"kind": name, "byte_fallback": bool(fallback), "size": 500, **changes})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("text")
    (folder / "en.txt").write_text("\n".join(ENGLISH), encoding="utf-8")
    with gzip.open(folder / "zh.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\ufeff" + "\n".join(CHINESE))
    return [folder / "en.txt", folder / "zh.txt.gz"]


@pytest.fixture(scope="module")
def trained(files: list[Path]) -> dict[str, Tokenizer]:
    return {kind: train_tokenizer(files, _settings(kind)) for kind in ALL}


@pytest.mark.parametrize("kind", ALL)
def test_each_kind(trained: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = trained[kind]
    assert tokenizer.kind == kind.partition("+")[0]
    assert tokenizer.byte_fallback == ("+" in kind)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (
        0,
        1,
        2,
        3,
        4,
    )
    assert tokenizer.special_ids == frozenset(range(5))
    assert tokenizer.vocab_size <= 500
    assert sorted(tokenizer.vocab.values()) == list(range(tokenizer.vocab_size))
    encoding = tokenizer.encode("the newest river 北京")
    assert 1 not in encoding.ids
    assert (encoding.ids[0], encoding.ids[-1]) == (2, 3)
    assert tokenizer.decode(encoding.ids).replace(" ", "") == "thenewestriver北京"
    assert tokenizer.encode("the river", special_tokens=False).tokens[-1].endswith("river")
    if tokenizer.kind != "bpe":  # whose tokens have the space before them
        assert tokenizer.encode("the river", special_tokens=False).offsets[-1] == (4, 9)


def test_merges_by_hand(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("ab ab ab abc\n")
    tokenizer = train_tokenizer([tmp_path / "text"], _settings("wordpiece", min_frequency=1))
    assert sorted(tokenizer.vocab, key=tokenizer.vocab.__getitem__) == [
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        *("a", "b", "c", "##a", "##b", "##c"),
        *("ab", "abc"),
    ]
    joint = train_tokenizer([tmp_path / "text"], _settings("bpe", min_frequency=1))
    learned = sorted(joint.vocab, key=joint.vocab.__getitem__)[5:]
    assert learned == ["a", "b", "c", "▁", "ab", "▁ab", "▁abc"]


def test_the_size_is_kept_and_frequent_things_come_first(files: list[Path]) -> None:
    small = train_tokenizer(files, _settings("wordpiece", size=67))
    assert small.vocab_size == 67
    tiny = train_tokenizer(files, _settings("bpe", size=11))
    assert tiny.vocab_size == 11
    assert tiny.id("e") is not None
    assert tiny.id("v") is None


def test_every_setting_turns_something(files: list[Path]) -> None:
    def learned(kind: str = "wordpiece", **changes: object) -> dict[str, int]:
        return train_tokenizer(files, _settings(kind, **changes)).vocab

    base = learned()
    changes: list[dict[str, object]] = [
        {"lowercase": False},
        {"split_chinese": False},
        {"min_frequency": 9},
        {"character_coverage": 0.8},
        {"character_share": 0.05},
        {"special_tokens": ["[DOC]"]},
        {"size": len(base) - 1},
    ]
    for change in changes:
        assert learned(**change) != base, change
    assert len({tuple(sorted(learned(kind))) for kind in ALL}) == 5
    assert "北京" in learned("bpe", split_chinese=False)
    assert "北京" not in learned("bpe")


def test_accents_and_extra_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("café café\n", encoding="utf-8")
    assert "cafe" in train_tokenizer([tmp_path / "text"], _settings("wordpiece")).vocab
    kept = _settings("wordpiece", strip_accents=False, special_tokens=["[DOC]", "[MASK]"])
    tokenizer = train_tokenizer([tmp_path / "text"], kept)
    assert "café" in tokenizer.vocab
    assert tokenizer.encode("[DOC]café", special_tokens=False).tokens == ["[DOC]", "café"]
    assert (tokenizer.id("[DOC]"), tokenizer.special_ids) == (5, frozenset(range(6)))


def test_rare_characters_do_not_eat_the_vocabulary(tmp_path: Path) -> None:
    rare = "".join(chr(code) for code in range(0x4E00, 0x4E00 + 997))
    (tmp_path / "text").write_text("the river and the sea\n" * 9973 + rare + "\n", encoding="utf-8")
    tokenizer = train_tokenizer([tmp_path / "text"], _settings("wordpiece", min_frequency=1))
    assert {"the", "river", "and", "sea"} <= set(tokenizer.vocab)
    covered = _settings("wordpiece", min_frequency=1, character_coverage=0.99)
    assert sum(token in rare for token in train_tokenizer([tmp_path / "text"], covered).vocab) == 0
    all_of_it = _settings("wordpiece", min_frequency=1, character_share=1.0)
    assert "river" not in train_tokenizer([tmp_path / "text"], all_of_it).vocab


@pytest.mark.parametrize("kind", ["wordpiece+bytes", "bpe+bytes", "byte_bpe"])
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=13))
@settings(max_examples=200, deadline=None)
def test_no_character_is_lost(trained: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = trained[kind]
    text = text.replace("▁", "_")  # the mark of a space in bpe
    encoding = tokenizer.encode(text, special_tokens=False)
    if not tokenizer.special_ids.isdisjoint(encoding.ids):
        assert "[" in text
        return
    expected = tokenizer.normalize(text)
    if kind == "wordpiece+bytes":
        expected = "".join(expected.split())
        assert "".join(tokenizer.decode(encoding.ids).split()) == expected
    elif kind == "bpe+bytes":
        assert tokenizer.decode(encoding.ids) == expected.removeprefix(" ")
    else:
        assert tokenizer.decode(encoding.ids) == expected
    reached = {place for start, end in encoding.offsets for place in range(start, end)}
    assert reached >= {p for p, c in enumerate(text) if "".join(tokenizer.normalize(c).split())}


def test_bytes_point_to_their_character(trained: dict[str, Tokenizer]) -> None:
    encoding = trained["wordpiece+bytes"].encode("low龍é😀river", special_tokens=False)
    assert encoding.tokens == [
        "low",
        *("<0xE9>", "<0xBE>", "<0x8D>"),
        "e",
        *("<0xF0>", "<0x9F>", "<0x98>", "<0x80>"),
        "river",
    ]
    assert encoding.offsets == [(0, 3), *[(3, 4)] * 3, (4, 5), *[(5, 6)] * 4, (6, 11)]
    assert trained["wordpiece+bytes"].decode(encoding.ids) == "low 龍 e 😀 river"
    assert trained["wordpiece"].encode("龍", special_tokens=False).tokens == ["[UNK]"]


@pytest.mark.parametrize("kind", ALL)
def test_saving_and_loading(trained: dict[str, Tokenizer], kind: str, tmp_path: Path) -> None:
    trained[kind].save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    for text in ("The lowest 龍 river 北京😀", "a  b\tc", "[MASK]x"):
        assert again.encode(text).ids == trained[kind].encode(text).ids
        assert again.encode(text).offsets == trained[kind].encode(text).offsets
    assert (again.vocab, again.kind, again.special_ids) == (
        trained[kind].vocab,
        trained[kind].kind,
        frozenset(range(5)),
    )
    assert (tmp_path / "vocab.txt").exists() == (kind == "wordpiece")
    assert again.with_tokens(["covid"]).encode("a covid", special_tokens=False).tokens[-1] == "covid"


@pytest.mark.parametrize("kind", ALL)
def test_the_same_in_every_process(kind: str, tmp_path: Path) -> None:
    # Many ties: every word and every character occurs equally often.
    words = [a + b + c for a in "abcdefg" for b in "hijklm" for c in "nopqr"]
    text = tmp_path / "text"
    text.write_text("\n".join(words * 2) + "\n" + "".join(chr(0x4E00 + n) * 2 for n in range(499)), encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; from unmask.text import VocabularySettings, train_tokenizer\n"
        "settings = VocabularySettings(**eval(sys.argv[2]))\n"
        "train_tokenizer([Path(sys.argv[1])], settings).save(Path(sys.argv[3]))"
    )
    plan = _settings(kind, size=400).model_dump()
    found = set()
    for seed in (1, 2, 3):
        folder = tmp_path / str(seed)
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        subprocess.run([sys.executable, "-c", code, str(text), repr(plan), str(folder)], check=True, env=environment)
        found.add(hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest())
    assert len(found) == 1


def test_progress(files: list[Path]) -> None:
    seen: list[Progress] = []
    train_tokenizer(files, _settings("wordpiece"), seen.append)
    total = sum(file.stat().st_size for file in files)
    assert {event.total for event in seen} == {total}
    stages = [event.stage for event in seen]
    assert list(dict.fromkeys(stages)) == ["counting characters", "counting words", "merging"]
    for stage in dict.fromkeys(stages):
        done = [event.done for event in seen if event.stage == stage]
        assert done == sorted(done)
        assert done[-1] == total
    assert 5 < len(seen) < 500


def test_wrong_files(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff\xfe\xfd\n")
    (tmp_path / "empty.txt").write_bytes(b"\n  \n")
    (tmp_path / "gb.txt").write_bytes("我们今天去北京的公园".encode("gb18030"))
    for kind in ("wordpiece", "byte_bpe"):
        for files, message in (
            ([], "no files"),
            ([tmp_path / "bad.txt"], "bad.txt, line 2: byte 1"),
            ([tmp_path / "empty.txt"], "no text in .*empty.txt"),
            ([tmp_path / "none.txt"], "no such file"),
            ([tmp_path / "gb.txt"], "looks like GB18030"),
        ):
            with pytest.raises(DataError, match=message):
                train_tokenizer(files, _settings(kind))
    tokenizer = train_tokenizer([tmp_path / "gb.txt"], _settings("wordpiece", encoding="gb18030", min_frequency=1))
    assert tokenizer.id("京") is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "byte_bpe", "byte_fallback": True}, "byte_fallback: .*leave it out"),
        ({"kind": "bpe", "strip_accents": True}, "strip_accents: only wordpiece"),
        ({"kind": "sentencepiece"}, "kind"),
        ({"size": 0}, "size"),
        ({"size": 1_000_001}, "size"),
        ({"min_frequency": 0}, "min_frequency"),
        ({"character_coverage": 1.5}, "character_coverage"),
        ({"character_share": 0.0}, "character_share"),
        ({"vocab_size": 7}, "unknown setting vocab_size"),
    ],
)
def test_wrong_settings(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        VocabularySettings.parse(changes)


def test_a_size_too_small_for_what_is_always_there(files: list[Path]) -> None:
    for kind, least in (("wordpiece", 6), ("wordpiece+bytes", 262), ("byte_bpe", 262)):
        with pytest.raises(SettingsError, match=f"size: {least - 1} cannot hold.*at least {least}"):
            train_tokenizer(files, _settings(kind, size=least - 1))
        assert train_tokenizer(files, _settings(kind, size=least)).vocab_size <= least


def test_long_lines_are_cut_at_spaces() -> None:
    words = "river " * 20_011
    pieces = list(_pieces(words))
    assert "".join(pieces) == words
    assert max(map(len, pieces)) <= PIECE_LENGTH
    assert all(piece.split() == ["river"] * len(piece.split()) for piece in pieces)
    assert [len(piece) for piece in _pieces("x" * (2 * PIECE_LENGTH + 7))] == [PIECE_LENGTH, PIECE_LENGTH, 7]
    assert list(_pieces("")) == [""]


def test_memory_stays_flat(tmp_path: Path) -> None:
    """A text of ten megabytes needs hardly more memory than a short one: the text itself is never held."""
    code = (
        "import resource, sys; from pathlib import Path; from unmask.text import VocabularySettings, train_tokenizer\n"
        "train_tokenizer([Path(sys.argv[1])], VocabularySettings(size=300))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for name, count in (("short", 700), ("long", 35_000)):
        path = tmp_path / name
        with path.open("w") as file:
            for number in range(count):
                file.write(" ".join(f"river {number * 7 % 997}" for _ in range(31)) + "\n")
        output = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
        peaks.append(int(output.stdout))
    assert peaks[1] - peaks[0] < 15_000  # kilobytes; the long file has 10 MB


def test_chinese_characters_stand_alone_and_need_no_second_token(tmp_path: Path) -> None:
    file = tmp_path / "zh.txt"
    file.write_text("北京是中国的首都 beijing\n上海在东边 shanghai\n" * 50, encoding="utf-8")
    split = train_tokenizer([file], VocabularySettings(size=200))
    assert "京" in split.vocab
    assert [token for token in split.vocab if token.startswith("##") and not token.isascii()] == []
    whole = train_tokenizer([file], VocabularySettings(size=200, split_chinese=False))
    assert "##京" in whole.vocab  # inside a word here
