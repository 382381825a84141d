"""Batches as training sees them, against documents whose every token tells where it stands."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count, islice, pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
import rjieba
import torch

from unmask.data import pretraining
from unmask.data.corpus.build import build_corpus
from unmask.data.corpus.format import CorpusSettings
from unmask.data.corpus.store import Corpus
from unmask.data.masking import MaskingSettings
from unmask.data.pairs import PairSettings
from unmask.data.pretraining import Examples, ExampleSettings, PretrainBatch, SpecialIds
from unmask.errors import DataError, SettingsError
from unmask.text import Tokenizer
from unmask.text.training import VocabularySettings, train_tokenizer
from unmask.train.prefetch import prefetched

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ENGLISH = "the of and to in he was for on are with they be at one have this from word but what can"
CHINESE = "北京 银行 我们 今天 天气 很 好 中国 人民 的 是 在 不 大学 学生 老师 喜欢 读 书 。 ，"


DOCUMENTS = 160


class Place(NamedTuple):
    """Where a token of the corpus stands."""

    document: int
    number: int  # within the document
    word: int  # within the document


class World(NamedTuple):
    """A corpus in which no token occurs twice."""

    corpus: Corpus
    places: list[Place | None]  # by id; None for special tokens
    sizes: list[int]  # tokens of each document


def corpus_of(
    folder: Path, tokenizer: Tokenizer, documents: Iterable[Sequence[str]], shard_tokens: int = 5000
) -> Corpus:
    text = "\n\n".join("\n".join(document) for document in documents) + "\n"
    (folder / "text.txt").write_text(text, encoding="utf-8")
    settings = CorpusSettings(shard_tokens=5000)
    return build_corpus([folder / "text.txt"], tokenizer, folder / "corpus", settings, workers=1)


def letters(*sentences: int) -> list[str]:
    """A document whose sentences have so many tokens."""
    return [" ".join("abcdefgh"[(place + size) % 8] for place in range(size)) for size in sentences]


def small(folder: Path, *documents: list[str]) -> Corpus:
    return corpus_of(folder, Tokenizer.from_vocab([*SPECIAL, *"abcdefgh"]), documents)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Documents of unequal size, every fourth in Chinese."""
    draw = Random(0)
    vocab, places, documents, sizes = list(SPECIAL), [None] * 5, [], []
    names = count()
    han = iter([chr(code) for code in range(0x4E00, 0x9FA0)])
    for document in range(DOCUMENTS):
        sentences, number, words = [], 0, 0
        for _ in range(draw.choice([1, 2, 3, 8, 20])):
            size = draw.randint(1, 24)
            if document % 4 == 3:
                sentence = "".join(islice(han, size))
                tokens = list(sentence)
                # A Chinese word is what the segmenter says it is.
                starts = [place == 0 for word in rjieba.cut(sentence) for place in range(len(word))]
            else:
                pieces = [(next(names), draw.randint(1, 3)) for _ in range(size)]
                spelt = [[f"{name}{letter}" for letter in "abc"[:parts]] for name, parts in pieces]
                sentence = " ".join("".join(word) for word in spelt)
                tokens = [piece if p == 0 else f"##{piece}" for word in spelt for p, piece in enumerate(word)]
                starts = [p == 0 for word in spelt for p in range(len(word))]
            for token, start in zip(tokens, starts, strict=True):
                words += start
                vocab.append(token)
                places.append(Place(document, number, words))
                number += 1
            sentences.append(sentence)
        documents.append(sentences)
        sizes.append(number)
    folder = tmp_path_factory.mktemp("world")
    corpus = corpus_of(folder, Tokenizer.from_vocab(vocab), documents)
    assert corpus.num_tokens == len(vocab) - 5
    assert len(corpus.manifest.shards) > 2
    return World(corpus, places, sizes)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """English and Chinese with a vocabulary learned from it."""
    folder, draw = tmp_path_factory.mktemp("text"), Random(1)
    documents = []
    for _ in range(300):
        words, gap = (CHINESE, "") if draw.random() < 0.5 else (ENGLISH, " ")
        lines = [gap.join(draw.choices(words.split(), k=draw.randint(2, 20))) for _ in range(draw.randint(1, 12))]
        documents.append([line.replace("word", "[MASK]") for line in lines])  # a text may hold a special token
    (folder / "learn.txt").write_text("\n".join(line for lines in documents for line in lines), encoding="utf-8")
    tokenizer = train_tokenizer([folder / "learn.txt"], VocabularySettings(size=110, min_frequency=1))
    return corpus_of(folder, tokenizer, documents)


def original(batch: PretrainBatch) -> torch.Tensor:
    ids = batch.batch.ids.clone()
    ids[batch.masked_rows] = batch.targets
    return ids


def texts(batch: PretrainBatch) -> list[tuple[list[int], list[int]]]:
    """The two texts of each example with nothing hidden; checks the frame."""
    found = []
    parts = zip(batch.batch.layout.split(original(batch)), batch.batch.layout.split(batch.batch.segments), strict=True)
    for ids, segments in parts:
        one, kinds = ids.tolist(), segments.tolist()
        assert one[0] == CLS
        assert one[-1] == SEP
        size = kinds.index(1) if 1 in kinds else len(kinds)
        assert kinds == [0] * size + [1] * (len(kinds) - size)
        assert one[size - 1] == SEP
        first, second = one[1 : size - 1], one[size:-1]
        assert SEP not in first + second
        found.append((first, second))
    return found


def inside(found: float, total: float, share: float, run: float = 1.0) -> bool:
    """Within the two-sided 99 % interval of a binomial, of things that are drawn in runs of some length."""
    return abs(found - total * share) <= 2.576 * math.sqrt(total * share * (1 - share) * run) + 1


def same(one: PretrainBatch, two: PretrainBatch) -> bool:
    pairs = [(one.batch.ids, two.batch.ids), (one.batch.segments, two.batch.segments)]
    pairs += [(one.masked_rows, two.masked_rows), (one.targets, two.targets)]
    if one.pair_labels is not None and two.pair_labels is not None:
        pairs.append((one.pair_labels, two.pair_labels))
    return one.batch.layout == two.batch.layout and all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("unit", "shares"),
    [
        ("token", (0.15, 0.8, 0.1, 0.1)),
        ("word", (0.15, 0.8, 0.1, 0.1)),
        ("span", (0.15, 0.8, 0.1, 0.1)),
        ("token", (0.4, 0.4, 0.5, 0.1)),
    ],
)
def test_masking_over_a_million_tokens(text: Corpus, unit: str, shares: tuple[float, ...]) -> None:
    rate, mask, random, keep = shares
    masking = MaskingSettings(rate=rate, mask=mask, random=random, keep=keep, unit=unit)
    # Of a hundred values one lies outside its interval though nothing is wrong; not with this seed.
    examples = Examples(text, ExampleSettings(length=64, masking=masking, held_out=0, seed=1))
    special = torch.tensor(sorted(examples.special.all))
    ordinary = text.vocab_size - len(special)
    tokens = candidates = chosen = masked = replaced = kept = runs = number = 0
    while tokens < 1_000_000:
        batch = examples[number]
        number += 1
        tokens += batch.num_tokens
        candidates += int((~torch.isin(original(batch), special)).sum())
        chosen += len(batch.targets)
        cuts = np.flatnonzero(np.diff(batch.masked_rows.numpy(), prepend=-9, append=10**9) > 1)
        runs += int((np.diff(cuts) ** 2).sum())
        seen = batch.batch.ids[batch.masked_rows]
        assert not torch.isin(batch.targets, special).any()
        assert not torch.isin(seen[seen != MASK], special).any()
        masked += int((seen == MASK).sum())
        kept += int((seen == batch.targets).sum())
        replaced += int(((seen != MASK) & (seen != batch.targets)).sum())
    equal = 1 / ordinary  # a random token is now and then the one that stood there
    # Few long spans are taken where there would be many tokens: only there the share varies more than a binomial's.
    assert inside(chosen, candidates, rate, runs / chosen if unit == "span" else 1.0)
    assert inside(masked, chosen, mask)
    assert inside(replaced, chosen, random * (1 - equal))
    assert inside(kept, chosen, keep + random * equal)
    assert random < 0.2 or not inside(replaced, chosen, random)  # close enough to tell that it matters


@pytest.mark.parametrize("unit", ["word", "span"])
def test_whole_words_are_never_split(world: World, unit: str) -> None:
    examples = Examples(world.corpus, ExampleSettings(length=40, masking=MaskingSettings(unit=unit), held_out=0))
    long = 0
    for number in range(40):
        batch = examples[number]
        chosen = torch.zeros(batch.num_tokens, dtype=torch.bool)
        chosen[batch.masked_rows] = True
        start = 0
        for one in batch.batch.layout.split(original(batch)):
            members: dict[tuple[int, int, int], list[bool]] = {}
            text = 0
            for row, token in enumerate(one.tolist(), start):
                place = world.places[token]
                if place is None:
                    text += 1
                else:
                    members.setdefault((text, place.document, place.word), []).append(bool(chosen[row]))
            start += len(one)
            assert all(all(flags) or not any(flags) for flags in members.values())
            long += sum(len(flags) > 1 and flags[0] for flags in members.values())
    assert long > 300


def test_tokens_that_are_not_asked_about_are_as_they_were(world: World) -> None:
    settings = ExampleSettings(length=40, pairs=PairSettings(objective="none", short=0.3), held_out=0)
    examples = Examples(world.corpus, settings)
    for number in range(60):
        for first, _ in texts(examples[number]):
            places = [world.places[token] for token in first]
            assert all(b == (a[0], a[1] + 1, b[2]) for a, b in pairwise(places))  # one piece of one document


@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_every_label_is_true(world: World, objective: str) -> None:
    examples = Examples(world.corpus, ExampleSettings(length=40, pairs=PairSettings(objective=objective)))
    labels: Counter[int] = Counter()
    for number in range(90):
        batch = examples[number]
        assert batch.pair_labels is not None
        assert batch.num_tokens <= 4096
        assert list(batch.batch.layout.lengths) == sorted(batch.batch.layout.lengths)
        for (first, second), label in zip(texts(batch), batch.pair_labels.tolist(), strict=True):
            a, b = ([world.places[token] for token in part] for part in (first, second))
            assert 5 <= len(a) + len(b) + 3 <= 40
            for part in (a, b):
                assert part
                assert all(two[:2] == (one[0], one[1] + 1) for one, two in pairwise(part))
            labels[label] += 1
            if label == 0:
                assert b[0][:2] == (a[-1].document, a[-1].number + 1)
            elif objective == "nsp":
                assert a[0].document != b[0].document
                assert b[0].number > 0 or world.sizes[b[0].document] == 1  # never the beginning of a document
            else:
                assert a[0].document == b[0].document
                assert b[-1].number < a[0].number
    assert inside(labels[1], labels.total(), 0.5)
    assert labels.total() > 8_000


def test_half_of_the_pairs_do_not_follow(world: World) -> None:
    examples = Examples(world.corpus, ExampleSettings(length=40))
    labels = short = total = number = 0
    while total < 250_000:
        made = examples.examples(number)
        number += 1
        total += len(made)
        labels += sum(one.label for one in made)
        short += sum(one.short for one in made)
    assert abs(labels / total - 0.5) < 0.003
    assert abs(short / total - 0.1) < 0.003


def test_every_document_is_used_and_held_out_ones_only_to_evaluate(world: World) -> None:
    long_enough = {number for number, size in enumerate(world.sizes) if size > 1}
    held = {number for number in range(DOCUMENTS) if number % 20 == 19}
    for objective in ("nsp", "sop", "none"):
        settings = ExampleSettings(length=40, held_out=20, pairs=PairSettings(objective=objective))
        for part, own in (("training", set(range(DOCUMENTS)) - held), ("held_out", held)):
            examples = Examples(world.corpus, settings, part)
            number = 0
            for epoch in range(2):
                firsts, seen = set(), set()
                for _ in range(examples.batches_of_epoch(epoch)):
                    for first, second in texts(examples[number]):
                        firsts.add(world.places[first[0]].document)
                        seen |= {world.places[token].document for token in (first[0], *second[:1])}
                    number += 1
                assert firsts == (own if objective == "none" else own & long_enough)
                assert seen <= own


def test_another_epoch_has_other_pairs_and_masks(world: World) -> None:
    examples = Examples(world.corpus, ExampleSettings(length=40))
    size = examples.batches_of_epoch(0)
    epochs = [[examples[number] for number in range(start, start + 5)] for start in (0, size)]
    joined = [{(tuple(a), tuple(b)) for batch in batches for a, b in texts(batch)} for batches in epochs]
    assert len(joined[0] & joined[1]) < 0.2 * len(joined[0])
    # The same texts by themselves are hidden otherwise too.
    made = examples.examples(3)
    masks = [examples.batch(made, np.random.default_rng(seed)).masked_rows for seed in (1, 2)]
    assert len(np.intersect1d(*masks)) < 0.5 * len(masks[0])


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more processes than this machine has cores
def test_a_batch_is_the_same_whoever_asks_and_whenever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "PAGE", 50)
    settings = ExampleSettings(length=40, batch_tokens=900, seed=5)
    examples = Examples(world.corpus, settings)
    expected = [examples[number] for number in range(70)]
    order = list(range(70))
    Random(3).shuffle(order)
    again = Examples(Corpus.open(world.corpus.folder), settings)
    assert again.batches_of_epoch(0) < 70
    assert all(same(again[number], expected[number]) for number in order)
    with prefetched(examples, order, 2) as batches:
        assert all(same(next(batches), expected[number]) for number in order)
    copied = pickle.loads(pickle.dumps(again))  # how it reaches processes that are not forked
    assert same(copied[57], expected[57])
    for other in (settings.replace(seed=6), settings.replace(seed=-5), settings.replace(length=41)):
        assert not same(Examples(world.corpus, other)[0], expected[0])
    held = settings.replace(held_out=2)
    parts = [Examples(world.corpus, held, part)[0] for part in ("training", "held_out")]
    assert not same(*parts)


def test_other_documents_are_drawn_evenly(world: World) -> None:
    examples = Examples(world.corpus, ExampleSettings(held_out=16), "held_out")
    own, draw = examples.documents.tolist(), Random(2)
    spans = {world.corpus.span(number): number for number in own}
    for document in (own[0], own[4], own[-1]):
        found = Counter(spans[examples._elsewhere(document, draw)] for _ in range(9000))
        assert set(found) == set(own) - {document}
        assert all(inside(drawn, 9000, 1 / 9) for drawn in found.values())


def all_batches(corpus: Corpus, settings: ExampleSettings, size: int = 30) -> list[PretrainBatch]:
    examples = Examples(corpus, settings)
    return [examples[number] for number in range(size)]


SETTINGS = [
    ExampleSettings(
        length=length, batch_tokens=64, held_out=0, pairs=PairSettings(objective=objective), masking=masking
    )
    for length in (8, 33)
    for objective in ("nsp", "sop", "none")
    for masking in (MaskingSettings(), MaskingSettings(unit="word"), MaskingSettings(unit="span", rate=0.9))
]


@pytest.mark.parametrize(
    "documents",
    [
        [letters(7), letters(3), letters(2)],  # a sentence each
        [letters(4, 3), letters(1)],  # two documents, one of one token
        [letters(9000, 1, 8000), letters(1, 1)],  # far longer than an example
        [letters(*[1] * 500), letters(2)],
        [letters(1), letters(1), letters(1), letters(1), letters(5)],  # pages without examples
    ],
    ids=["sentences", "two", "endless", "tokens", "empty pages"],
)
def test_degenerate_corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: list[list[str]]) -> None:
    monkeypatch.setattr(pretraining, "PAGE", 2)
    corpus = small(tmp_path, *documents)
    assert corpus.num_documents == len(documents)
    for settings in SETTINGS:
        for batch in all_batches(corpus, settings):
            assert batch.num_tokens <= 64
            assert max(batch.batch.layout.lengths) <= settings.length
            assert (batch.pair_labels is None) == (settings.pairs.objective == "none")
            for first, second in texts(batch):
                assert first
                assert bool(second) == (settings.pairs.objective != "none")


def test_too_little_text_is_said(tmp_path: Path) -> None:
    for name in ("one", "dots"):
        (tmp_path / name).mkdir()
    one = small(tmp_path / "one", letters(5, 5))
    with pytest.raises(DataError, match="has 1 documents for training but at least 2 are needed"):
        Examples(one, ExampleSettings())
    with pytest.raises(DataError, match="has 0 documents for held out but at least 2"):
        Examples(one, ExampleSettings(), "held_out")
    with pytest.raises(DataError, match="has 0 documents for training but at least 1"):
        Examples(one, ExampleSettings(held_out=1, pairs=PairSettings(objective="none")))
    assert len(all_batches(one, ExampleSettings(pairs=PairSettings(objective="sop")))) == 30
    dots = small(tmp_path / "dots", *[letters(1)] * 3)
    assert len(all_batches(dots, ExampleSettings(pairs=PairSettings(objective="none")))) == 30
    for objective in ("nsp", "sop"):
        examples = Examples(dots, ExampleSettings(pairs=PairSettings(objective=objective)))
        for _ in range(2):
            with pytest.raises(DataError, match="all 3 documents for training have a single token") as caught:
                examples[0]
            assert "\n" not in str(caught.value)
            with pytest.raises(DataError, match="single token"):
                examples.batches_of_epoch(1)


def test_a_batch_must_hold_an_example() -> None:
    assert ExampleSettings(length=64, batch_tokens=64).batch_tokens == 64
    with pytest.raises(SettingsError, match="batch_tokens 63 cannot hold an example of length 64; use at least 64"):
        ExampleSettings(length=64, batch_tokens=63)
    with pytest.raises(SettingsError, match="length"):
        ExampleSettings(length=7)


def test_a_tokenizer_without_the_special_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("aa bb\n" * 5, encoding="utf-8")
    tokenizer = train_tokenizer([tmp_path / "a.txt"], VocabularySettings(size=50))
    assert SpecialIds.of(tokenizer).all == {0, 1, 2, 3, 4}
    bare = Tokenizer.from_vocab(["[UNK]", "[CLS]", "[SEP]", "a", "b"])
    with pytest.raises(DataError, match=r"no \[CLS\], \[SEP\] or \[MASK\]"):
        SpecialIds.of(bare)
