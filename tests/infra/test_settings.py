"""The settings file and the command line's context."""

from pathlib import Path

import pytest

from cdk.settings import only_image, read_settings, settings_file
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
    assert "turnback image build NAME --wait" in asked["image.ami_id"]
    assert all(f"-c turnback:{field}=VALUE" in fix for field, fix in asked.items())


def test_image_stack_alone_needs_no_image() -> None:
    """It is what builds the first one; all other rules hold."""
    context = {key: value for key, value in NEEDED.items() if "ami_id" not in key}
    only = context | {"turnback:only": "image"}
    assert only_image(only)
    assert read_settings(FILE, only).image.ami_id is None
    with pytest.raises(BadSettings) as failure:
        read_settings(FILE, context)
    assert [problem.field for problem in failure.value.problems] == ["image.ami_id"]
    assert "turnback image build demo --wait" in failure.value.problems[0].fix


def test_no_other_part_can_be_had_alone() -> None:
    """A word that means nothing must not deploy everything."""
    with pytest.raises(BadInput, match="cannot be had alone") as failure:
        read_settings(FILE, NEEDED | {"turnback:only": "router"})
    assert "turnback:only=image" in failure.value.allowed


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


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("image.engine_version", "0.33", "0.33"),
        ("image.engine_version", '"0.32"', "0.32"),
        ("tags.cost", "42", "42"),
        ("tags.until", "2027-01-31", "2027-01-31"),
        ("model.revision", "1234567", "1234567"),
        ("kv.decoder_kv_blocks_ttl_s", "600", 600),
        ("transport.allow_tcp", "true", True),
        ("kv.backends", '["UCX"]', ("UCX",)),
    ],
)
def test_text_of_the_command_line_becomes_what_the_setting_is(
    key: str, text: str, value: object
) -> None:
    """Numbers for numbers; a version, a tag or a revision stays text, quoted or not."""
    found: object = read_settings(FILE, NEEDED | {f"turnback:{key}": text})
    table, _, name = key.partition(".")
    found = getattr(found, table)
    assert (found[name] if table == "tags" else getattr(found, name)) == value  # type: ignore[index]


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("RedHatAI/DeepSeek-V3", "model.accept_unproven"),
        ("deepseek-ai/DeepSeek-Coder-V2-Instruct", "model.accept_unproven"),
        ("zai-org/GLM-4.7-Flash", "model.accept_unproven"),
        ("moonshotai/Kimi-K2-Instruct", "model.accept_unproven"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "model.id"),
        ("state-spaces/mamba-2.8b", "model.id"),
    ],
)
def test_models_of_unproven_kinds_are_known_by_their_names(model: str, field: str) -> None:
    """Whoever published the copy; refused before a GPU node runs."""
    with pytest.raises(BadSettings) as failure:
        read_settings(FILE, NEEDED | {"turnback:model.id": model})
    assert [problem.field for problem in failure.value.problems] == [field]


@pytest.mark.parametrize(
    "model",
    [
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        "deepseek-ai/deepseek-llm-67b-chat",
        "Qwen/Qwen3-32B",
        "meta-llama/Llama-3.3-70B-Instruct",
    ],
)
def test_models_with_standard_attention_are_taken(model: str) -> None:
    """Names that only look alike do not keep anybody from serving."""
    assert read_settings(FILE, NEEDED | {"turnback:model.id": model}).model.id == model


def test_missing_table_is_asked_for_as_one(tmp_path: Path) -> None:
    """A table has no override of its own: the fix is one that works."""
    file = tmp_path / "deployment.toml"
    file.write_text('name = "demo"\navailability_zone = "us-west-2b"\n')
    with pytest.raises(BadSettings) as failure:
        read_settings(file, {})
    asked = {problem.field: problem.fix for problem in failure.value.problems}
    assert asked["model"] == "add the table [model] to deployment.toml"
    assert "image" not in asked


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("log_retention_days", "31", "60"),
        ("alarm_email", "ops", "@"),
        ("idle_alarm_minutes", "12", "5"),
        ("idle_alarm_minutes", "5", "10"),
        ("idle_alarm_minutes", "1445", "1440"),
        ("usd_per_node_hour", "0", "0"),
    ],
)
def test_settings_of_operations_are_checked(field: str, value: str, allowed: str) -> None:
    """Before CloudWatch refuses them in the middle of a deploy; what is allowed is said."""
    with pytest.raises(BadSettings) as failure:
        read_settings(FILE, NEEDED | {f"turnback:operations.{field}": value})
    (problem,) = failure.value.problems
    assert problem.field == f"operations.{field}"
    assert allowed in problem.allowed
