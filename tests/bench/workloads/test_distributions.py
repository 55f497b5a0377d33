"""Sizes follow their distributions, repeat for a seed, and are validated strictly."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from runtime.bench.workloads.distributions import LARGEST, Distribution, chosen

ADAPTER: TypeAdapter[Any] = TypeAdapter(Distribution)


def sample(raw: dict[str, Any], count: int = 4000, seed: int = 0) -> np.ndarray[Any, Any]:
    drawn = ADAPTER.validate_python(raw).sample(np.random.default_rng(seed), count)
    assert drawn.dtype == np.int64
    assert drawn.shape == (count,)
    return np.asarray(drawn)


def test_constant() -> None:
    """Always the value."""
    assert set(sample({"distribution": "constant", "value": 500})) == {500}


def test_uniform_has_both_ends() -> None:
    """Whole ends are both drawn, and nothing outside."""
    assert set(sample({"distribution": "uniform", "min": 12, "max": 15})) == {12, 13, 14, 15}


def test_uniform_with_fractions_is_rounded() -> None:
    """Ends need not be whole."""
    assert set(sample({"distribution": "uniform", "min": 0.6, "max": 2.4})) == {1, 2}


@pytest.mark.parametrize("ratio", [None, 0.5])
def test_lognormal_by_average(ratio: float | None) -> None:
    """What is drawn has the average, and the median that is asked for."""
    raw = {"distribution": "lognormal", "average": 1000}
    drawn = sample(raw if ratio is None else {**raw, "median_ratio": ratio})
    assert drawn.mean() == pytest.approx(1000, abs=1)
    assert np.median(drawn) == pytest.approx(1000 * (ratio or 0.85), rel=0.05)


def test_lognormal_by_mean_and_sigma() -> None:
    """They are those of the normal distribution beneath."""
    drawn = sample({"distribution": "lognormal", "mean": 6.0, "sigma": 0.5})
    assert np.log(drawn).mean() == pytest.approx(6.0, abs=0.05)
    assert np.log(drawn).std() == pytest.approx(0.5, abs=0.05)


def test_zipf_and_poisson() -> None:
    """Zipf is mostly 1; Poisson has its average and variance."""
    zipf = sample({"distribution": "zipf", "alpha": 3.0})
    assert zipf.min() == 1
    assert (zipf == 1).mean() == pytest.approx(0.832, abs=0.02)
    poisson = sample({"distribution": "poisson", "alpha": 10})
    assert poisson.mean() == pytest.approx(10, abs=0.3)
    assert poisson.var() == pytest.approx(10, abs=1)


@pytest.mark.parametrize(
    "raw",
    [
        {"distribution": "lognormal", "average": 1000},
        {"distribution": "lognormal", "mean": 6, "sigma": 2},
        {"distribution": "zipf", "alpha": 1.1},
        {"distribution": "poisson", "alpha": 60},
    ],
)
def test_max_caps(raw: dict[str, Any]) -> None:
    """No size is above `max`, and without it some are."""
    assert sample({**raw, "max": 50}).max() == 50
    assert 50 < sample(raw).max() <= LARGEST


@given(seed=st.integers(0, 2**32 - 1))
def test_the_seed_decides(seed: int) -> None:
    """The same seed gives the same sizes."""
    raw = {"distribution": "uniform", "min": 1, "max": 10**6}
    assert (sample(raw, 50, seed) == sample(raw, 50, seed)).all()
    assert (sample(raw, 50, seed) != sample(raw, 50, seed + 1)).any()


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"distribution": "normal", "mean": 1}, "'constant', 'uniform'"),
        ({"value": 1}, "distribution"),
        ({"distribution": "constant"}, "value"),
        ({"distribution": "constant", "value": -1}, "greater than or equal to 0"),
        ({"distribution": "constant", "value": "500"}, "valid number"),
        ({"distribution": "constant", "value": True}, "valid number"),
        ({"distribution": "constant", "value": float("nan")}, "finite"),
        ({"distribution": "constant", "value": 1, "max": 2}, "Extra inputs"),
        ({"distribution": "constant", "value": 10**12}, "less than or equal to"),
        ({"distribution": "uniform", "min": 0, "max": 5}, "greater than 0"),
        ({"distribution": "uniform", "min": 6, "max": 5}, "max 5 is below min 6"),
        ({"distribution": "uniform", "min": 6}, "max"),
        ({"distribution": "zipf", "alpha": 1}, "greater than 1"),
        ({"distribution": "zipf", "alpha": 2, "max": 0}, "greater than or equal to 1"),
        ({"distribution": "poisson", "alpha": -2}, "greater than or equal to 0"),
        ({"distribution": "lognormal"}, "has neither"),
        ({"distribution": "lognormal", "average": 0.5}, "greater than or equal to 1"),
        ({"distribution": "lognormal", "average": 5, "median_ratio": 1}, "less than 1"),
        ({"distribution": "lognormal", "average": 5, "sigma": 1}, "has average, sigma"),
        ({"distribution": "lognormal", "mean": 5}, "has mean"),
        ({"distribution": "lognormal", "mean": -5, "sigma": 1}, "greater than 0"),
        ({"distribution": "lognormal", "median_ratio": 0.5}, "has median_ratio"),
    ],
)
def test_what_is_no_distribution_is_refused(raw: dict[str, Any], told: str) -> None:
    """The message says what would have been accepted."""
    with pytest.raises(ValidationError) as caught:
        ADAPTER.validate_python(raw)
    assert told in str(caught.value)


@given(
    places=st.lists(st.integers(), unique=True, max_size=60),
    share=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_a_share_is_exact(places: list[int], share: float, seed: int) -> None:
    """The nearest whole number of places, and at least one where there is a share."""
    picked = chosen(np.random.default_rng(seed), places, share)
    assert picked <= set(places)
    least = 1 if share > 0 and places else 0
    assert len(picked) == max(round(share * len(places)), least)
