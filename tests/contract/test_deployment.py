"""What deployment.toml can and cannot say."""

from typing import Any

import pytest
from pydantic import ValidationError

from runtime.contract.deployment import DeploymentSettings, setting_paths
from runtime.contract.instances import INSTANCE_TYPES
from runtime.contract.load import load_deployment
from runtime.errors import BadSettings, Problem

GOOD: dict[str, Any] = {
    "name": "demo",
    "availability_zone": "us-west-2b",
    "model": {"id": "Qwen/Qwen3-32B", "revision": "main"},
    "network": {"kind": "own", "client_cidrs": ["10.0.0.0/8"]},
    "image": {"ami_id": "ami-0123456789abcdef0"},
    "router": {"allow_plain_http": True},
}
BLOCK = {
    "kind": "capacity_block",
    "capacity_reservation_id": "cr-0123456789abcdef0",
    "ends_at": "2027-01-31T11:30:00Z",
}
PLACED = BLOCK | {"placement_group": "x"}
ELSEWHERE = BLOCK | {"ends_at": "2027-01-31T11:30:00+02:00"}


def with_changes(changes: dict[str, Any]) -> dict[str, Any]:
    """The good settings, changed at dotted paths."""
    raw: dict[str, Any] = {
        key: dict(value) if isinstance(value, dict) else value for key, value in GOOD.items()
    }
    for path, value in changes.items():
        *tables, last = path.split(".")
        at = raw
        for table in tables:
            at = at.setdefault(table, {})
        at[last] = value
    return raw


def problems(changes: dict[str, Any]) -> dict[str, Problem]:
    """What is said about changed settings, by field."""
    with pytest.raises(BadSettings) as failure:
        load_deployment(with_changes(changes), "deployment.toml")
    return {problem.field: problem for problem in failure.value.problems}


def test_least_settings_are_one_pair_of_p5en() -> None:
    """Everything but name, zone, model, clients, image and the listener has a default."""
    settings = load_deployment(GOOD, "deployment.toml")
    assert settings.aws_region == "us-west-2"
    assert settings.role("prefill") == settings.role("decode") == settings.prefill
    assert settings.prefill.instance_type == "p5en.48xlarge"
    assert settings.kv.backends == ("LIBFABRIC",)


def test_own_kv_settings_win_over_the_profile() -> None:
    """And the profile's others stay."""
    kv = load_deployment(with_changes({"kv.block_size_tokens": 64}), "deployment.toml").kv
    assert (kv.block_size_tokens, kv.backends) == (64, ("LIBFABRIC",))


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"nmae": "x"}, "nmae", "did you mean name?"),
    ({"kv.ttl": 3}, "kv.ttl", "remove it"),
    ({"prefill.counts": 3}, "prefill.counts", "did you mean prefill.count?"),
    ({"name": "Demo_1"}, "name", "correct it"),
    ({"name": "a" * 21}, "name", "correct it"),
    ({"availability_zone": "usw2-az1"}, "availability_zone", "correct it"),
    ({"region": "us-east-1"}, "region", "remove region"),
    ({"profile": "qwen"}, "profile", "give one of these"),
    ({"kv.decoder_kv_blocks_ttl_s": 14}, "kv.decoder_kv_blocks_ttl_s", "raise it"),
    ({"kv.bidirectional": False}, "after_deploy", "--feature-off"),
    ({"kv.kv_recompute_threshold_tokens": -1}, "kv.kv_recompute_threshold_tokens", "correct it"),
    ({"kv.handle_deadline_margin_s": 2}, "kv.handle_deadline_margin_s", "correct it"),
    ({"availability_zone": "eu-west-1a"}, "prefill.instance_type", "in one of these regions"),
    ({"prefill.instance_type": "p9.huge"}, "prefill.instance_type", "give one of these"),
    ({"decode.instance_type": "trn2.48xlarge"}, "decode.instance_type", "Neuron"),
    ({"prefill.tensor_parallel_size": 3}, "prefill.tensor_parallel_size", "correct it"),
    ({"prefill.tensor_parallel_size": 3}, "decode.tensor_parallel_size", "both roles"),
    ({"prefill.instance_type": "p5.4xlarge"}, "prefill.tensor_parallel_size", "lower it"),
    ({"prefill.capacity": PLACED}, "prefill.capacity.placement_group", "remove placement_group"),
    ({"prefill.capacity": {"kind": "spot"}}, "prefill.capacity", "correct it"),
    (
        {"prefill.capacity": {"kind": "reservation"}},
        "prefill.capacity.capacity_reservation_id",
        "add it",
    ),
    ({"prefill.capacity": ELSEWHERE}, "prefill.capacity.ends_at", "correct it"),
    (
        {"prefill.capacity": BLOCK, "prefill.instance_type": "g6e.48xlarge"},
        "prefill.capacity.kind",
        "another instance_type",
    ),
    ({"model.attention": "mla"}, "model.accept_unproven", "accept_unproven = true"),
    ({"model.id": "zai-org/GLM-5-FP8"}, "model.accept_unproven", "accept_unproven = true"),
    ({"router.replicas": 0}, "router.replicas", "correct it"),
    ({"prefill.count": 0}, "prefill.count", "correct it"),
    ({"router.allow_plain_http": False}, "router.certificate_arn", "ACM"),
    ({"network.client_cidrs": ["0.0.0.0/0"]}, "network.client_cidrs", "offices"),
    ({"network.client_cidrs": ["10.0.0.1/8"]}, "network.client_cidrs.0", "correct it"),
    ({"network.client_cidrs": []}, "network.client_cidrs", "correct it"),
    ({"network.cidr": "10.0.0.0/8"}, "network.cidr", "of that size"),
    ({"network.vpc_id": "vpc-0123456789abcdef0"}, "network.vpc_id", "remove it"),
    ({"image.ami_id": "ubuntu"}, "image.ami_id", "correct it"),
    ({"image.engine_version": "0.31"}, "image.engine_version", "correct it"),
    ({"permissions_boundary_arn": "admin"}, "permissions_boundary_arn", "correct it"),
    ({"tags": {"aws:x": "y"}}, "tags.aws:x", "another key"),
    ({"downloads.proxy_url": "http://me:pw@proxy"}, "downloads.proxy_url", "correct it"),
    ({"downloads.index_url": "http://x/$(reboot)"}, "downloads.index_url", "correct it"),
]


@pytest.mark.parametrize(("changes", "field", "fix"), BAD)
def test_bad_input_is_refused_with_its_fix(changes: dict[str, Any], field: str, fix: str) -> None:
    """Each problem names its field, what was got, what is allowed and what to do."""
    problem = problems(changes)[field]
    assert fix in problem.fix
    assert problem.got
    assert problem.allowed


def test_all_problems_are_told_at_once() -> None:
    """A user mends the file once, not once per mistake."""
    told = problems(
        {
            "kv.decoder_kv_blocks_ttl_s": 5,
            "kv.kv_recompute_threshold_tokens": -1,
            "kv.unknown": 1,
            "prefill.tensor_parallel_size": 3,
            "prefill.capacity": BLOCK | {"placement_group": "x"},
            "decode.instance_type": "trn2.48xlarge",
            "availability_zone": "eu-west-1a",
            "model.attention": "mla",
            "router.replicas": 0,
        }
    )
    assert set(told) == {
        *("kv.decoder_kv_blocks_ttl_s", "kv.kv_recompute_threshold_tokens", "kv.unknown"),
        *("prefill.tensor_parallel_size", "decode.tensor_parallel_size"),
        *("prefill.capacity.placement_group", "prefill.instance_type", "decode.instance_type"),
        *("model.accept_unproven", "router.replicas"),
    }


def test_message_shows_each_problem_on_lines_of_its_own() -> None:
    """Field, got, allowed, fix."""
    with pytest.raises(BadSettings) as failure:
        load_deployment(with_changes({"router.replicas": 0, "nmae": 1}), "deployment.toml")
    text = str(failure.value)
    assert text.startswith("deployment.toml: 2 setting(s) cannot be used\n  nmae\n    got:     1\n")
    assert failure.value.exit_code == 2


def test_file_that_is_nothing_of_ours_is_told() -> None:
    """Wrong shapes of tables do not end the search for problems."""
    with pytest.raises(BadSettings) as failure:
        load_deployment({"kv": 3, "prefill": [], "network": "x", "router": None}, "x.toml")
    fields = {problem.field for problem in failure.value.problems}
    assert {"name", "kv", "prefill", "network", "router", "model"} <= fields


def test_model_cannot_be_made_around_the_rules() -> None:
    """Settings that are built in code are held to them too."""
    with pytest.raises(ValidationError, match="a region that has it"):
        DeploymentSettings.model_validate(with_changes({"availability_zone": "eu-west-1a"}))


def test_unproven_kind_can_be_accepted() -> None:
    """In so many words."""
    changes = {"model.attention": "mla", "model.accept_unproven": True}
    assert load_deployment(with_changes(changes), "x").model.accept_unproven


def test_block_scales_in_an_hour_before_its_end() -> None:
    """EC2 begins to end instances 30 minutes before."""
    settings = load_deployment(with_changes({"decode.capacity": BLOCK}), "x")
    assert settings.decode.capacity.scales_in_at.isoformat() == "2027-01-31T10:30:00+00:00"  # type: ignore[union-attr]


def test_every_setting_has_one_path() -> None:
    """What the command line can override."""
    paths = setting_paths()
    assert {"name", "kv.decoder_kv_blocks_ttl_s", "prefill.capacity.ends_at"} <= set(paths)
    assert {"network.cidr", "network.vpc_id", "tags", "router.certificate_arn"} <= set(paths)
    assert not {"kv", "prefill", "network"} & set(paths)


def test_every_type_of_the_table_can_be_told_apart() -> None:
    """Rows are complete: sizes are positive, EFA fits the cards."""
    for row in INSTANCE_TYPES.values():
        assert row.efa_interfaces + row.first_efa_card <= row.network_cards
        assert min(row.vcpus, row.gpus, row.interfaces_per_card, *row.instance_store) > 0
