"""Who looks at whom: the attention of a text as a self-contained HTML page, or one head as a PNG."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from unmask.bundle import Bundle
from unmask.errors import TaskError
from unmask.explain.fonts import families_for
from unmask.nn.record import record_attention
from unmask.storage import atomic_write, replacing

_PAGE = (Path(__file__).parent / "attention.html").read_text
_MAX_TOKENS = 128  # a picture of more cannot be read
_MAX_LABEL = 24  # characters of a token that a picture has room for


@dataclass(frozen=True)
class AttentionMap:
    """The attention of every layer and head over one text."""

    tokens: list[str]
    weights: tuple[npt.NDArray[np.float32], ...]  # one a layer: (heads, tokens, tokens); row looks at column


@torch.inference_mode()
def attention_map(bundle: Bundle, text: str, pair: str | None = None) -> AttentionMap:
    """Record the attention of a text, or of a pair of texts."""
    encoding = bundle.tokenizer.encode(text, pair)
    if len(encoding) > _MAX_TOKENS:
        raise TaskError(f"the text has {len(encoding)} tokens; an attention picture shows at most {_MAX_TOKENS}")
    with record_attention(bundle.encoder) as trace:
        bundle.encoder(bundle.batch([text], None if pair is None else [pair]))
    layers = (record.weights[0].float().cpu().numpy() for record in trace.attention.values())
    return AttentionMap(encoding.tokens, tuple(layers))


def write_html(found: AttentionMap, path: Path | str, title: str) -> None:
    """One page that needs nothing else: choose layer and head, point at a row to see what its token looks at."""
    data = {
        "tokens": found.tokens,
        # Three digits are all that a colour can show; they keep the page small.
        "weights": [np.rint(layer * 1000).astype(int).tolist() for layer in found.weights],
    }
    # Without any "<", nothing in the tokens can end the script element or begin a comment.
    parts = {"title": html.escape(title), "data": json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")}
    # In one pass, so that what is put in is not searched for places to put something in.
    page = re.sub(r"\{\{(title|data)\}\}", lambda place: parts[place[1]], _PAGE(encoding="utf-8"))
    atomic_write(Path(path), page.encode(errors="backslashreplace"))


def write_png(found: AttentionMap, path: Path | str, *, layer: int, head: int) -> None:
    """One head as a heat map. TaskError if no font here can draw the tokens; the page needs none."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not 0 <= layer < len(found.weights):
        raise TaskError(f"there is no layer {layer}: they go from 0 to {len(found.weights) - 1}")
    if not 0 <= head < len(found.weights[layer]):
        raise TaskError(f"there is no head {head} in layer {layer}: they go from 0 to {len(found.weights[layer]) - 1}")
    labels = [token if len(token) <= _MAX_LABEL else token[: _MAX_LABEL - 1] + "…" for token in found.tokens]
    families = families_for("".join(labels))
    size = max(4.0, 0.32 * len(labels) + 1.5)
    figure = Figure(figsize=(size, size), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(found.weights[layer][head], cmap="Blues", vmin=0, vmax=1)
    # A token may hold a $, which would otherwise begin a formula.
    axes.set_xticks(range(len(labels)), labels, rotation=90, fontfamily=families, parse_math=False)
    axes.set_yticks(range(len(labels)), labels, fontfamily=families, parse_math=False)
    axes.set(xlabel="is looked at", ylabel="looks", title=f"layer {layer}, head {head}")
    figure.colorbar(image, ax=axes, shrink=0.7, label="attention weight")
    with replacing(Path(path)) as draft:
        figure.savefig(draft, format="png", dpi=120)
