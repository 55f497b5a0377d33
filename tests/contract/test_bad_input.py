"""What a user is told of each mistake: what, got, allowed, fix, and all at once."""

from typing import Any

import pytest

from tests.contract.test_deployment import BLOCK, problems

LINES: dict[str, tuple[dict[str, Any], str, str, str, str]] = {
    "unknown key": (
        {"kv.decoder_ttl_s": 3},
        *("kv.decoder_ttl_s", "3", "decoder_kv_blocks_ttl_s, handle_deadline_margin_s"),
        "did you mean kv.decoder_kv_blocks_ttl_s?",
    ),
    "TTL below the margin": (
        {"kv.decoder_kv_blocks_ttl_s": 14},
        *("kv.decoder_kv_blocks_ttl_s", "14 s", "at least 15 s", "raise it (480 is the default)"),
    ),
    "negative threshold": (
        {"kv.kv_recompute_threshold_tokens": -1},
        *("kv.kv_recompute_threshold_tokens", "-1", "greater than or equal to 1", "correct it"),
    ),
    "region without the type": (
        {"availability_zone": "eu-west-1a"},
        *("decode.instance_type", "'p5en.48xlarge' in eu-west-1", "us-east-1, us-east-2"),
        "give availability_zone in one of these regions",
    ),
    "Capacity Block with a placement group": (
        {"decode.capacity": BLOCK | {"placement_group": "near"}},
        *("decode.capacity.placement_group", "'near'", "no placement group"),
        "remove placement_group",
    ),
    "tensor-parallel size not in 1, 2, 4, 8": (
        {"prefill.tensor_parallel_size": 3},
        *("prefill.tensor_parallel_size", "3", "1, 2, 4 or 8", "correct it"),
    ),
    "beyond the GPUs": (
        {"prefill.instance_type": "p5.4xlarge"},
        *("prefill.tensor_parallel_size", "8 on p5.4xlarge with 1 GPU(s)", "1"),
        "lower it, or give an instance_type with more GPUs",
    ),
    "not dividing the other role's": (
        {"prefill.tensor_parallel_size": 3},
        *("decode.tensor_parallel_size", "8 beside prefill.tensor_parallel_size 3"),
        *("one divides the other", "give both roles one of these"),
    ),
    "unproven model kind": (
        {"model.attention": "mla"},
        *("model.accept_unproven", "False for Qwen/Qwen3-32B, whose KV is MLA", "standard"),
        "set model.accept_unproven = true",
    ),
    "replicas 0": (
        {"router.replicas": 0},
        *("router.replicas", "0", "greater than or equal to 1", "correct it"),
    ),
    "spare below 0": (
        {"decode.spare": -1},
        *("decode.spare", "-1", "greater than or equal to 0", "correct it"),
    ),
}


@pytest.mark.parametrize("line", sorted(LINES))
def test_mistake_is_told_in_four_parts(line: str) -> None:
    """Field, value, what would do, and what to do."""
    changes, field, got, allowed, fix = LINES[line]
    problem = problems(changes)[field]
    assert got in problem.got
    assert allowed in problem.allowed
    assert fix in problem.fix


def test_all_mistakes_are_told_at_once() -> None:
    """Each with its own parts, as if it were the only one."""
    lines = {line: told for line, told in LINES.items() if line != "beyond the GPUs"}
    together: dict[str, Any] = {}
    for changes, *_ in lines.values():
        together |= changes
    told = problems(together)
    for line, (_, field, got, allowed, fix) in lines.items():
        assert got in told[field].got, line
        assert allowed in told[field].allowed, line
        assert fix in told[field].fix, line
