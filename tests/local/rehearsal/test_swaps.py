"""What the rehearsal may run otherwise than it was deployed."""

from pathlib import Path

import pytest

from runtime.contract.node import CpuSpec, NodeSpec
from runtime.errors import StartFailed
from runtime.local.rehearsal.swaps import (
    ROUTER_SWAPPED,
    SWAPPED,
    Here,
    check_swapped,
    flat,
    local_arguments,
    local_spec,
    pairs,
)
from stacks.constructs.router_arguments import router_arguments
from tests.infra.synth import golden

HERE = Here(
    root=Path("/"),
    port=18_000,
    side_channel_port=18_001,
    cpu=CpuSpec(cores=(0,), kv_cache_gib=2),
)
DEPLOYED = NodeSpec.model_validate(golden("node-spec-decode.json"))
ARGUMENTS = router_arguments("demo", DEPLOYED.kv, "arn:aws:secretsmanager:keys")
KEPT = sorted({*flat(DEPLOYED.model_dump())} - {*SWAPPED})


def test_what_is_swapped_is_what_the_list_names() -> None:
    """No more, and nothing on the list that could stay as it was deployed."""
    here, there = (flat(each.model_dump()) for each in (local_spec(DEPLOYED, HERE), DEPLOYED))
    assert {name for name in here if here[name] != there[name]} == {*SWAPPED}


@pytest.mark.parametrize("name", KEPT)
def test_any_other_field_that_differs_ends_the_rehearsal(name: str) -> None:
    """TTL, threshold, lease, hash, prefix caching, generation and the rest run as deployed."""
    there = flat(DEPLOYED.model_dump())
    with pytest.raises(StartFailed, match="something else than was deployed") as refusal:
        check_swapped(there, {**there, name: "another"}, SWAPPED)
    assert name in refusal.value.got


def test_router_runs_with_its_deployed_arguments() -> None:
    """But for where its nodes are listed, its address and the engines' block size."""
    local = pairs(local_arguments(ARGUMENTS, Path("nodes.toml"), "127.0.0.1", 18_002))
    deployed = pairs(ARGUMENTS)
    names = {*local, *deployed}
    assert {name for name in names if local.get(name) != deployed.get(name)} == {*ROUTER_SWAPPED}
    engine = local_spec(DEPLOYED, HERE).kv.block_size_tokens
    assert local["--block-size-tokens"] == str(engine)
    assert local["--api-keys-secret"] == "arn:aws:secretsmanager:keys"
    assert local["--decoder-kv-blocks-ttl-s"] == str(DEPLOYED.kv.decoder_kv_blocks_ttl_s)


def test_a_new_argument_of_the_router_is_not_dropped() -> None:
    """What a stack adds reaches the rehearsed router, or its start fails."""
    more = local_arguments([*ARGUMENTS, "--pin-share", "0.4"], Path("n"), "127.0.0.1", 18_002)
    assert pairs(more)["--pin-share"] == "0.4"


@pytest.mark.parametrize("wrong", [["--host"], ["host", "a"], ["--a", "1", "--a", "2"]])
def test_arguments_that_are_no_pairs_are_refused(wrong: list[str]) -> None:
    """A value that went missing would shift all after it."""
    with pytest.raises(StartFailed, match="arguments cannot be read"):
        pairs(wrong)
