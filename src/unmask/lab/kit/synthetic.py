"""Made-up tasks that isolate one ability each. Every sequence begins with [CLS], whose row gives the answer."""

from __future__ import annotations

import torch

from unmask.lab.kit.classify import Draw, Examples

CLS, QUERY, FIRST, SECOND = range(4)
ORDINARY = 4  # ids from here on mean nothing but themselves


def copy_far(distance: int, symbols: int = 16, batch: int = 64) -> Draw:
    """Which symbol stood `distance` tokens before the end? All that is between is noise of other symbols."""

    def draw(_: int, generator: torch.Generator) -> Examples:
        answers = torch.randint(symbols, (batch,), generator=generator)
        noise = torch.randint(symbols, (batch, distance), generator=generator) + ORDINARY + symbols
        rows = [
            [CLS, ORDINARY + int(answer), *line.tolist(), QUERY] for answer, line in zip(answers, noise, strict=True)
        ]
        return Examples(rows, answers.tolist())

    return draw


def recall(pairs: int, symbols: int = 16, batch: int = 64) -> Draw:
    """Pairs of a key and a value, then one of the keys: what was its value? Keys differ within a sequence."""

    def draw(_: int, generator: torch.Generator) -> Examples:
        rows, labels = [], []
        for _ in range(batch):
            keys = torch.randperm(symbols, generator=generator)[:pairs]
            values = torch.randint(symbols, (pairs,), generator=generator)
            asked = int(torch.randint(pairs, (1,), generator=generator))
            row = [CLS]
            for key, value in zip(keys.tolist(), values.tolist(), strict=True):
                row += [ORDINARY + key, ORDINARY + symbols + value]
            rows.append([*row, QUERY, ORDINARY + int(keys[asked])])
            labels.append(int(values[asked]))
        return Examples(rows, labels)

    return draw


def order(length: int = 24, symbols: int = 32, batch: int = 64) -> Draw:
    """Two marked tokens somewhere in noise: does the first kind come before the second?"""

    def draw(_: int, generator: torch.Generator) -> Examples:
        rows, labels = [], []
        for _ in range(batch):
            row = (torch.randint(symbols, (length,), generator=generator) + ORDINARY).tolist()
            one, two = torch.randperm(length, generator=generator)[:2].tolist()
            row[one], row[two] = FIRST, SECOND
            rows.append([CLS, *row])
            labels.append(int(one < two))
        return Examples(rows, labels)

    return draw


def fixed(draw: Draw, count: int, seed: int = 12345) -> Examples:
    """So many examples that are always the same, to measure on."""
    generator = torch.Generator().manual_seed(seed)
    found = Examples([], [])
    number = 0
    while len(found) < count:
        more = draw(number, generator)
        found = Examples(found.sequences + more.sequences, found.labels + more.labels)
        number += 1
    return found.some(list(range(count)))
