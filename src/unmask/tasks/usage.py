"""How a fine-tuned model is to be used: what its weights and config do not say, kept beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from unmask.config import Settings, read_json
from unmask.data.schemes import Scheme, scheme_of_labels
from unmask.errors import ModelError, SettingsError
from unmask.longtext.settings import LongTextSettings
from unmask.models.bert import Bert
from unmask.storage import atomic_write

USAGE = "unmask_task.json"
TaskName = Literal["classify", "tag", "qa"]


class Usage(Settings):
    """How texts are read and answers are made. What a task does not need keeps its default."""

    task: TaskName
    pair: bool | None = None
    """Whether it was trained on pairs of texts; None: nobody said, as of models made by others."""
    long_text: LongTextSettings = LongTextSettings()
    threshold: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Of several labels, those at least so probable are given."""
    separator: str | None = None
    """What stood between several labels in the file it learned from, and so in files it is measured on."""
    scheme: Scheme | None = "BIO"
    """How tags mark stretches; None: they do not, each word has a tag of its own."""
    max_question: Annotated[int, Field(ge=1)] = 64
    max_answer: Annotated[int, Field(ge=1)] = 30
    """Tokens of an answer at most."""
    no_answer: float | None = None
    """How much better than the best answer "there is none" must score to be given; None: always answer."""
    metric: Literal["squad", "cmrc"] = "squad"
    """How answers are compared with the right ones."""


def read_usage(folder: Path | None, model: Bert) -> Usage:
    """What a folder says; what its heads suggest where it says nothing, as folders made by others do."""
    path = None if folder is None else folder / USAGE
    if path is not None and path.is_file():
        try:
            data = read_json(path)
            return Usage.parse(data if isinstance(data, dict) else {}, str(path))
        except SettingsError as error:
            raise ModelError(str(error)) from None
    for head in model.settings.heads:
        match head.kind:
            case "classify":
                return Usage(task="classify")
            case "tag":
                return Usage(task="tag", scheme=scheme_of_labels(head.labels))
            case "qa":
                return Usage(task="qa")
            case _:
                continue
    has = ", ".join(model.heads) or "no head at all"
    raise ModelError(
        f"{folder or 'this model'}: has {has}, and can neither classify, tag nor answer; train it first, as with "
        "unmask train classify"
    )


def write_usage(folder: Path, usage: Usage) -> None:
    """Keep it in a model folder."""
    text = json.dumps(usage.model_dump(mode="json"), indent=1, ensure_ascii=False)
    atomic_write(folder / USAGE, (text + "\n").encode())
