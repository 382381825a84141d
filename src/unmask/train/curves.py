"""The curves of a run as one picture."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unmask.storage import replacing
from unmask.train.record import METRICS, is_loss, read_entries

PICTURE = "loss.png"

Numbers = npt.NDArray[np.float64]

#: Okabe and Ito's colours, which colour-blind people can tell apart; the yellow is left out, too faint for a line.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = "osD^vPX"
_DASHES = ("-", "--", ":")  # of losses beyond the number of colours
_MAX_POINTS = 4000  # more than a picture has columns for
_MAX_NAME = 36
_FEW = 30  # entries that can be seen one by one, and need no smoothing


@dataclass
class _Series:
    """One named value over the updates."""

    updates: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, update: int, value: float | None) -> None:
        self.updates.append(update)
        self.values.append(float("nan") if value is None or not np.isfinite(value) else float(value))

    @property
    def known(self) -> bool:
        return bool(np.isfinite(self.values).any())

    @property
    def share(self) -> bool:
        """Whether it may be an accuracy: all between 0 and 1."""
        return all(0 <= value <= 1 for value in self.values if np.isfinite(value))


@dataclass
class _Metrics:
    """What metrics.jsonl says, by name."""

    losses: dict[str, _Series] = field(default_factory=dict)
    evaluated: dict[str, _Series] = field(default_factory=dict)
    rate: _Series = field(default_factory=_Series)

    @classmethod
    def read(cls, path: Path) -> _Metrics:
        found = cls()
        for entry in read_entries(path):
            for kind, into in (("losses", found.losses), ("evaluation", found.evaluated)):
                for name, value in entry.get(kind, {}).items():
                    into.setdefault(name, _Series()).add(entry["update"], value)
            if "learning_rate" in entry:
                found.rate.add(entry["update"], entry["learning_rate"])
        found.losses = {name: series for name, series in found.losses.items() if series.known}
        found.evaluated = {name: series for name, series in found.evaluated.items() if series.known}
        return found


def plot_curves(run: Path) -> Path | None:
    """Draw RUN/metrics.jsonl as RUN/loss.png; None, and no picture, if nothing has been written down yet."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metrics = _Metrics.read(run / METRICS)
    losses = {name: series for name, series in metrics.evaluated.items() if is_loss(name, metrics.losses)}
    others = {name: series for name, series in metrics.evaluated.items() if name not in losses}
    shares = {name: series for name, series in others.items() if series.share}
    larger = {name: series for name, series in others.items() if name not in shares}
    draw: list[tuple[float, Callable[[Any], None]]] = []
    if metrics.losses or losses:
        draw.append((3.0, lambda panel: _draw_losses(panel, metrics.losses, losses)))
    if shares:
        draw.append((1.8, lambda panel: _draw_evaluated(panel, shares)))
    if larger:
        draw.append((1.8, lambda panel: _draw_evaluated(panel, larger)))
    if metrics.rate.known:
        draw.append((0.9, lambda panel: _draw_rate(panel, metrics.rate)))
    if not draw:
        return None
    heights = [height for height, _ in draw]
    figure = Figure(figsize=(9, 1.0 + 1.2 * sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(draw), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (_, onto) in zip(panels, draw, strict=True):
        panel.grid(alpha=0.25, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        onto(panel)
    _count_updates(panels[-1])
    path = run / PICTURE
    with replacing(path) as draft, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")  # a box in its place will do
        figure.savefig(draft, format="png", dpi=130)
    return path


def _draw_losses(panel: Any, losses: Mapping[str, _Series], evaluated: Mapping[str, _Series]) -> None:
    """Each training loss as a smooth line over its raw values, and each evaluated loss as points of its colour."""
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(losses)}
    seen = [_arrays(series)[1] for series in evaluated.values()]
    for number, (name, series) in enumerate(losses.items()):
        updates, values = _arrays(series)
        few = len(updates) <= _FEW
        smooth = values if few else _smooth(values)
        step = -(-len(updates) // _MAX_POINTS)
        if not few:
            panel.plot(updates[::step], values[::step], color=colours[name], alpha=0.25, linewidth=0.7)
        shown = {"color": colours[name], "linewidth": 1.8, "marker": "o" if few else None, "markersize": 4}
        dashes = _DASHES[number // len(_COLOURS) % len(_DASHES)]
        panel.plot(updates[::step], smooth[::step], dashes, label=_label(name, _last(smooth)), **shown)
        # A few outliers must not squeeze all the rest.
        seen += [smooth, np.nanquantile(values, [0.005, 0.995])]
    for number, (name, series) in enumerate(evaluated.items()):
        updates, values = _arrays(series)
        colour = colours.get(_trained(name, losses) or "", _COLOURS[(len(losses) + number) % len(_COLOURS)])
        dots = {"color": colour, "markeredgecolor": "black", "markeredgewidth": 0.7, "markersize": 6, "zorder": 3}
        label = _label(f"{name}, evaluated", _last(values))
        panel.plot(updates, values, _MARKERS[number % len(_MARKERS)], label=label, **dots)
    _scale(panel, seen)
    panel.set_ylabel("loss")
    _legend(panel)


def _draw_evaluated(panel: Any, evaluated: Mapping[str, _Series]) -> None:
    """Other values of evaluations, each with a marker of its own."""
    for number, (name, series) in enumerate(evaluated.items()):
        updates, values = _arrays(series)
        colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
        shown = {"color": colour, "marker": marker, "markersize": 5 if len(updates) <= _FEW else 3, "linewidth": 1.4}
        panel.plot(updates, values, label=_label(name, _last(values)), **shown)
    if not all(series.share for series in evaluated.values()):
        _scale(panel, [_arrays(series)[1] for series in evaluated.values()])
    panel.set_ylabel("evaluation")
    _legend(panel)


def _draw_rate(panel: Any, rate: _Series) -> None:
    updates, values = _arrays(rate)
    step = -(-len(updates) // _MAX_POINTS)
    mark = "o" if len(updates) <= _FEW else None
    panel.plot(updates[::step], values[::step], color="#555555", linewidth=1.4, marker=mark, markersize=4)
    top = float(np.nanmax(values))
    panel.set_ylim(0, 1.15 * top if top > 0 else 1)
    panel.set_ylabel("learning\nrate")
    panel.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))


def _count_updates(panel: Any) -> None:
    """The axis that all panels share: whole numbers from 0."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    panel.set_xlabel("update")


def _scale(panel: Any, drawn: Sequence[Numbers]) -> None:
    """Room for the values given; on a logarithmic axis if the small ones would lie flat on the ground otherwise."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    finite = [values[np.isfinite(values)] for values in drawn]
    low, high = min(float(values.min()) for values in finite), max(float(values.max()) for values in finite)
    middles = [float(np.median(values)) for values in finite]
    if low <= 0 or (max(middles) < 5 * min(middles) and high < 30 * low):
        margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
        panel.set_ylim(low - margin, high + margin)
        return
    panel.set_yscale("log")
    panel.set_ylim(low * (low / high) ** 0.06, high * (high / low) ** 0.06)
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())


def _legend(panel: Any) -> None:
    """Names and last values, beside the panel."""
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.03), "frameon": False}
    legend = panel.legend(**place, fontsize=9, title="last value", title_fontsize=9, alignment="left")
    for text in legend.get_texts():
        text.set_parse_math(False)  # a name may hold a $, which would otherwise begin a formula


def _label(name: str, value: float) -> str:
    """A short name with a value. The space is for names with an underscore, which would be left out of the legend."""
    short = name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + "…"
    return f"{' ' if name.startswith('_') else ''}{short}  {value:.4g}"


def _trained(name: str, losses: Iterable[str]) -> str | None:
    """The training loss that an evaluated loss belongs to: `mlm` for `mlm` and for `mlm_loss`."""
    return next((loss for loss in losses if name == loss or name.lower() == f"{loss}_loss".lower()), None)


def _last(values: Numbers) -> float:
    """The last value that is a number."""
    return float(values[np.isfinite(values)][-1])


def _arrays(series: _Series) -> tuple[npt.NDArray[np.int64], Numbers]:
    return np.array(series.updates, dtype=np.int64), np.array(series.values, dtype=np.float64)


def _smooth(values: Numbers) -> Numbers:
    """A weighted mean with neighbours on both sides, under a bell of some hundredths of the run; gaps stay gaps."""
    width = max(1.0, len(values) / 100)
    reach = int(3 * width)
    bell = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    finite = np.isfinite(values)
    weights = np.convolve(finite.astype(np.float64), bell, mode="same")
    sums = np.convolve(np.where(finite, values, 0.0), bell, mode="same")
    return np.where(finite, sums / np.where(finite, weights, 1.0), np.nan)
