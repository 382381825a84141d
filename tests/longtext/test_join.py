from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unmask.longtext.encode import encode_long, encode_questions
from unmask.longtext.join import farthest_from_cuts, join_tags
from unmask.longtext.settings import LongTextSettings, Strategy
from unmask.longtext.windows import Window, pieces
from unmask.nn.windows import WindowAttention, join_rows
from unmask.text import Tokenizer

H = 7
OWNERS = torch.tensor([2, 0, 2, 1, 2, 0])


@pytest.fixture
def rows() -> Tensor:
    return torch.randn(len(OWNERS), H, generator=torch.Generator().manual_seed(1), requires_grad=True)


def test_rows_join_as_by_hand(rows: Tensor) -> None:
    texts = [[1, 5], [3], [0, 2, 4]]
    mean = join_rows(rows, OWNERS, 3, "mean")
    highest = join_rows(rows, OWNERS, 3, "max")
    weights = torch.tensor([3.0, 1.0, 2.0, 9.0, 5.0, 4.0])
    weighted = join_rows(rows, OWNERS, 3, "mean", weights)
    for number, own in enumerate(texts):
        torch.testing.assert_close(mean[number], rows[own].mean(0))
        assert torch.equal(highest[number], rows[own].amax(0))
        expected = (rows[own] * weights[own, None]).sum(0) / weights[own].sum()
        torch.testing.assert_close(weighted[number], expected)
    for joined in (mean, highest, weighted):
        assert torch.equal(joined[1], rows[3])


def test_attention_is_a_softmax_over_the_windows_of_each_text(rows: Tensor) -> None:
    torch.manual_seed(0)
    attention = WindowAttention(H)
    joined = attention(rows, OWNERS, 3)
    for number, own in enumerate([[1, 5], [3], [0, 2, 4]]):
        scores = torch.stack([attention.score.weight[0] @ torch.tanh(attention.dense(rows[row])) for row in own])
        torch.testing.assert_close(joined[number], torch.softmax(scores, 0) @ rows[own])
    assert torch.equal(joined[1], rows[3])
    weights = attention.weights(rows, OWNERS, 3)
    torch.testing.assert_close(torch.zeros(3).index_add(0, OWNERS, weights), torch.ones(3))
    joined[0].sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in attention.parameters())


def test_attention_to_a_single_window_is_the_identity(rows: Tensor) -> None:
    assert torch.equal(WindowAttention(H)(rows, torch.arange(len(rows)), len(rows)), rows)


def test_attention_survives_large_scores(rows: Tensor) -> None:
    attention = WindowAttention(H)
    with torch.no_grad():
        attention.score.weight.mul_(1e6)
    assert torch.isfinite(attention(rows, OWNERS, 3)).all()


def test_order_of_windows_does_not_matter(rows: Tensor) -> None:
    order = torch.tensor([4, 1, 0, 5, 3, 2])
    attention = WindowAttention(H)
    torch.testing.assert_close(attention(rows[order], OWNERS[order], 3), attention(rows, OWNERS, 3))


def by_hand(windows: list[Window], token: int, num_tokens: int) -> tuple[int, int]:
    best, owner, place = -1, -1, -1
    for number, window in enumerate(windows):
        before = 0
        for start, end in window.ranges:
            if start <= token < end:
                left = token - start if start else num_tokens
                right = end - 1 - token if end < num_tokens else num_tokens
                if min(left, right) > best:
                    best, owner, place = min(left, right), number, before + token - start
            before += end - start
    return owner, place


@given(
    st.integers(0, 120),
    st.integers(1, 40),
    st.sampled_from(["head", "tail", "head_tail", "windows", "parts"]),
    st.data(),
)
def test_each_token_is_taken_where_it_is_farthest_from_a_cut(
    num_tokens: int, room: int, strategy: Strategy, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, room - 1))
    windows = pieces(num_tokens, room, LongTextSettings(strategy=strategy, overlap=overlap))
    owner, place = farthest_from_cuts(windows, num_tokens)
    expected = [by_hand(windows, token, num_tokens) for token in range(num_tokens)]
    assert list(zip(owner.tolist(), place.tolist(), strict=True)) == expected


SPANS = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda ends: Window.of(min(ends), max(ends)))


@given(st.lists(SPANS, max_size=6))
def test_windows_may_lie_anyhow(windows: list[Window]) -> None:
    owner, place = farthest_from_cuts(windows, 20)
    expected = [by_hand(windows, token, 20) for token in range(20)]
    assert list(zip(owner.tolist(), place.tolist(), strict=True)) == expected


def test_the_ends_of_a_text_are_no_cuts() -> None:
    owner, place = farthest_from_cuts([Window.of(0, 6), Window.of(4, 10)], 10)
    assert owner.tolist() == [0] * 5 + [1] * 5
    assert place.tolist() == [0, 1, 2, 3, 4, 1, 2, 3, 4, 5]
    assert farthest_from_cuts([Window.of(0, 3), Window.of(0, 9)], 10)[0].tolist() == [1] * 9 + [-1]
    assert farthest_from_cuts([Window.of(7, 10), Window.of(1, 10)], 10)[0].tolist() == [-1] + [1] * 9


@pytest.mark.parametrize("strategy", ["head", "tail", "head_tail", "windows"])
@pytest.mark.parametrize("count", [0, 3, 10, 11, 47])
def test_tags_stand_at_their_tokens(tokenizer: Tokenizer, strategy: Strategy, count: int) -> None:
    """Each row of a window says its token's id and offsets, so a row in a wrong place shows."""
    text = " ".join(f"w{number}" for number in range(count))
    (found,) = encode_long(tokenizer, [text], None, 12, LongTextSettings(strategy=strategy, overlap=4))
    scores = [
        torch.tensor([[float(id), float(start)] for id, (start, _) in zip(w.ids, w.offsets, strict=True)])
        for w in found.windows
    ]
    joined, seen = join_tags(scores, found)
    assert joined.shape == (count, 2)
    assert seen.sum() == count - found.dropped
    expected = torch.tensor(
        [[tokenizer.id(f"w{number}"), text.index(f"w{number}")] for number in range(count)]
    ).reshape(count, 2)
    assert torch.equal(joined[seen], expected[seen].float())
    assert (joined[~seen] == 0).all()


def test_tags_of_the_second_text(tokenizer: Tokenizer) -> None:
    text = " ".join(f"w{number}" for number in range(30))
    (found,) = encode_questions(tokenizer, ["hello world"], [text], 15)
    scores = [torch.tensor([[float(id)] for id in window.ids]) for window in found.windows]
    joined, seen = join_tags(scores, found, text=1)
    assert seen.all()
    assert joined[:, 0].tolist() == [tokenizer.id(f"w{number}") for number in range(30)]


def test_rows_of_other_windows_are_refused(tokenizer: Tokenizer) -> None:
    (found,) = encode_long(tokenizer, ["w1 w2 w3"], None, 12, LongTextSettings())
    with pytest.raises(ValueError, match=r"have \[5\] tokens but \[3\] rows"):
        join_tags([torch.zeros(3, 2)], found)
