"""What examples say of each other: copies, contradictions, leaks, and how labels are spread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from unmask.config import shown
from unmask.data.doctor.findings import Finding, Place, at_places, many
from unmask.data.doctor.items import Examples, Item
from unmask.data.label_kinds import natural
from unmask.errors import place

#: A label with fewer examples cannot be learned, nor measured.
RARE = 5
#: So many times more frequent may the most frequent label be than the rarest.
IMBALANCE = 10


def folded(item: Item) -> tuple[str, str | None]:
    """An item's texts without regard to case and spaces."""
    return _fold(item.text), None if item.pair is None else _fold(item.pair)


def repeated(items: Iterable[Item]) -> tuple[list[tuple[Item, Item]], list[tuple[Item, Item]]]:
    """Items that copy an earlier one, and items that have its text but say something else; each with the earlier."""
    first: dict[tuple[str, str | None], Item] = {}
    copies: list[tuple[Item, Item]] = []
    conflicts: list[tuple[Item, Item]] = []
    for item in items:
        earlier = first.setdefault((item.text, item.pair), item)
        if earlier is not item:
            (copies if earlier.label == item.label else conflicts).append((item, earlier))
    return copies, conflicts


def check_repeats(examples: Examples) -> Iterator[Finding]:
    """Copies and contradictions within a set."""
    copies, conflicts = repeated(examples.items)
    yield from at_places(
        "warning",
        "duplicate",
        (Place(item.file, item.line, f"as {_where(earlier, item)}") for item, earlier in copies),
        lambda number: f"{many(number, 'row copies', 'rows copy')} an earlier one exactly; --fix drops what is twice",
    )
    yield from at_places(
        "warning",
        "conflict",
        (Place(item.file, item.line, _disagreement(item, earlier)) for item, earlier in conflicts),
        lambda number: f"{many(number, 'row has', 'rows have')} the text of an earlier one but another label",
    )
    exact = {(item.text, item.pair) for item, _ in (*copies, *conflicts)}
    first: dict[tuple[str, str | None], Item] = {}
    near = []
    for item in examples.items:
        earlier = first.setdefault(folded(item), item)
        if (earlier.text, earlier.pair) != (item.text, item.pair) and (item.text, item.pair) not in exact:
            near.append(Place(item.file, item.line, f"as {_where(earlier, item)}"))
    yield from at_places(
        "note",
        "near_duplicate",
        near,
        lambda number: f"{many(number, 'row differs', 'rows differ')} from an earlier one only in case or spaces",
    )


def leaked(train: Iterable[Item], dev: Iterable[Item]) -> list[tuple[Item, Item]]:
    """Training items whose text is in the dev set too, case and spaces aside, each with the dev item."""
    known = {folded(item): item for item in dev}
    return [(item, known[key]) for item in train if (key := folded(item)) in known]


def check_leaks(train: Examples, dev: Examples) -> Iterator[Finding]:
    """Texts of the dev set that training has seen."""
    pairs = leaked(train.items, dev.items)
    seen = len({(found.file, found.line, found.id) for _, found in pairs})
    share = f"{seen / max(len(dev.items), 1):.1%}"
    yield from at_places(
        "warning",
        "leak",
        (Place(item.file, item.line, f"as {found.file}, {place(found.line)}") for item, found in pairs),
        lambda number: (
            f"{many(number, 'row is', 'rows are')} in the dev set too ({share} of it), so its figures will "
            "be too good; --fix drops them here"
        ),
    )
    if train.task == "qa":
        contexts = {item.pair for item in train.items}
        shared = [Place(item.file, item.line) for item in dev.items if item.pair in contexts]
        yield from at_places(
            "note", "shared_text", shared, lambda number: f"{many(number, 'question')} about a text of the training set"
        )


def check_labels(train: Examples, dev: Examples | None) -> Iterator[Finding]:
    """Whether there is something to learn, and whether dev asks for what was never shown."""
    if train.task == "qa" or not train.items:
        return
    if train.problem == "regression":
        yield from _check_numbers(train)
        return
    counts = train.counts
    file = train.files[0]
    if len(counts) < 2 and (train.task == "classify" or not counts):
        only = f"only the label {next(iter(counts))!r}" if counts else "no label at all"
        yield Finding("error", "one_class", f"there is {only}; to learn, at least two are needed", file)
    rare = sorted((label for label in counts if counts[label] < RARE), key=natural)
    if rare:
        listed = ", ".join(f"{label} ({counts[label]})" for label in rare[:10]) + (" …" if len(rare) > 10 else "")
        few = f"{many(len(rare), 'label has', 'labels have')} fewer than {RARE} examples: {listed}"
        message = f"{few}; join labels, or add examples"
        yield Finding("warning", "rare", message, file, count=len(rare))
    most, least = max(counts, key=lambda x: counts[x], default=""), min(counts, key=lambda x: counts[x], default="")
    if train.problem == "single" and len(counts) > 1 and counts[most] >= IMBALANCE * counts[least]:
        yield Finding(
            "warning",
            "imbalance",
            f"{most!r} has {counts[most]:,} examples and {least!r} {counts[least]:,}; rare labels count more with "
            'class_weights = "auto", and macro F1 says more than accuracy',
            file,
        )
    if dev is not None:
        yield from _check_dev_labels(train, dev)


def _check_dev_labels(train: Examples, dev: Examples) -> Iterator[Finding]:
    known, used = train.counts, dev.counts
    for label in sorted(used.keys() - known.keys(), key=natural):
        yield from at_places(
            "error",
            "unknown_label",
            (Place(item.file, item.line) for item in dev.items if label in item.labels),
            lambda number, label=label: f"the label {label!r} is in {many(number, 'row')} here but never in training",  # type: ignore[misc]
        )
    missing = sorted(known.keys() - used.keys(), key=natural) if dev.items else []
    if missing:
        listed = ", ".join(missing[:10]) + (" …" if len(missing) > 10 else "")
        what = f"{many(len(missing), 'label')} of the training set"
        message = f"{what} never occur here, so nothing is said of them: {listed}"
        yield Finding("note", "unused_label", message, dev.files[0], count=len(missing))


def _check_numbers(train: Examples) -> Iterator[Finding]:
    values: set[Any] = {item.label for item in train.items}
    if len(values) < 2:
        message = f"every number is {next(iter(values))}; to learn, at least two are needed"
        yield Finding("error", "one_class", message, train.files[0])


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


def _where(earlier: Item, item: Item) -> str:
    return place(earlier.line) if earlier.file == item.file else f"{earlier.file}, {place(earlier.line)}"


def _disagreement(item: Item, earlier: Item) -> str:
    simple = isinstance(item.label, str | float)
    said = f"{shown(item.label)}, but {shown(earlier.label)} on " if simple else "other than on "
    return said + _where(earlier, item)
