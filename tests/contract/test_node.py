"""What a node spec can and cannot say."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from runtime.contract.explain import explain
from runtime.contract.node import KvTransferSpec, NodeAddress, RouterSpec, ServingSpec
from runtime.contract.profile import Profile, load_profile
from runtime.contract.versions import is_supported, supported_list


def test_handle_lifetime_ends_before_the_ttl() -> None:
    """The router stops using a handle the margin before D frees its blocks."""
    assert KvTransferSpec().handle_lifetime_s == 470


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("decoder_kv_blocks_ttl_s", 14),
        ("handle_deadline_margin_s", 5),
        ("kv_recompute_threshold_tokens", 0),
        ("block_size_tokens", 48),
        ("prefix_hash_algorithm", "xxhash"),
        ("prefix_hash_seed", -1),
        ("backends", ["TCP"]),
    ],
)
def test_kv_settings_that_cannot_work_are_refused(field: str, value: object) -> None:
    """A TTL without time to use a handle, a random hash and the like are not expressible."""
    with pytest.raises(ValidationError):
        KvTransferSpec.model_validate({field: value})


def test_unknown_fields_are_refused() -> None:
    """A typo is an error, not a silent default."""
    with pytest.raises(ValidationError, match="decoder_kv_block_ttl_s"):
        KvTransferSpec.model_validate({"decoder_kv_block_ttl_s": 60})


def test_specs_are_frozen() -> None:
    """A spec does not change under its reader."""
    spec = KvTransferSpec()
    with pytest.raises(ValidationError, match="frozen"):
        spec.block_size_tokens = 64  # type: ignore[misc]


def test_message_lists_every_problem() -> None:
    """Two mistakes give one message that names both, with what is allowed."""
    with pytest.raises(ValidationError) as failure:
        RouterSpec.model_validate(
            {"prefill_urls": ["d"], "decode_urls": ["http://d"], "port": 80, "kv": {}}
        )
    problem = explain(failure.value, "router.toml")
    assert problem.exit_code == 2
    for part in ("prefill_urls", "port"):
        assert part in problem.allowed
        assert part in problem.fix
    assert "80" in problem.got


def test_tiny_profile_is_the_documented_workload() -> None:
    """The demo's sizes are those that the README's table was measured with."""
    profile = load_profile("tiny")
    work = profile.workload
    assert (work.conversations, work.turns) == (8, 5)
    assert (work.common_prefix_tokens, work.own_prefix_tokens) == (512, 2000)
    assert (work.user_tokens, work.answer_tokens) == (400, 64)
    assert profile.serving.prefill_prefix_caching is False


def test_profile_whose_history_does_not_fit_is_refused() -> None:
    """The last turn must fit into max_model_len."""
    raw = load_profile("tiny").model_dump()
    raw["serving"]["max_model_len"] = 4096
    with pytest.raises(ValidationError, match="4832"):
        Profile.model_validate(raw)


def test_serving_needs_a_length() -> None:
    """max_model_len has no default: it bounds memory."""
    with pytest.raises(ValidationError, match="max_model_len"):
        ServingSpec.model_validate({"model": Path("m"), "served_model_name": "m", "port": 8000})


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("0.32.0", True),
        ("0.33.1+cpu", True),
        ("0.31.2", False),
        ("0.3.2", False),
        ("1.32.0", False),
    ],
)
def test_engine_versions(version: str, supported: bool) -> None:
    """Minor versions in the table are accepted, whatever follows."""
    assert is_supported(version) is supported
    assert supported_list() == "0.32.x, 0.33.x"


@pytest.mark.parametrize("url", ["nonsense", "127.0.0.1:8100", "ftp://p", "http://", ""])
def test_router_needs_addresses(url: str) -> None:
    """What is no URL is refused before the router starts, not at the first turn."""
    good = {"decode_urls": ["http://d:8200"], "port": 8000, "kv": {}}
    RouterSpec.model_validate(good | {"prefill_urls": ["https://p:8100"]})
    with pytest.raises(ValidationError, match="prefill_urls"):
        RouterSpec.model_validate(good | {"prefill_urls": [url]})


@pytest.mark.parametrize("url", ["http://x:0", "http://x:99999", "ftp://x", "http://", "x:80"])
def test_address_that_cannot_be_one_is_refused(url: str) -> None:
    """Before anything starts."""
    with pytest.raises(ValidationError):
        NodeAddress(role="decode", url=url)


def test_router_needs_nodes_from_somewhere() -> None:
    """Addresses of both roles, a file, or a deployment."""
    with pytest.raises(ValidationError, match="prefill_urls must name"):
        RouterSpec(port=8000, kv=KvTransferSpec(), decode_urls=("http://x",))
    RouterSpec(port=8000, kv=KvTransferSpec(), nodes_file=Path("nodes.toml"))
    RouterSpec(port=8000, kv=KvTransferSpec(), deployment="blue")
    with pytest.raises(ValidationError, match="go together"):
        RouterSpec(port=8000, kv=KvTransferSpec(), deployment="a", tls_key=Path("k"))
