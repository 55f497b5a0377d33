"""Published figures stand beside ours, and every difference of set-up is named."""

from dataclasses import replace

import pytest

from runtime.bench.report import build_report
from runtime.contract.profile import load_profile
from runtime.contract.published import Published, PublishedRow, load_published
from tests.bench.simulated import simulated_pass


def figures() -> Published:
    """Published figures at two prefix lengths."""
    return Published(
        profile="simulated",
        source="a test",
        ratio="1.6",
        pull_ms=(30.0, 130.0),
        rows=(
            PublishedRow(own_prefix_tokens=2000, off_ms=158.0, on_ms=122.0, off_prefill_ms=153.0),
            PublishedRow(own_prefix_tokens=24000, off_ms=778.0, on_ms=460.0),
        ),
        setup={
            "prefill_prefix_caching": "off",
            "repeats": "1",
            "vllm": "0.29.0",
            "instance_type": "p5en.48xlarge",
        },
    )


MAIN = simulated_pass(points=(2000, 8000), ratio=2.0, noise=0.0)
OFF = simulated_pass(points=(2000, 8000), is_feature_on=False, noise=0.0, name="off")


def test_rows_have_both_sides() -> None:
    """Off is the pass with the feature off, one_way is the main pass's own baseline."""
    report = build_report([MAIN, OFF], figures())
    first, last = report["published"]["rows"]
    parts = {"off_prefill_ms": 153.0, "on_prefill_ms": None}
    assert first["published"] == {"off_ms": 158.0, "on_ms": 122.0, "ratio": 158 / 122} | parts
    ours = first["ours"]
    assert ours["off_ms"] == pytest.approx(ours["one_way_ms"])
    # Turn 1, without a handle, is in the means, as in the published ones.
    assert ours["ratio"] == pytest.approx(ours["off_ms"] / ours["on_ms"])
    assert 1.5 < ours["ratio"] < 2.0
    names = ("off_ms", "on_ms", "one_way_ms", "ratio", "off_prefill_ms", "on_prefill_ms")
    assert last["ours"] == dict.fromkeys(names)


def test_the_prefill_part_is_the_leg_that_a_proxy_sees() -> None:
    """Pull and queue in it; within the TTFT, and none of it from a pass that told nothing."""
    told = build_report([MAIN, OFF], figures())["published"]
    ours = told["rows"][0]["ours"]
    legs = [
        each.router_ms["prefill"]
        for each in MAIN[1]
        if each.arm == "bidirectional" and each.point == 2000 and not each.is_again
    ]
    assert ours["on_prefill_ms"] == pytest.approx(sum(legs) / len(legs))
    assert ours["on_prefill_ms"] < ours["on_ms"]
    assert ours["off_prefill_ms"] < ours["off_ms"]
    assert told["pull_ms"]["published"] == [30.0, 130.0]
    low, high = told["pull_ms"]["ours"]
    assert 0 < low <= high
    silent = [replace(each, router_ms={}) for each in MAIN[1]]
    told = build_report([(MAIN[0], silent, MAIN[2])], figures())["published"]
    assert told["rows"][0]["ours"]["on_prefill_ms"] is told["pull_ms"]["ours"] is None


def test_without_the_pass_there_is_no_like_baseline() -> None:
    """One-way is not the published baseline: no ratio is made from it."""
    published = build_report([MAIN], figures())["published"]
    ours = published["rows"][0]["ours"]
    assert (ours["off_ms"], ours["ratio"]) == (None, None)
    assert ours["one_way_ms"] > ours["on_ms"]
    assert any("no such pass was run" in line for line in published["differences"])


def test_differences_of_set_up_are_named() -> None:
    """What is the same is not, and what we cannot tell is said."""
    lines = build_report([MAIN, OFF], figures())["published"]["differences"]
    assert "vllm: published 0.29.0, here 0.32.0" in lines
    assert "instance_type: published p5en.48xlarge, here not told" in lines
    assert not any(line.startswith(("prefill_prefix_caching", "repeats")) for line in lines)
    assert any(line.startswith("baseline: ") for line in lines)
    assert any(line.startswith("turn 1: ") for line in lines)


def test_an_unlike_pass_is_named() -> None:
    """The pass with the feature off must have the main one's load."""
    info, results, samples = OFF
    other = replace(info, bench=info.bench.model_copy(update={"clients": 4}))
    lines = build_report([MAIN, (other, results, samples)], figures())["published"]["differences"]
    assert "clients: 1 in the main pass, 4 in the pass with the feature off" in lines


def test_figures_of_another_profile_are_left_out() -> None:
    """They would be beside another model's."""
    assert (
        build_report([MAIN], figures().model_copy(update={"profile": "glm-5-fp8"}))["published"]
        is None
    )
    assert build_report([MAIN])["published"] is None


def test_another_workload_is_not_held_against_them() -> None:
    """A user's file has none of the profile's sizes."""
    info, results, samples = MAIN
    main = (replace(info, workload="ours.json"), results, samples)
    assert build_report([main, OFF], figures())["published"] is None


@pytest.mark.parametrize("profile", ["qwen3-32b", "glm-5-fp8"])
def test_each_fact_of_the_published_set_up_is_the_same_or_named(profile: str) -> None:
    """What the profile's own pass has in common is no difference; all else is one."""
    published = load_published(profile)
    assert published is not None
    info, results, samples = MAIN
    ours = load_profile(profile)
    info = replace(info, profile=ours, bench=ours.bench, workload=profile)
    main = (info, results, samples)
    lines = build_report([main], published)["published"]["differences"]
    same = {
        *("dtype", "max_model_len", "max_num_seqs", "backends", "decoder_kv_blocks_ttl_s"),
        *("kv_recompute_threshold_tokens", "prefill_prefix_caching", "conversations", "clients"),
        *("user_turns", "user_tokens", "common_prefix_tokens", "repeats"),
    }
    named = {line.partition(":")[0] for line in lines}
    assert named == (set(published.setup) - same - {"turn_1"}) | {"turn 1"}
