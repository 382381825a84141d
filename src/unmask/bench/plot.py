"""The figures of a measurement as a picture."""

from __future__ import annotations

from pathlib import Path

from unmask.bench.run import Report
from unmask.storage import replacing


def plot(report: Report, path: Path) -> None:
    """Throughput, and latency where it was measured, as bars; complete or not at all. The kind is the name's."""
    from matplotlib.figure import Figure

    figures = sorted(report.figures, key=lambda one: one.texts_per_second)
    lengths = sorted(figures[0].latency)
    names = [one.name for one in figures]
    figure = Figure(figsize=(11 if lengths else 6.5, 1.6 + 0.38 * len(names)))
    panels = list(figure.subplots(1, 1 + bool(lengths), squeeze=False)[0])
    colours = ["#c2410c" if one.name.startswith("unmask") else "#64748b" for one in figures]
    bars = panels[0].barh(names, [one.texts_per_second for one in figures], color=colours)
    panels[0].bar_label(bars, labels=[f"{one.texts_per_second:,.0f}" for one in figures], padding=3, fontsize=8)
    panels[0].set_xlabel("texts per second, tokenizing included (more is better)")
    panels[0].margins(x=0.12)
    if lengths:
        height = 0.8 / len(lengths)
        for number, length in enumerate(lengths):
            places = [place + (number - (len(lengths) - 1) / 2) * height for place in range(len(names))]
            values = [one.latency[length]["p50"] for one in figures]
            shade = ("#0f766e", "#5eead4", "#94a3b8")[number % 3]
            drawn = panels[1].barh(places, values, height, color=shade, label=f"{length} tokens")
            panels[1].bar_label(drawn, labels=[f"{value:.1f}" for value in values], padding=3, fontsize=7)
        panels[1].set_yticks(range(len(names)), names)
        panels[1].set_xlabel("milliseconds for one text, median (less is better)")
        panels[1].margins(x=0.12)
        panels[1].legend(fontsize=8, loc="upper right")
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
    mean = sum(report.tokens) / len(report.tokens)
    title = f"{report.model}: {report.texts} texts, mean {mean:.0f} and at most {max(report.tokens)} tokens, "
    figure.suptitle(title + f"{report.threads} threads", fontsize=10)
    figure.tight_layout()
    with replacing(path) as draft:
        figure.savefig(draft, format=path.suffix[1:], dpi=130)
