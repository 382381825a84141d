from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from unmask.errors import SettingsError
from unmask.train.losses import IGNORED, LossSettings, class_weights, cross_entropy, weight_of

ROWS, CLASSES = 23, 5
SPLITS = [(23,), (1, 22), (7, 3, 13), (1,) * 23]


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64) * 3
    targets = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    weights = torch.tensor([0.1, 3.0, 1.0, 0.7, 20.0], dtype=torch.float64)
    return logits, targets, weights


@pytest.mark.parametrize("split", SPLITS, ids=["whole", "two", "three", "each"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
def test_sum_by_count_is_torchs_mean(split: tuple[int, ...], smoothing: float, weighted: bool, ignored: bool) -> None:
    logits, targets, table = example()
    weights = table if weighted else None
    if ignored:
        targets[::4] = IGNORED
    logits.requires_grad_()
    expected = F.cross_entropy(logits, targets, weights, label_smoothing=smoothing)
    (wanted,) = torch.autograd.grad(expected, logits)
    pieces = list(zip(logits.split(split), targets.split(split), strict=True))
    count = sum(weight_of(one, weights) for _, one in pieces)
    total = sum(cross_entropy(rows, one, smoothing, weights) for rows, one in pieces) / count
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)
    (found,) = torch.autograd.grad(total, logits)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-15)


def test_smoothing_and_weights_do_something() -> None:
    logits, targets, weights = example()
    values = [float(cross_entropy(logits, targets, s, w)) for s in (0.0, 0.1) for w in (None, weights)]
    assert len(set(values)) == 4


def test_two_rows_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    targets = torch.tensor([0, 1])
    plain = -(np.log(0.5) + np.log(0.8))
    assert float(cross_entropy(logits, targets)) == pytest.approx(plain, rel=1e-6)
    uniform = -(np.log([0.5, 0.25, 0.25]).mean() + np.log([0.1, 0.8, 0.1]).mean())
    assert float(cross_entropy(logits, targets, 0.2)) == pytest.approx(0.8 * plain + 0.2 * uniform, rel=1e-6)
    weights = torch.tensor([2.0, 5.0, 1.0])
    assert float(cross_entropy(logits, targets, weights=weights)) == pytest.approx(
        -(2 * np.log(0.5) + 5 * np.log(0.8)), rel=1e-6
    )
    assert weight_of(targets, weights) == 7.0
    assert weight_of(targets) == 2.0


def test_few_digits_are_summed_with_many() -> None:
    logits = torch.zeros(4096, 2, dtype=torch.bfloat16)
    targets = torch.zeros(4096, dtype=torch.long)
    weights = torch.tensor([0.3, 1.0])
    found = cross_entropy(logits, targets, 0.1, weights)
    assert found.dtype == torch.float32
    wanted = F.cross_entropy(logits.double(), targets, weights.double(), reduction="sum", label_smoothing=0.1)
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)


def test_auto_is_inverse_frequency() -> None:
    """What scikit-learn calls balanced: N / (C · count)."""
    found = class_weights(LossSettings(class_weights="auto"), ["a", "b", "c", "d"], [4, 50, 1, 5])
    assert found is not None
    assert found.tolist() == pytest.approx([3.75, 0.3, 15.0, 3.0])
    assert (found * torch.tensor([4, 50, 1, 5])).sum() / 60 == pytest.approx(1.0)


def test_a_label_that_never_occurs_weighs_one_and_the_others_as_without_it() -> None:
    found = class_weights(LossSettings(class_weights="auto"), ["a", "never", "b"], [1, 0, 3])
    assert found is not None
    assert found.tolist() == pytest.approx([2.0, 1.0, 2 / 3])
    nothing = class_weights(LossSettings(class_weights="auto"), ["a", "b"], [0, 0])
    assert nothing is not None
    assert nothing.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="zip"):
        class_weights(LossSettings(class_weights="auto"), ["a", "b"], [1])


def test_a_table_goes_by_the_order_of_the_labels() -> None:
    settings = LossSettings(class_weights={"b": 2.0, "a": 0.5})
    found = class_weights(settings, ["a", "b"], [1, 1])
    assert found is not None
    assert found.tolist() == [0.5, 2.0]
    assert class_weights(LossSettings(), ["a", "b"], [1, 9]) is None


def test_a_table_names_each_label_and_no_other() -> None:
    with pytest.raises(SettingsError, match="no weight for b, c; give a weight for each of the labels a, b, c"):
        class_weights(LossSettings(class_weights={"a": 1.0}), ["a", "b", "c"], [1, 1, 1])
    with pytest.raises(SettingsError, match="names z, which .* labels a"):
        class_weights(LossSettings(class_weights={"a": 1.0, "z": 1.0}), ["a"], [1])


@pytest.mark.parametrize(
    "wrong",
    [{"smoothing": 1.0}, {"smoothing": -0.1}, {"class_weights": "some"}, {"class_weights": {"a": 0.0}}],
    ids=str,
)
def test_settings_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        LossSettings.parse(wrong)
    assert LossSettings.parse({"class_weights": {"a": 2}}).class_weights == {"a": 2.0}
