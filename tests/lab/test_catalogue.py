"""The questions are complete, in both languages, and what is run for them is what their words say."""

from __future__ import annotations

import ast
import re

import pytest

from unmask.errors import UserError
from unmask.lab import catalogue
from unmask.lab.catalogue import code_of, entries, entry_of, parts_of
from unmask.lab.entry import Entry, Plan, Verdict, overall

IDS = [entry.id for entry in entries()]
_HAN = re.compile("[\u4e00-\u9fff]")


def test_there_are_fifty_questions() -> None:
    assert len(IDS) == len(set(IDS)) == 50
    assert IDS[0] == "write-attention", "the order of a course, not of the alphabet"


@pytest.mark.parametrize("entry", entries(), ids=IDS)
def test_a_question_says_everything_in_both_languages(entry: Entry) -> None:
    texts = [entry.question, entry.claim, entry.why, entry.limits, *(part.method for part in entry.parts)]
    for text in texts:
        assert len(text.en) > 15
        assert (
            not _HAN.search(text.en.replace("的", ""))
            or '"' in text.en
            or "“" in text.en
            or entry.id == "chinese-characters"
        )
        assert _HAN.search(text.zh)
    assert entry.question.en.endswith(("?", "."))
    assert len(entry.why.en.split()) > 60
    assert all(re.fullmatch(r"S[0-4](?:[- ].+)?", source) for source in entry.sources), entry.sources
    english = [words for words in entry.words if not _HAN.search(words)]
    assert len(english) > 9
    assert len(entry.words) - len(english) > 9
    assert len({part.name for part in entry.parts}) == len(entry.parts)


@pytest.mark.parametrize("entry", entries(), ids=IDS)
def test_trials_are_named_apart_and_listed_without_being_run(entry: Entry) -> None:
    for part in parts_of(entry).values():
        for plan in (Plan("small", 2), Plan(), Plan("large", 5)):
            trials = part.trials(plan)
            assert trials
            assert len({trial.name for trial in trials}) == len(trials)


def test_an_unknown_id_is_told_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no question 'scale-sqrt'.*scale-sqrt-dk"):
        entry_of("scale-sqrt")


def test_the_code_version_ignores_words_and_conclusions(monkeypatch: pytest.MonkeyPatch) -> None:
    entry, source = entry_of("look-ahead-mask"), catalogue._source
    before = code_of(entry)

    def changed(old: str, new: str) -> str:
        def read(name: str) -> str:
            text = source(name)
            assert old in text or not name.endswith("look_ahead_mask")
            return text.replace(old, new)

        monkeypatch.setattr(catalogue, "_source", read)
        return code_of(entry)

    assert changed("Twelve of them, always the same.", "Some tokens.") == before
    assert changed("Hiding the diagonal cannot replace the shift.", "Other words.") == before
    assert changed("TOKENS, VOCAB = 12, 50", "TOKENS, VOCAB = 13, 50") != before


@pytest.mark.parametrize(
    "way", ["from unmask.lab.kit.mlm import trial", "from unmask.lab.kit import mlm", "import unmask.lab.kit.mlm"]
)
def test_the_code_version_follows_the_kit(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, source = entry_of("look-ahead-mask"), catalogue._source

    def version(more: str) -> str:
        def read(name: str) -> str:
            return way if name.endswith("look_ahead_mask") else source(name) + more * name.endswith("kit.fitting")

        monkeypatch.setattr(catalogue, "_source", read)
        return code_of(entry)

    assert version("") != version("\nMORE = 1\n"), "fitting is used by mlm, which the question uses"


def test_bare_code_keeps_what_computes() -> None:
    tree = ast.parse('"""Doc."""\nX = 1\ndef conclude_x(): return 2\ndef run():\n    """Doc."""\n    return X\n')
    bare = catalogue._bare(tree)
    assert "conclude_x" not in bare
    assert "Doc" not in bare
    assert "run" in bare


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([], Verdict.NOT_RUN),
        ([Verdict.NOT_RUN, Verdict.SUPPORTED], Verdict.SUPPORTED),
        ([Verdict.NOT_VISIBLE, Verdict.SUPPORTED], Verdict.SUPPORTED),
        ([Verdict.NOT_SUPPORTED, Verdict.SUPPORTED], Verdict.DEPENDS),
        ([Verdict.NOT_VISIBLE, Verdict.NOT_VISIBLE], Verdict.NOT_VISIBLE),
        ([Verdict.NOT_SUPPORTED], Verdict.NOT_SUPPORTED),
    ],
)
def test_one_verdict_from_many(parts: list[Verdict], whole: Verdict) -> None:
    assert overall(parts) == whole
