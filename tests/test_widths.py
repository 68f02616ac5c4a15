"""How wide intervals are taken here and there."""

import numpy as np

from softkv.guard.widths import WidthRule


def test_widths_follow_what_distances_go_with() -> None:
    """Where distances grow with the spread, so do widths; and they tell by little what none goes with."""
    rng = np.random.default_rng(0)
    spread, log_mass, effective = np.exp(rng.standard_normal(500)), rng.standard_normal(500), rng.uniform(1, 50, 500)
    rule = WidthRule.learned(spread * rng.standard_exponential(500), spread, log_mass, effective, items=10, scale=1.0)
    wide = rule.of(np.array([1.0, 8.0]), np.zeros(2), np.full(2, 20.0), items=10)
    assert 3.0 < wide[1] / wide[0] < 12.0
    same = rule.of(np.ones(2), np.array([-1.0, 1.0]), np.full(2, 20.0), items=10)
    assert 0.7 < same[1] / same[0] < 1.4


def test_widths_far_from_everything_stay_finite() -> None:
    """Beyond four deviations of what was seen they change no more."""
    rng = np.random.default_rng(1)
    log_mass = rng.standard_normal(100)
    rule = WidthRule.learned(np.exp(-log_mass), None, log_mass, np.ones(100), items=10, scale=1.0)
    far = rule.of(None, np.array([-10.0, -1e6, -np.inf]), np.ones(3), items=10)
    assert far[0] == far[1] == far[2]
    assert (
        rule.of(None, np.array([-2.0]), np.ones(1), items=10)[0]
        > rule.of(None, np.array([2.0]), np.ones(1), items=10)[0]
    )


def test_items_that_are_all_predicted_exactly_have_widths() -> None:
    """They are equal, since nothing tells them apart."""
    rule = WidthRule.learned(np.zeros(50), np.zeros(50), np.zeros(50), np.ones(50), items=10, scale=0.0)
    assert rule.of(np.zeros(2), np.zeros(2), np.ones(2), items=10).tolist() == [1.0, 1.0]


def test_more_items_of_the_same_kind_leave_widths_as_they_are() -> None:
    """Ten times as many have ten times the mass and the effective number."""
    rng = np.random.default_rng(2)
    log_mass, effective = rng.standard_normal(200), rng.uniform(1, 9, 200)
    rule = WidthRule.learned(rng.random(200), None, log_mass, effective, items=50, scale=1.0)
    few, many = (
        rule.of(None, log_mass, effective, items=50),
        rule.of(None, log_mass + np.log(10), effective * 10, items=500),
    )
    assert np.allclose(few, many)


def test_what_hardly_varies_tells_nothing_of_widths() -> None:
    """Items that all share few keys have evidence so alike: a little further off, widths would be any number."""
    rng = np.random.default_rng(3)
    log_mass, effective = 3.0 + 1e-4 * rng.standard_normal(400), 50.0 * np.exp(1e-4 * rng.standard_normal(400))
    rule = WidthRule.learned(rng.standard_exponential(400), None, log_mass, effective, items=100, scale=1.0)
    near, off = rule.of(None, np.array([3.0, 3.03]), np.array([50.0, 51.0]), items=100)
    assert 0.9 < off / near < 1.1


def test_the_largest_width_is_that_of_all_that_errors_leave_open() -> None:
    """No width of figures within them is larger, and that of the worst corner is no smaller."""
    rng = np.random.default_rng(4)
    told = np.exp(rng.standard_normal(300)), rng.standard_normal(300), rng.uniform(1, 50, 300)
    rule = WidthRule.learned(told[0] * rng.standard_exponential(300), *told, items=10, scale=1.0)
    off = 0.4, 0.3, 5.0
    most = rule.of(*told, items=10, off=off)
    corners = np.array(np.meshgrid(*[(-1, 1)] * 3)).reshape(3, -1).T
    moved = [
        rule.of(*(one + sign * far for one, sign, far in zip(told, signs, off, strict=True)), items=10)
        for signs in corners
    ]
    assert np.allclose(np.max(moved, axis=0), most)
