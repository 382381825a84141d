"""The results that come with the package: made by today's code, and the pages in the documentation made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.lab.catalogue import entries
from unmask.lab.entry import Entry
from unmask.lab.page import write_docs
from unmask.lab.run import answer_of
from unmask.lab.store import shipped_folder

DOCS = Path(__file__).parents[2] / "docs" / "lab"


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.id)
def test_shipped_results_are_of_todays_code(entry: Entry) -> None:
    answer = answer_of(entry, shipped_folder())
    for part in answer.parts:
        assert part.current, f"run again: unmask lab run {entry.id} --out docs/lab/results"
        assert part.complete or not part.trials, f"{part.name}: some trials are missing"
        if part.kind == "exact" and entry.id != "faster-inference":
            assert part.conclusion is not None, "exact parts are all settled"


def test_the_pages_are_those_of_the_results(tmp_path: Path) -> None:
    write_docs([answer_of(entry, shipped_folder()) for entry in entries()], tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_bytes() for path in DOCS.iterdir() if path.is_file()}
    assert made.keys() == kept.keys(), "write them again: unmask lab report --results docs/lab/results --docs docs/lab"
    assert [name for name in made if made[name] != kept[name]] == []
