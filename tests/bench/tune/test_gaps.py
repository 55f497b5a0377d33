"""Gaps: order statistics and files."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.tune.gaps import exponential, observed, read_gaps
from runtime.errors import BadInput


@given(st.lists(st.floats(0, 1e6), min_size=20, max_size=200), st.sampled_from([0.5, 0.9, 0.95]))
def test_the_quantile_keeps_the_share_and_no_shorter_gap_does(
    gaps_s: list[float], share: float
) -> None:
    """One of the gaps, the least that keeps it."""
    gaps = observed(gaps_s, "test")
    found = gaps.quantile_s(share)
    assert found in gaps_s
    assert gaps.share_within(found) >= share - 1e-12
    shorter = [gap for gap in gaps_s if gap < found]
    assert not shorter or gaps.share_within(max(shorter)) < share


def test_its_interval_covers_the_true_quantile() -> None:
    """At least 95 % of draws, whatever the distribution: the ranks are exact."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(400):
        ends = observed(rng.lognormal(0, 2, 120).tolist(), "test").quantile_ci95_s(0.9)
        assert ends is not None
        assert ends[1] is not None
        hits += ends[0] <= math.exp(2 * 1.2815515655446004) <= ends[1]
    assert 0.94 <= hits / 400 <= 0.99


def test_few_gaps_do_not_bound_a_high_share() -> None:
    """With 20 of them the 95th percentile may lie above all."""
    ends = observed([float(at) for at in range(20)], "test").quantile_ci95_s(0.95)
    assert ends is not None
    assert ends[1] is None
    many = observed([float(at) for at in range(200)], "test").quantile_ci95_s(0.95)
    assert many is not None
    assert many == (183.0, 196.0)


def test_a_share_needs_gaps_beyond_it() -> None:
    """20 for 95 %, 100 for 99 %."""
    gaps = observed([1.0], "test")
    assert [gaps.least_n(share) for share in (0.5, 0.9, 0.95, 0.99)] == [2, 10, 20, 100]


def test_assumed_gaps_are_exponential() -> None:
    """Quantiles and the mean of what is pinned are the formula's."""
    gaps = exponential(60)
    assert gaps.quantile_s(0.95) == pytest.approx(-60 * math.log(0.05), rel=1e-3)
    assert gaps.mean_pinned_s(30) == pytest.approx(60 * (1 - math.exp(-0.5)), rel=1e-3)
    assert gaps.quantile_ci95_s(0.95) is None
    assert gaps.share_error(0.5) == 0


@pytest.mark.parametrize(
    "text", ["1\n2.5\n\n# a tool\n3e1 # slow\n", "[1, 2.5, 30]", " [1,2.5,\n30.0]\n"]
)
def test_both_forms_of_a_file_are_read(tmp_path: Path, text: str) -> None:
    """Lines with comments, or a JSON list."""
    path = tmp_path / "gaps.txt"
    path.write_text(text)
    assert read_gaps(path).sorted_s == (1.0, 2.5, 30.0)


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("", "no number"),
        ("# nothing\n", "no number"),
        ("[]", "no number"),
        ("1\n-2\n", "line 2: '-2'"),
        ("1\nnan\n", "line 2: 'nan'"),
        ("inf", "line 1: 'inf'"),
        ("1 2", "line 1: '1 2'"),
        ("[1, NaN]", "item 2: nan"),
        ("[1, null]", "item 2: None"),
        ("[1, true]", "item 2: True"),
        ("[1, -0.5]", "item 2: -0.5"),
        ("[1, 1" + "0" * 400 + "]", "item 2"),
        ("[1", "gaps.txt"),
        ('{"gaps": [1]}', "line 1"),
    ],
)
def test_what_is_no_time_is_refused(tmp_path: Path, text: str, got: str) -> None:
    """With its place in the file."""
    path = tmp_path / "gaps.txt"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_gaps(path)
    assert got in caught.value.got


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    """Neither is a crash."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("nothing", "bytes"):
        with pytest.raises(BadInput):
            read_gaps(tmp_path / name)
