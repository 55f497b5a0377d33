"""The settings file and the command line's context."""

from pathlib import Path

import pytest

from cdk.settings import read_settings, settings_file
from runtime.errors import BadInput, BadSettings
from tests.infra.synth import AMI, ROOT

FILE = ROOT / "deployment.toml"
NEEDED = {
    "turnback:name": "demo",
    "turnback:availability_zone": "us-west-2b",
    "turnback:image.ami_id": AMI,
}


def test_committed_file_leaves_three_values_open() -> None:
    """Name, zone and image are the user's; all three are asked for at once."""
    with pytest.raises(BadSettings) as failure:
        read_settings(FILE, {})
    asked = {problem.field: problem.fix for problem in failure.value.problems}
    assert set(asked) == {"name", "availability_zone", "image.ami_id"}
    assert "turnback image build" in asked["image.ami_id"]
    assert all(f"-c turnback:{field}=VALUE" in fix for field, fix in asked.items())


def test_committed_file_is_the_published_pair() -> None:
    """One prefill and one decode p5en.48xlarge, tensor parallel 8, 480 s and 64 tokens."""
    settings = read_settings(FILE, NEEDED)
    assert settings.aws_region == "us-west-2"
    assert settings.profile == "qwen3-32b"
    for role in (settings.prefill, settings.decode):
        assert (role.instance_type, role.count) == ("p5en.48xlarge", 1)
        assert role.tensor_parallel_size == 8
    kv = settings.kv
    assert (kv.decoder_kv_blocks_ttl_s, kv.kv_recompute_threshold_tokens) == (480, 64)
    assert kv.backends == ("LIBFABRIC",)


@pytest.mark.parametrize(
    ("key", "value", "path", "expected"),
    [
        ("kv.decoder_kv_blocks_ttl_s", "600", "kv.decoder_kv_blocks_ttl_s", 600),
        ("prefill.count", "3", "prefill.count", 3),
        ("transport.allow_tcp", "true", "transport.allow_tcp", True),
        ("decode.capacity.kind", "on_demand", "decode.capacity.kind", "on_demand"),
        ("network.client_cidrs", '["10.1.0.0/16"]', "network.client_cidrs", ("10.1.0.0/16",)),
        ("tags.cost-centre", "ml", "tags", {"cost-centre": "ml"}),
    ],
)
def test_any_setting_can_be_overridden(key: str, value: str, path: str, expected: object) -> None:
    """By its dotted path; text is read as TOML where it is TOML."""
    found: object = read_settings(FILE, {**NEEDED, f"turnback:{key}": value})
    for part in path.split("."):
        found = getattr(found, part)
    assert found == expected


def test_unknown_override_is_refused_beside_other_problems() -> None:
    """With the nearest setting there is; other context is nobody's business here."""
    context = {**NEEDED, "turnback:kv.decoder_kv_block_ttl_s": "600", "other:key": "x"}
    context["turnback:kv.kv_recompute_threshold_tokens"] = "-1"
    with pytest.raises(BadSettings) as failure:
        read_settings(FILE, context)
    told = {problem.field: problem.fix for problem in failure.value.problems}
    assert set(told) == {"kv.decoder_kv_block_ttl_s", "kv.kv_recompute_threshold_tokens"}
    assert "turnback:kv.decoder_kv_blocks_ttl_s" in told["kv.decoder_kv_block_ttl_s"]


def test_table_cannot_be_overridden_as_a_whole() -> None:
    """`-c turnback:kv=...` would drop what the file says."""
    with pytest.raises(BadSettings, match="kv"):
        read_settings(FILE, {**NEEDED, "turnback:kv": "1"})


def test_another_file_can_be_named(tmp_path: Path) -> None:
    """One repository serves several deployments."""
    assert settings_file({}, ROOT) == FILE
    assert settings_file({"turnback:settings": "b.toml"}, tmp_path) == tmp_path / "b.toml"


@pytest.mark.parametrize("text", ["name = ", "\xff"])
def test_file_that_is_no_toml_is_told(text: str, tmp_path: Path) -> None:
    """With the line, and how to name another file."""
    path = tmp_path / "deployment.toml"
    path.write_text(text, "latin-1")
    with pytest.raises(BadInput, match="cannot be read"):
        read_settings(path, {})


def test_missing_file_is_told(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(BadInput, match="cannot be read"):
        read_settings(tmp_path / "none.toml", {})
