from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from unmask.data.batching import collate, token_budget_batches
from unmask.text import Tokenizer


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 120))
def test_every_sequence_is_in_one_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = token_budget_batches(lengths, budget)
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or sum(lengths[number] for number in batch) <= budget
    flat = [lengths[number] for batch in batches for number in batch]
    assert flat == sorted(flat)
    # No batch could have taken the first sequence of the next one.
    for batch, following in pairwise(batches):
        assert sum(lengths[number] for number in batch) + lengths[following[0]] > budget


def test_collate_lays_ids_and_segments_end_to_end() -> None:
    tokenizer = Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"])
    batch = collate(tokenizer.encode_batch(["a b", "c"], ["c", "a b"]))
    assert batch.ids.tolist() == [2, 5, 6, 3, 7, 3, 2, 7, 3, 5, 6, 3]
    assert batch.segments.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1]
    assert batch.layout.lengths == (6, 6)
