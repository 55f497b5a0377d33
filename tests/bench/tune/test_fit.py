"""Lines through pulls and prefills."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.stats import t_quantile_975
from runtime.bench.tune.fit import Fit, fit, robust_line
from tests.bench.tune.made import Truth, made


def fitted(truth: Truth | None = None, **sizes: object) -> Fit:
    """The fit of a made pass."""
    seen = made(truth, **sizes)
    return fit(seen.pulls, seen.prefills)


@given(
    a=st.floats(0.5, 200),
    b=st.floats(0.0005, 0.05),
    c=st.floats(0.5, 200),
    d=st.floats(0.001, 0.5),
    e=st.sampled_from([0.0, 1e-6, 1e-5]),
)
def test_times_without_noise_give_their_lines_back(
    a: float, b: float, c: float, d: float, e: float
) -> None:
    """All five coefficients, whatever they are."""
    found = fitted(Truth(a, b, c, d, e)).theta
    assert found[:4] == pytest.approx([a, b, c, d], rel=1e-5, abs=1e-6)
    assert found[4] == pytest.approx(e, rel=1e-4, abs=1e-9)


def test_a_tenth_of_stalled_turns_does_not_move_the_lines() -> None:
    """Times three to ten times as long are left out, and counted."""
    truth = Truth()
    found = fitted(truth, noise=0.02, outliers=0.1, turns=8, conversations=20)
    assert found.theta[:4] == pytest.approx([truth.a, truth.b, truth.c, truth.d], rel=0.06)
    assert found.outliers > 20


def test_attention_counts_where_the_data_show_it() -> None:
    """The quadratic term is kept where it is there, and is not made up where it is not."""
    assert fitted(Truth(e=5e-6), noise=0.05).theta[4] == pytest.approx(5e-6, rel=0.3)
    kept = [fitted(noise=0.05, seed=seed).theta[4] != 0 for seed in range(20)]
    assert sum(kept) <= 8


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"conversations": 20, "turns": 3},
        {"outliers": 0.05},
        {"truth": Truth(e=3e-6), "noise": 0.1},
    ],
)
def test_intervals_cover_the_truth(sizes: dict[str, Any]) -> None:
    """About 95 % of draws: the saving is 0 at the true crossing, and the interval says so."""
    truth = sizes.get("truth") or Truth()
    assert isinstance(truth, Truth)
    at, none = np.array([truth.crossing]), np.zeros(1)
    hits = 0
    for seed in range(100):
        found = fitted(**{"noise": 0.1, "truth": truth, "seed": seed, **sizes})
        hits += bool(abs(found.saved_ms(at, none)[0]) <= found.half_width_ms(at, none)[0])
    assert 88 <= hits <= 100


def test_intervals_are_not_too_wide() -> None:
    """The standard error is that of the estimates over many draws, within a third."""
    draws = [fitted(noise=0.1, seed=seed) for seed in range(60)]
    spread = np.std([draw.theta[1] for draw in draws])
    told = np.median([np.sqrt(draw.covariance[1, 1]) for draw in draws])
    assert told == pytest.approx(spread, rel=0.34)


def test_the_saving_is_the_difference_of_two_prefills_and_the_pull() -> None:
    """Whatever the rest of the prompt is, its own cost falls out."""
    truth = Truth(e=1e-5)
    found = fitted(truth)
    pulled, local, rest = 3000.0, 800.0, 450.0

    def prefill(computed: float, history: float) -> float:
        return truth.c + truth.d * computed + truth.e * computed * (history + computed / 2)

    saved = prefill(pulled + rest, local) - prefill(rest, local + pulled)
    saved -= truth.a + truth.b * pulled
    assert found.saved_ms(np.array([pulled]), np.array([local]))[0] == pytest.approx(saved)


def test_the_mean_saving_counts_only_what_is_counted() -> None:
    """Turns that do not pull save nothing, and are in the mean."""
    found = fitted(noise=0.1)
    pulled, local = np.array([1000.0, 4000.0]), np.zeros(2)
    mean, error = found.mean_saved_ms(pulled, local, np.array([0.0, 1.0]))
    assert mean == pytest.approx(found.saved_ms(pulled, local)[1] / 2)
    half = found.half_width_ms(pulled, local)[1] / 2
    assert error * t_quantile_975(found.degrees) == pytest.approx(half)


def test_few_conversations_give_few_degrees_of_freedom() -> None:
    """The t interval is as wide as the clusters that pulled allow."""
    assert fitted(conversations=7, noise=0.1).degrees == 6
    assert fitted(conversations=60, turns=2, noise=0.1).degrees == 49


def test_an_outlier_has_no_weight() -> None:
    """One time ten times as long as its line."""
    x = np.stack([np.ones(30), np.arange(30.0)], axis=1)
    y = (5 + x[:, 1]) * np.exp(np.random.default_rng(0).normal(0, 0.02, 30))
    y[7] *= 10
    theta, weights = robust_line(x, y)
    assert weights[7] == 0
    assert np.delete(weights, 7).min() > 0
    assert theta == pytest.approx([5, 1], rel=0.1)
