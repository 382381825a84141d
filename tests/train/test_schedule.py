from __future__ import annotations

import pytest

from unmask.train.schedule import ScheduleSettings, build_schedule, constant, cosine, inverse_sqrt, linear, noam


def test_warm_up_is_in_proportion_and_the_end_is_reached() -> None:
    for schedule in (linear(4, 24), cosine(4, 24)):
        assert [schedule(update) for update in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])
        assert schedule(4) == pytest.approx(1.0)
        assert schedule(14) == pytest.approx(0.5)
        assert schedule(24) == pytest.approx(0.0)
        assert schedule(23) > 0.0  # the last update still learns
    assert [linear(0, 10)(update) for update in (0, 9)] == pytest.approx([1.0, 0.1])
    assert linear(0, 10, final=0.5)(10) == pytest.approx(0.5)
    assert cosine(0, 10, final=0.2)(10) == pytest.approx(0.2)


def test_the_papers_formula_by_hand() -> None:
    schedule = noam(512, 4000)
    assert schedule(0) == pytest.approx(512**-0.5 * 4000**-1.5)
    assert schedule(3999) == pytest.approx((512 * 4000) ** -0.5)
    assert schedule(15999) == pytest.approx((512 * 16000) ** -0.5)
    shape = inverse_sqrt(4000)
    for update in (0, 99, 3999, 4000, 20000):
        assert shape(update) == pytest.approx(schedule(update) / schedule(3999))


def test_every_kind_is_built() -> None:
    for kind in ("linear", "cosine", "inverse_sqrt", "constant"):
        schedule = build_schedule(ScheduleSettings(kind=kind, warmup=2), 10)
        assert schedule(0) == pytest.approx(0.5)
        assert schedule(1) == pytest.approx(1.0)
    assert constant()(10**6) == 1.0
