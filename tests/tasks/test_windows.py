"""Windows in batches and examples in epochs: nothing lost, nothing twice, in order, and the same from any number on."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import finetune_toy as toy
from unmask.longtext.encode import encode_long
from unmask.longtext.settings import LongTextSettings
from unmask.models.settings import TagSettings
from unmask.tasks import windows
from unmask.tasks.windows import Epochs, Ready, batch_of, by_text, chunked, run_windows, with_marks


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 5), st.integers(0, 3))
def test_every_epoch_has_each_example_once(count: int, size: int, accumulate: int, seed: int) -> None:
    epochs = Epochs(range(count), list, size, accumulate, seed)
    updates = epochs.updates_of_epoch
    assert updates == max(1, count // size)
    for epoch in range(2):
        numbers = range(epoch * updates * accumulate, (epoch + 1) * updates * accumulate)
        parts = [epochs[number] for number in numbers]
        assert sorted(itertools.chain.from_iterable(parts)) == list(range(count))
        sizes = [sum(map(len, parts[n : n + accumulate])) for n in range(0, len(parts), accumulate)]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= min(size, count)


def test_a_micro_batch_is_a_function_of_its_number() -> None:
    numbers = list(range(30))
    epochs = Epochs(range(50), list, 8, 2, seed=1)
    in_order = [epochs[number] for number in numbers]
    jumping = Epochs(range(50), list, 8, 2, seed=1)
    assert [jumping[number] for number in reversed(numbers)] == in_order[::-1]
    assert [Epochs(range(50), list, 8, 2, seed=2)[number] for number in numbers] != in_order
    assert in_order[:12] != in_order[12:24]  # every epoch has its own order
    # However an update is split into micro-batches, it has the same examples.
    whole = Epochs(range(50), list, 8, 1, seed=1)
    assert [in_order[2 * n] + in_order[2 * n + 1] for n in range(6)] == [whole[n] for n in range(6)]


@given(st.lists(st.integers(0, 3000), max_size=60))
def test_chunks_are_bounded_and_lose_nothing(sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "CHUNK_TEXTS", 7)
        patch.setattr(windows, "CHUNK_CHARACTERS", 4000)
        chunks = list(chunked(iter(sizes), lambda size: size))
    assert list(itertools.chain.from_iterable(chunks)) == sizes
    for chunk in chunks:
        assert 1 <= len(chunk) <= 7
        assert sum(chunk[:-1]) < 4000


def test_chunks_are_made_as_they_are_asked_for() -> None:
    taken: list[int] = []

    def items() -> object:
        for number in itertools.count():
            taken.append(number)
            yield number

    first = next(chunked(items(), lambda _: 1))
    assert len(first) == len(taken) == windows.CHUNK_TEXTS


def test_a_window_knows_where_its_second_text_begins() -> None:
    settings = LongTextSettings(strategy="windows")
    texts, pairs = ["the ada", "the " * 100, "", "a"], ["was", "bob was", "was", "b " * 200]
    made = encode_long(toy.tokenizer(), texts, pairs, 32, settings)
    ready = [window for one in made for window in Ready.all_of(one)]
    assert len(ready) > 10
    batch = batch_of(ready)
    expected = [segment for one in made for window in one.windows for segment in window.segments]
    assert batch.segments.tolist() == expected
    assert batch.ids.tolist() == [id for one in made for window in one.windows for id in window.ids]
    assert list(batch.layout.lengths) == [len(window) for window in ready]
    single = encode_long(toy.tokenizer(), texts, None, 32, settings)
    assert batch_of([window for one in single for window in Ready.all_of(one)]).segments.sum() == 0


@pytest.mark.parametrize("budget", [1, 50, 2048, 10**6])
def test_answers_come_in_the_order_of_windows(budget: int) -> None:
    model = toy.model_with(TagSettings(labels=("a", "b"), dropout=0.5))
    generator = np.random.default_rng(0)
    ready = [Ready(generator.integers(5, 50, size=size).astype(np.int32), 0) for size in (9, 2, 40, 3, 64, 2, 17)]
    found = run_windows(model, ready, lambda encoded: list(encoded.layout.split(encoded.sequence)), budget=budget)
    firsts = run_windows(model, ready, lambda encoded: list(encoded.pooled), firsts=True, budget=budget)
    assert model.training
    model.eval()
    for window, rows, pooled in zip(ready, found, firsts, strict=True):
        alone = model(batch_of([window]))
        torch.testing.assert_close(rows, alone.sequence.detach(), atol=1e-5, rtol=0)
        torch.testing.assert_close(pooled, alone.pooled[0].detach(), atol=1e-5, rtol=0)


def test_found_of_windows_goes_to_their_texts() -> None:
    assert [list(part) for part in by_text("abcdef", [2, 0, 3, 1])] == [["a", "b"], [], ["c", "d", "e"], ["f"]]


def test_marks_belong_to_the_character_before_them() -> None:
    assert with_marks("cafe\u0301\u0302 x", 4) == 6
    assert with_marks("cafe x", 4) == 4
    assert with_marks("cafe", 4) == 4
    assert with_marks("👍\ufe0f.", 1) == 2
