from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import FetchError, ModelError, SettingsError, UserError
from unmask.text import Tokenizer, folders
from unmask.text.panics import panics_told

TEXT = "Héllo 中国 unaffable [MASK] playing!"


def _json(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def _plan(tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    tokenizer.save(folder)
    plan: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return plan


def test_vocab_alone_is_an_uncased_bert(tokenizer: Tokenizer, vocab_folder: Path) -> None:
    found = Tokenizer.from_folder(vocab_folder)
    assert found.encode(TEXT).ids == tokenizer.encode(TEXT).ids
    assert found.mask_id == 4


@pytest.mark.parametrize(
    ("setting", "text", "expected"),
    [
        ({"do_lower_case": False}, "a A", ["a", "[UNK]"]),
        ({"strip_accents": False}, "é", ["[UNK]"]),
        ({"tokenize_chinese_chars": False}, "中国", ["[UNK]"]),
        ({"strip_accents": None, "do_lower_case": True, "model_max_length": 512}, "É", ["e"]),
    ],
)
@pytest.mark.parametrize("kept", ["vocab.txt", "tokenizer.json"])
def test_the_config_has_the_last_word(
    tokenizer: Tokenizer, tmp_path: Path, setting: dict[str, object], text: str, expected: list[str], kept: str
) -> None:
    tokenizer.save(tmp_path)
    _json(tmp_path, "tokenizer_config.json", setting)
    (tmp_path / ({"vocab.txt", "tokenizer.json"} - {kept}).pop()).unlink()
    assert Tokenizer.from_folder(tmp_path).encode(text, special_tokens=False).tokens == expected


def test_tokenizer_json_is_preferred(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    (tmp_path / "vocab.txt").write_text("broken")
    assert Tokenizer.from_folder(tmp_path).vocab == tokenizer.vocab


def test_published_cutting_and_padding_are_switched_off(tokenizer: Tokenizer, tmp_path: Path) -> None:
    plan = _plan(tokenizer, tmp_path)
    plan["truncation"] = {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    plan["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    _json(tmp_path, "tokenizer.json", plan)
    found = Tokenizer.from_folder(tmp_path)
    text = "hello " * 97
    assert found.encode(text).ids == tokenizer.encode(text).ids
    assert len(found.encode_batch([text, "a"])[1]) == 3


def test_added_tokens_of_a_vocab_folder(tokenizer: Tokenizer, vocab_folder: Path) -> None:
    size = tokenizer.vocab_size
    _json(vocab_folder, "added_tokens.json", {"[ENT]": size, "covid": size + 1})
    found = Tokenizer.from_folder(vocab_folder)
    assert found.encode("[ENT] Covid", special_tokens=False).ids == [size, size + 1]
    _json(vocab_folder, "added_tokens.json", {"[ENT]": size + 7})
    with pytest.raises(ModelError, match=rf"\[ENT\].*should have the id {size + 7}.*gives it {size}"):
        Tokenizer.from_folder(vocab_folder)
    (vocab_folder / "added_tokens.json").unlink()
    fields = {"content": "[ENT]", "lstrip": False, "normalized": False, "rstrip": False, "special": True}
    _json(vocab_folder, "tokenizer_config.json", {"added_tokens_decoder": {str(size): fields}})
    assert size in Tokenizer.from_folder(vocab_folder).special_ids


def test_special_tokens_by_other_names(tokenizer: Tokenizer, tmp_path: Path) -> None:
    plan = _plan(tokenizer, tmp_path)
    text = json.dumps(plan).replace("[PAD]", "<pad>").replace("[MASK]", "<hide>").replace("[CLS]", "<s>")
    (tmp_path / "tokenizer.json").write_text(text)
    _json(tmp_path, "tokenizer_config.json", {"pad_token": {"content": "<pad>"}, "unk_token": "[UNK]"})
    _json(tmp_path, "special_tokens_map.json", {"mask_token": "<hide>"})
    found = Tokenizer.from_folder(tmp_path)
    assert (found.pad_id, found.unk_id, found.cls_id, found.sep_id, found.mask_id) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("words", [(), ("covid", "新冠", "the-end")])
def test_saving_and_loading_changes_nothing(tokenizer: Tokenizer, tmp_path: Path, words: tuple[str, ...]) -> None:
    grown = tokenizer.with_tokens(words)
    grown.save(tmp_path / "new" / "deep")
    again = Tokenizer.from_folder(tmp_path / "new" / "deep")
    assert again.vocab == grown.vocab
    for text in (TEXT, "Covids 新冠肺炎 the-end", ""):
        assert again.encode(text, "中").ids == grown.encode(text, "中").ids
    assert (again.kind, again.lowercase, again.special_ids) == (grown.kind, grown.lowercase, grown.special_ids)
    lines = (tmp_path / "new" / "deep" / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert lines == sorted(grown.vocab, key=grown.vocab.__getitem__)
    assert sorted(os.listdir(tmp_path / "new" / "deep")) == ["tokenizer.json", "tokenizer_config.json", "vocab.txt"]


def test_saving_keeps_what_others_put_in_the_config(vocab_folder: Path, tmp_path: Path) -> None:
    _json(vocab_folder, "tokenizer_config.json", {"model_max_length": 512, "do_lower_case": False})
    Tokenizer.from_folder(vocab_folder).save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 512
    assert config["do_lower_case"] is False
    assert config["tokenizer_class"] == "BertTokenizer"
    assert config["mask_token"] == "[MASK]"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_save_that_fails_leaves_the_old_file_and_no_rest(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tokenizer.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*paths: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(FetchError, match="the disk is full"):
        tokenizer.with_tokens(["covid"]).save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", b"{", ["tokenizer.json", "not a tokenizer"]),
        ("tokenizer.json", b"", ["not a tokenizer"]),
        ("tokenizer.json", b"[" * 100_000, ["not a tokenizer"]),
        ("tokenizer.json", b"\xff\xfe{}", ["UTF-8"]),
        ("tokenizer.json", b'{"version": "1.0"}', ["not a tokenizer", "odel"]),
        ("tokenizer.json", b'{"model": {"type": "Magic"}}', ["not a tokenizer"]),
        ("tokenizer_config.json", b"[]", ["tokenizer_config.json", "object", "list"]),
        ("tokenizer_config.json", b"{", ["tokenizer_config.json", "JSON"]),
        ("tokenizer_config.json", b'{"do_lower_case": "yes"}', ["do_lower_case", "true or false", "'yes'"]),
        ("tokenizer_config.json", b'{"do_lower_case": null}', ["do_lower_case", "true or false"]),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"a": {}}}', ["added tokens cannot be read"]),
        ("added_tokens.json", b'{"x": "many"}', ["added tokens cannot be read"]),
        ("tokenizer_config.json", b'{"cls_token": "\\ud800"}', ["tokenizer_config.json", "half a character"]),
        ("tokenizer_config.json", b'{"\\udfff": [1]}', ["tokenizer_config.json", "half a character"]),
        (
            "special_tokens_map.json",
            b'{"cls_token": {"content": "\\udc00"}}',
            ["special_tokens_map", "half a character"],
        ),
    ],
)
def test_broken_files(vocab_folder: Path, name: str, content: bytes, words: list[str]) -> None:
    (vocab_folder / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        Tokenizer.from_folder(vocab_folder)
    assert isinstance(caught.value, ModelError | SettingsError)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_tokenizer_that_cannot_work_is_found_on_loading(tokenizer: Tokenizer, tmp_path: Path) -> None:
    plan = _plan(tokenizer, tmp_path)
    for change, message in (
        (lambda plan: plan["model"]["vocab"].pop("[UNK]"), r"cannot encode|not a tokenizer"),
        (lambda plan: plan["model"]["vocab"].update(far=4_000_000_000), "largest id is 4000000000"),
        (lambda plan: plan["post_processor"]["special_tokens"].pop("[SEP]"), "cannot encode|not a tokenizer"),
        (
            lambda plan: plan["post_processor"]["special_tokens"]["[SEP]"].update(ids=[99_999]),
            "wraps text in the id 99999",
        ),
    ):
        broken = json.loads(json.dumps(plan))
        broken["added_tokens"] = []
        change(broken)
        _json(tmp_path, "tokenizer.json", broken)
        with pytest.raises(ModelError, match=message):
            Tokenizer.from_folder(tmp_path)


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"neither tokenizer\.json nor vocab.txt"):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(ModelError, match="no such folder"):
        Tokenizer.from_folder(tmp_path / "none")


def test_an_enormous_tokenizer_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(folders.MAX_JSON_BYTES + 1)
    with pytest.raises(ModelError, match="not a file of at most"):
        Tokenizer.from_folder(tmp_path)


def test_a_vocabulary_that_lines_cannot_say_has_no_vocab_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    plan = _plan(tokenizer, tmp_path / "a")
    plan["model"]["vocab"]["\n"] = tokenizer.vocab_size
    _json(tmp_path / "a", "tokenizer.json", plan)
    Tokenizer.from_folder(tmp_path / "a").save(tmp_path / "b")
    assert not (tmp_path / "b" / "vocab.txt").exists()
    assert Tokenizer.from_folder(tmp_path / "b").id("\n") == tokenizer.vocab_size


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "tokenizer.json", "vocab.txt"])
def test_a_pipe_or_a_folder_or_a_dead_link_in_the_place_of_a_file(vocab_folder: Path, name: str) -> None:
    path = vocab_folder / name
    path.unlink(missing_ok=True)
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path)):
        make(path)
        with pytest.raises(UserError, match=name):  # and does not wait for someone to write into the pipe
            Tokenizer.from_folder(vocab_folder)
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_config_with_half_a_character_can_be_saved(tokenizer: Tokenizer, tmp_path: Path) -> None:
    odd = Tokenizer(tokenizer._pipeline, config={"note": "\ud800 中"})
    odd.save(tmp_path)
    text = (tmp_path / "tokenizer_config.json").read_text(encoding="utf-8")
    assert json.loads(text)["note"] == "\ud800 中"
    assert "中" in text


def test_a_file_in_the_place_of_the_folder(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FetchError, match="file"):
        tokenizer.save(tmp_path / "file")


def test_a_pattern_that_never_ends_is_told_not_thrown(tokenizer: Tokenizer, tmp_path: Path) -> None:
    plan = _plan(tokenizer, tmp_path)
    pattern = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": False}
    _json(tmp_path, "tokenizer.json", {**plan, "pre_tokenizer": pattern})
    found = Tokenizer.from_folder(tmp_path)
    hostile = "a" * 50 + "b"
    with pytest.raises(ModelError, match=r"cannot work on the text.*retry-limit"):
        found.encode(hostile)
    for offsets in (False, True):
        with pytest.raises(ModelError, match="cannot work on the text"):
            found.encode_batch(["a", hostile], offsets=offsets)
    assert found.encode("aab").ids[0] == found.cls_id


def test_ctrl_c_while_encoding_stays_what_it_is() -> None:
    with pytest.raises(KeyboardInterrupt), panics_told():
        raise KeyboardInterrupt
    with pytest.raises(TypeError), panics_told():
        raise TypeError
