"""Which word became which, as a picture."""

from __future__ import annotations

import io
from pathlib import Path

from unmask.errors import TaskError
from unmask.explain.fonts import families_for
from unmask.storage import atomic_write
from unmask.tasks.translate_align import WordAlignment

_KINDS = (".png", ".svg", ".pdf")


def check_picture(path: Path) -> None:
    """TaskError for a name whose ending is no kind of picture that can be drawn."""
    if path.suffix.lower() not in _KINDS:
        raise TaskError(f"{path}: a picture's name ends with {', '.join(_KINDS[:-1])} or {_KINDS[-1]}")


def draw_alignment(alignment: WordAlignment, path: Path) -> None:
    """A heat map: source words across, the words that were written down, dark where the model looked."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    check_picture(path)
    if not alignment.source or not alignment.target:
        raise TaskError("there is no alignment to draw: the text or its translation has no words")
    fonts = families_for("".join((*alignment.source, *alignment.target)))
    width, height = len(alignment.source), len(alignment.target)
    figure = Figure(figsize=(max(4.5, 2.2 + 0.5 * width), max(3.0, 1.4 + 0.42 * height)), dpi=130)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    drawn = axes.imshow(alignment.weights.numpy(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(width), alignment.source, rotation=60, ha="right", rotation_mode="anchor", family=fonts)
    axes.set_yticks(range(height), alignment.target, family=fonts)
    axes.set_xlabel("source")
    axes.set_ylabel("translation")
    figure.colorbar(drawn, ax=axes, label="share of attention")
    figure.tight_layout()
    made = io.BytesIO()
    figure.savefig(made, format=path.suffix.lower().removeprefix("."))
    atomic_write(path, made.getvalue())
