"""Chinese headlines and their topics: small classifiers, trained for seconds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from unmask.lab.entry import Record
from unmask.lab.kit.classify import accuracy, batches_of, classifier_settings, learned
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.labelled import labelled
from unmask.lab.kit.newspaper import CHOOSING, best_rate

DATA = "thucnews-10k"
#: So many of the test texts are measured on.
MEASURED = 1000


def updates_of(epochs: float, batch: int) -> int:
    """How many updates so many rounds through the training texts are."""
    return max(2, round(epochs * len(labelled(DATA).train) / batch))


def headlines(changes: Mapping[str, Any], batch: int, epochs: float, rate: float, seed: int) -> Record:
    """Train a classifier; accuracy on test texts, or on others in runs by which something is chosen."""
    data = labelled(DATA)
    settings = classifier_settings(data.vocab, len(data.labels), changes)
    updates = updates_of(epochs, batch)
    model, _ = learned(settings, batches_of(data.train, batch), Fit(updates, rate), seed)
    measured = data.dev if seed == CHOOSING else data.test.some(list(range(MEASURED)))
    return {"accuracy": accuracy(model, measured), "rate": rate, "updates": updates}


@cache
def rate_for(changes: tuple[tuple[str, Any], ...], batch: int, epochs: float, rates: tuple[float, ...]) -> float:
    """The better rate in a quarter of the run, with a seed of its own and on texts that decide nothing else."""

    def short(rate: float) -> float:
        return -float(headlines(dict(changes), batch, epochs / 4, rate, CHOOSING)["accuracy"])

    return best_rate({rate: partial(short, rate) for rate in rates})
