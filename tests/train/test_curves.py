from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from unmask.train import curves
from unmask.train.curves import plot_curves


def write(run: Path, entries: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (run / "metrics.jsonl").write_text(text, encoding="utf-8")


def logged(update: int, **losses: float | None) -> dict[str, Any]:
    return {"update": update, "losses": losses, "gradient_norm": 1.0, "learning_rate": 1e-4 / update}


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Draws entries; gives the figure after checking that it reached the file."""
    figures: list[Figure] = []
    save = Figure.savefig

    def remember(self: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", remember)

    def draw(entries: list[dict[str, Any]]) -> Figure:
        write(tmp_path, entries)
        assert plot_curves(tmp_path) == tmp_path / "loss.png"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["loss.png", "metrics.jsonl"]
        pixels = imread(tmp_path / "loss.png")
        assert pixels.shape[1] > 1000
        assert (pixels[..., :3] < 0.5).any()
        return figures[-1]

    return draw


def labels(figure: Figure, panel: int) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].get_legend().get_texts()]


def test_panels_for_losses_other_values_and_the_learning_rate(drawn: Any) -> None:
    entries: list[dict[str, Any]] = []
    for update in range(1, 201):
        entries.append(logged(update, mlm=8 - 0.03 * update, nsp=0.7))
        if update % 50 == 0:
            found = {"mlm": 8.5 - 0.03 * update, "mlm_accuracy": update / 500, "tag_loss": 4.0}
            entries.append({"update": update, "evaluation": found})
    figure = drawn(entries)
    losses, evaluation, rate = figure.axes
    assert [panel.get_ylabel() for panel in figure.axes] == ["loss", "evaluation", "learning\nrate"]
    assert rate.get_xlabel() == "update"
    assert [label.rsplit("  ", 1)[0] for label in labels(figure, 0)] == [
        "mlm",
        "nsp",
        "mlm, evaluated",
        "tag_loss, evaluated",
    ]
    assert labels(figure, 1) == ["mlm_accuracy  0.4"]
    raw, smooth = losses.get_lines()[:2]
    assert raw.get_alpha() < 0.5 < smooth.get_linewidth()
    assert raw.get_color() == smooth.get_color()
    np.testing.assert_allclose(smooth.get_ydata()[20:-20], raw.get_ydata()[20:-20], atol=1e-9)  # a straight line
    evaluated = losses.get_lines()[4]
    assert evaluated.get_color() == raw.get_color()
    assert evaluated.get_linestyle() == "None"
    assert evaluated.get_xdata().tolist() == [50, 100, 150, 200]
    assert losses.get_yscale() == "log"  # 0.7 and 8 in one panel
    assert evaluation.get_yscale() == "linear"
    np.testing.assert_allclose(rate.get_lines()[0].get_ydata()[:2], [1e-4, 5e-5])


def test_one_loss_of_one_update(drawn: Any) -> None:
    figure = drawn([logged(1, loss=2.5)])
    assert labels(figure, 0) == ["loss  2.5"]
    assert len(figure.axes) == 2
    assert figure.axes[0].get_lines()[0].get_marker() == "o"
    assert all(float(tick).is_integer() for tick in figure.axes[1].get_xticks())


def test_few_points_are_not_smoothed(drawn: Any) -> None:
    values = [3.0, 1.0, 2.0, 5.0]
    figure = drawn([logged(number, mlm=value) for number, value in enumerate(values, 1)])
    (line,) = figure.axes[0].get_lines()
    assert line.get_ydata().tolist() == values


def test_what_is_no_number_is_a_gap(drawn: Any) -> None:
    entries = [logged(update, mlm=None if 40 <= update < 60 else 2.0, nsp=None) for update in range(1, 101)]
    entries.append({"update": 100, "evaluation": {"mlm": None, "accuracy": 0.5}})
    figure = drawn(entries)
    assert labels(figure, 0) == ["mlm  2"]
    assert labels(figure, 1) == ["accuracy  0.5"]
    smooth = figure.axes[0].get_lines()[1].get_ydata()
    assert np.isnan(smooth[39:59]).all()
    np.testing.assert_allclose(smooth[[0, 38, 59, 99]], 2.0)


def test_a_run_that_only_failed_still_has_a_picture(drawn: Any) -> None:
    figure = drawn([logged(1, mlm=math.nan)])
    assert [panel.get_ylabel() for panel in figure.axes] == ["learning\nrate"]


def test_values_far_from_accuracies_get_their_own_panel(drawn: Any) -> None:
    figure = drawn(
        [
            logged(1, mlm=3.0),
            {"update": 1, "evaluation": {"accuracy": 0.25, "perplexity": 900.0}},
            {"update": 2, "evaluation": {"accuracy": 0.5, "perplexity": 9.0}},
        ]
    )
    assert [labels(figure, panel) for panel in (1, 2)] == [["accuracy  0.5"], ["perplexity  9"]]
    assert figure.axes[2].get_yscale() == "log"


def test_an_outlier_does_not_squeeze_the_rest(drawn: Any) -> None:
    entries = [logged(update, mlm=2.0 + 0.5 * math.sin(update)) for update in range(1, 1001)]
    entries[500] = logged(501, mlm=1000.0)
    low, high = drawn(entries).axes[0].get_ylim()
    assert -10 < low < 2 < high < 100


def test_colours_and_marks_differ(drawn: Any) -> None:
    names = [f"loss {number}" for number in range(10)]
    figure = drawn([logged(update, **dict.fromkeys(names, 1.0 + update)) for update in (1, 2)])
    looks = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].get_lines()}
    assert len(looks) == 10


def test_strange_names_are_only_names(drawn: Any) -> None:
    names = {"_hidden": 1.0, "$x^$": 2.0, "损失": 3.0, "n" * 100: 1.5}
    shown = labels(drawn([logged(1, **names)]), 0)
    assert [label.split("  ")[0].strip()[:5] for label in shown] == ["_hidd", "$x^$", "损失", "nnnnn"]
    assert max(map(len, shown)) < 50


def test_a_long_run_is_drawn_with_fewer_points(drawn: Any) -> None:
    figure = drawn([logged(update, mlm=1 + update % 7) for update in range(1, 9_001)])
    assert all(len(line.get_xdata()) <= 4000 for panel in figure.axes for line in panel.get_lines())


@pytest.mark.parametrize("content", [None, "", '{"update": 1, "lo'])
def test_nothing_to_draw_leaves_no_picture(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content, encoding="utf-8")
    assert plot_curves(tmp_path) is None
    assert not (tmp_path / "loss.png").exists()


def test_no_global_state_is_touched(tmp_path: Path) -> None:
    write(tmp_path, [logged(1, mlm=1.0)])
    before = "matplotlib.pyplot" in sys.modules
    plot_curves(tmp_path)
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_smoothing_is_a_mean_of_neighbours() -> None:
    generator = np.random.default_rng(0)
    values = 5 + generator.normal(size=1000)
    smooth = curves._smooth(values)
    assert abs(smooth.mean() - values.mean()) < 0.02
    assert smooth.std() < 0.3 * values.std()
    np.testing.assert_allclose(curves._smooth(np.full(50, 3.0)), 3.0)  # the ends too
