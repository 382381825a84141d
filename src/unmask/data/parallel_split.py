"""A part of a parallel text kept for dev or test, of which nothing is trained on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import numpy as np

from unmask.data.parallel import Pair
from unmask.data.parallel_facts import Hashes, hash_texts
from unmask.errors import DataError, SettingsError

Side = Literal["source", "target", "both"]


def split_pairs(
    pairs: Iterable[Pair],
    *,
    share: float | None = None,
    count: int | None = None,
    seed: int = 0,
    key: Side = "both",
) -> tuple[list[Pair], list[Pair]]:
    """The larger part, and one of a share of all pairs, or of `count` of them; each in its old order.

    All pairs with the same text on the side `key` go to one part; with "both", all that share a text on either side,
    also through others. Where texts have several translations (as in Tatoeba), a split by pairs would show the model in
    training what it is asked later. Which go where depends on their text and the seed alone, not on their order;
    where a group does not fit any more, the part is a few pairs smaller.
    """
    held = list(pairs)
    wanted = _wanted(len(held), share, count)
    if key not in get_args(Side):
        raise SettingsError(f"key is {', '.join(get_args(Side))}, given {key!r}")
    # Groups are named by hashes that depend on the seed: their order is a random one.
    _, group, sizes = np.unique(_groups(held, seed, key), return_inverse=True, return_counts=True)
    chosen = np.zeros(len(sizes), dtype=np.bool_)
    for number, size in enumerate(sizes.tolist()):
        if size <= wanted:
            chosen[number] = True
            wanted -= size
        if not wanted:
            break
    small = chosen[group]
    if not small.any() or small.all():
        raise DataError(
            f"{len(held):,} pairs cannot be split so: those that share a text make {len(sizes):,} "
            f"{'group' if len(sizes) == 1 else 'groups'}; choose another share, or give a file of its own"
        )
    parts: tuple[list[Pair], list[Pair]] = [], []
    for pair, part in zip(held, small.tolist(), strict=True):
        parts[part].append(pair)
    return parts


def _groups(pairs: Sequence[Pair], seed: int, key: Side) -> Hashes:
    """For each pair the name of its group, the same for all that must stay together."""
    sides = {"source": [pair.source for pair in pairs], "target": [pair.target for pair in pairs]}
    if key != "both":
        return hash_texts(sides[key], seed)
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    hashes = [hash_texts(sides["source"], seed), hash_texts(sides["target"], seed + 1)]
    places = [np.unique(one, return_inverse=True)[1] for one in hashes]
    # Texts are the points of a graph, and pairs its edges: what hangs together stays together.
    first = int(places[0].max()) + 1
    size = first + int(places[1].max()) + 1
    edges = coo_array((np.ones(len(pairs), dtype=np.int8), (places[0], places[1] + first)), shape=(size, size))
    _, parts = connected_components(edges, directed=False)
    mine = parts[places[0]]
    names = np.full(int(mine.max()) + 1, np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(names, mine, hashes[0])
    return names[mine]


def _wanted(pairs: int, share: float | None, count: int | None) -> int:
    """How many pairs the smaller part is to have."""
    if (share is None) == (count is None):
        raise SettingsError("a split needs either a share or a count of pairs")
    if share is not None and not 0 < share < 1:
        raise SettingsError(f"a share lies between 0 and 1, given {share}")
    wanted = max(1, round(share * pairs)) if share is not None else count or 0
    if not 0 < wanted < pairs:
        raise SettingsError(f"{wanted:,} of {pairs:,} pairs cannot be set apart; at least one must be on either side")
    return wanted
