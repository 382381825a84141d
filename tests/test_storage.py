from __future__ import annotations

from pathlib import Path

import pytest

from unmask.errors import FetchError, UserError
from unmask.storage import atomic_write, new_folder, replacing


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_write(path, b"old")

    def half() -> None:
        with replacing(path) as draft:
            draft.write_bytes(b"ne")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        half()
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
    atomic_write(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "folder"
    with new_folder(target) as draft:
        (draft / "part").mkdir()
        (draft / "part" / "a").write_text("1")
        assert not target.exists()
    assert (target / "part" / "a").read_text() == "1"
    assert [found.name for found in target.parent.iterdir()] == ["folder"]


def test_an_old_folder_survives_a_failed_replacement(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with new_folder(target) as draft:
        (draft / "a").write_text("old")

    def half() -> None:
        with new_folder(target, overwrite=True) as draft:
            (draft / "a").write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert (target / "a").read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["folder"]


def test_an_existing_file_or_folder_is_not_overwritten_unasked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("mine")
    for name in ("file", "full"):
        with pytest.raises(UserError, match="exists already"), new_folder(tmp_path / name):
            pass
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as draft:
        (draft / "a").write_text("1")
    assert (tmp_path / "empty" / "a").read_text() == "1"


def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.doc").write_text("years of work")

    def replace() -> None:
        with new_folder(tmp_path / "mine", overwrite=True) as draft:
            (draft / "config.json").write_text("{}")

    with pytest.raises(UserError, match="holds other things"):
        replace()
    assert (tmp_path / "mine" / "thesis.doc").read_text() == "years of work"
    assert [found.name for found in tmp_path.iterdir()] == ["mine"]


def test_a_link_is_followed_and_a_late_rival_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with new_folder(tmp_path / "link") as draft:
        (draft / "a").write_text("1")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "a").read_text() == "1"

    def late() -> None:
        with new_folder(tmp_path / "new") as draft:
            (draft / "a").write_text("mine")
            (tmp_path / "new").mkdir()
            (tmp_path / "new" / "a").write_text("the rival's")

    with pytest.raises(UserError, match="exists already"):
        late()
    assert (tmp_path / "new" / "a").read_text() == "the rival's"


@pytest.mark.parametrize("name", ["/", "a\0b", "\ud800"])
def test_what_cannot_be_a_name_is_said(name: str) -> None:
    with pytest.raises(UserError), new_folder(Path(name)):
        pass


def test_an_old_folder_comes_back_if_the_swap_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "folder"
    with new_folder(target) as draft:
        (draft / "a").write_text("old")
    rename = Path.rename

    def interrupted(self: Path, other: Path) -> Path:
        if self.name.endswith(".draft"):
            raise KeyboardInterrupt
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", interrupted)

    def swap() -> None:
        with new_folder(target, overwrite=True) as draft:
            (draft / "a").write_text("new")

    with pytest.raises(KeyboardInterrupt):
        swap()
    assert (target / "a").read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["folder"]


def test_trouble_with_what_is_read_is_not_blamed_on_what_is_written(tmp_path: Path) -> None:
    def read_something() -> None:
        with replacing(tmp_path / "file") as draft:
            draft.write_bytes((tmp_path / "missing").read_bytes())

    with pytest.raises(FileNotFoundError):
        read_something()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_gives_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="no folder"):
        atomic_write(tmp_path / "missing" / "file", b"")
