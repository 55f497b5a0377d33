"""Profiles hold the published runs; figures are those that were published, and no others."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from runtime.contract.profile import PROFILES, Profile, WorkloadSpec, load_profile
from runtime.contract.published import load_published

SWEEPS = {
    "qwen3-32b": (2000, 4000, 8000, 12000, 16000, 20000, 24000),
    "glm-5-fp8": (2000, 4000, 8000, 12000, 16000, 20000),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_published_sizes(name: str) -> None:
    """Ten conversations of five turns at every point, two clients, prefix caching off on P."""
    profile = load_profile(name)
    work = profile.workload
    assert work.sweep_own_prefix_tokens == SWEEPS[name]
    assert (work.conversations, work.turns, profile.bench.clients) == (10, 5, 2)
    assert (work.user_tokens, work.answer_tokens, work.common_prefix_tokens) == (150, 300, 500)
    assert (profile.serving.max_model_len, profile.serving.max_num_seqs) == (32_768, 8)
    assert profile.serving.prefill_prefix_caching is False
    assert profile.kv.decoder_kv_blocks_ttl_s == 480
    assert profile.kv.kv_recompute_threshold_tokens == 64


def test_published_figures() -> None:
    """Both ends of each sweep, off and on; nothing between them is made up."""
    figures = {
        name: [(row.own_prefix_tokens, row.off_ms, row.on_ms) for row in published.rows]
        for name in SWEEPS
        if (published := load_published(name))
    }
    assert figures == {
        "qwen3-32b": [(2000, 158, 122), (24000, 778, 460)],
        "glm-5-fp8": [(2000, 500, 358), (20000, 2334, 702)],
    }


@pytest.mark.parametrize("name", SWEEPS)
def test_published_points_are_points_of_the_sweep(name: str) -> None:
    """So that a report finds its own row beside each."""
    published = load_published(name)
    assert published is not None
    assert {row.own_prefix_tokens for row in published.rows} <= set(SWEEPS[name])
    assert published.profile == name
    assert published.setup["prefill_prefix_caching"] == "off"
    last = published.rows[-1].ratio
    assert last is not None
    assert f"{last:.1f}x" in published.ratio


@pytest.mark.parametrize("name", ["tiny", "setup", "none"])
def test_other_profiles_have_no_published_figures(name: str) -> None:
    """The table of set-up facts is no profile."""
    assert load_published(name) is None


def test_every_committed_profile_loads() -> None:
    """Under the name of its file."""
    names = [path.stem for path in PROFILES.glob("*.toml")]
    assert sorted(names) == ["glm-5-fp8", "qwen3-32b", "smoke", "tiny"]
    assert all(load_profile(name).name == name for name in names)


def with_work(**changes: Any) -> dict[str, Any]:
    raw = load_profile("tiny").model_dump()
    return {**raw, "workload": {**raw["workload"], **changes}}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sweep_own_prefix_tokens": [2000, 8000]}, "needs 10832 tokens"),
        ({"sweep_own_prefix_tokens": [10, 10]}, "a size twice"),
        ({"sweep_own_prefix_tokens": [0]}, "greater than or equal to 1"),
        ({"sweep_own_prefix_tokens": [10], "agentic": {}}, "cannot both be given"),
        ({"answers": "any"}, "'round_trip', 'free' or 'recorded'"),
        ({"agentic": {"tool_share": 1.1}}, "less than or equal to 1"),
        ({"agentic": {"tools": 3}}, "Extra inputs"),
        ({"think_s": -1}, "greater than or equal to 0"),
    ],
)
def test_a_workload_that_cannot_run_is_refused(changes: dict[str, Any], told: str) -> None:
    """Points fit and differ, and nothing is accepted and ignored."""
    with pytest.raises(ValidationError) as caught:
        Profile.model_validate(with_work(**changes))
    assert told in str(caught.value)


def test_a_sweep_alone_decides_what_fits() -> None:
    """Its longest point counts as the own prefix does."""
    assert Profile.model_validate(with_work(sweep_own_prefix_tokens=[10, 5000]))
    assert isinstance(load_profile("tiny").workload, WorkloadSpec)


def test_a_users_own_file_is_a_profile(tmp_path: Path) -> None:
    """By its path; a committed one by its name alone."""
    path = tmp_path / "ours.toml"
    text = (PROFILES / "tiny.toml").read_text("utf-8").replace('name = "tiny"', 'name = "ours"')
    path.write_text(f"{text}\n[workload.agentic]\ntool_share = 0.5\n", "utf-8")
    profile = load_profile(str(path))
    assert profile.name == "ours"
    assert profile.workload.agentic is not None
    assert profile.workload.agentic.tool_share == 0.5
    with pytest.raises(FileNotFoundError):
        load_profile("ours")
