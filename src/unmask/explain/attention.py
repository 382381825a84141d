"""Who looks at whom: the attention of a text as a self-contained HTML page, or one head as a PNG."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from unmask.bundle import Bundle
from unmask.errors import TaskError
from unmask.nn.record import record_attention
from unmask.storage import atomic_write, replacing

_PAGE = (Path(__file__).parent / "attention.html").read_text
_MAX_TOKENS = 128  # a picture of more cannot be read


@dataclass(frozen=True)
class AttentionMap:
    """The attention of every layer and head over one text."""

    tokens: list[str]
    weights: npt.NDArray[np.float32]  # (layers, heads, tokens, tokens); row looks at column


@torch.inference_mode()
def attention_map(bundle: Bundle, text: str, pair: str | None = None) -> AttentionMap:
    """Record the attention of a text, or of a pair of texts."""
    encoding = bundle.tokenizer.encode(text, pair)
    if len(encoding) > _MAX_TOKENS:
        raise TaskError(f"the text has {len(encoding)} tokens; an attention picture shows at most {_MAX_TOKENS}")
    with record_attention(bundle.encoder) as trace:
        bundle.encoder(bundle.batch([text], None if pair is None else [pair]))
    layers = [record.weights[0].float().cpu().numpy() for record in trace.attention.values()]
    return AttentionMap(encoding.tokens, np.stack(layers))


def write_html(found: AttentionMap, path: Path, title: str) -> None:
    """One page that needs nothing else: choose layer and head, point at a token to see what it looks at."""
    data = {
        "tokens": found.tokens,
        # Three digits are all that a colour can show; they keep the page small.
        "weights": np.rint(found.weights * 1000).astype(int).tolist(),
    }
    page = _PAGE(encoding="utf-8")
    page = page.replace("{{title}}", html.escape(title))
    # "</" must not end the script element early, whatever the tokens are.
    page = page.replace("{{data}}", json.dumps(data, ensure_ascii=False).replace("</", "<\\/"))
    atomic_write(path, page.encode())


def write_png(found: AttentionMap, path: Path, *, layer: int, head: int) -> None:
    """One head as a heat map."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layers, heads = found.weights.shape[:2]
    if not (0 <= layer < layers and 0 <= head < heads):
        raise TaskError(f"there is no head {head} in layer {layer}: the model has {layers} layers of {heads} heads")
    size = max(4.0, 0.32 * len(found.tokens) + 1.5)
    figure = Figure(figsize=(size, size), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(found.weights[layer, head], cmap="Blues", vmin=0, vmax=1)
    places = range(len(found.tokens))
    axes.set_xticks(places, found.tokens, rotation=90)
    axes.set_yticks(places, found.tokens)
    axes.set(xlabel="is looked at", ylabel="looks", title=f"layer {layer}, head {head}")
    figure.colorbar(image, ax=axes, shrink=0.7, label="attention weight")
    with replacing(path) as draft:
        figure.savefig(draft, format="png", dpi=120)
