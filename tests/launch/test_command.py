"""NodeSpec -> command line and environment."""

import json
from pathlib import Path

import pytest

from runtime.contract.node import CpuSpec, KvTransferSpec, NodeSpec, Role, ServingSpec
from runtime.launch.command import CONNECTOR_MODULE, engine_command

GOLDEN = Path(__file__).parents[1] / "golden"


def node(role: Role, **serving: object) -> NodeSpec:
    values: dict[str, object] = {
        "model": Path("/models/tiny"),
        "served_model_name": "tiny",
        "dtype": "float32",
        "max_model_len": 8192,
        "enable_prefix_caching": role == "decode",
        "port": 8100 if role == "prefill" else 8200,
    }
    return NodeSpec(
        role=role,
        serving=ServingSpec.model_validate(values | serving),
        kv=KvTransferSpec(),
        cpu=CpuSpec(cores=(0,) if role == "prefill" else (1,), kv_cache_gib=2),
        side_channel_port=5600 if role == "prefill" else 5601,
    )


def test_each_rank_has_cores_of_its_own() -> None:
    """vLLM binds one list of cores to each tensor-parallel rank."""
    raw = node("prefill").model_dump()
    raw["serving"]["tensor_parallel_size"] = 2
    with pytest.raises(ValueError, match="at least 2 cores"):
        NodeSpec.model_validate(raw)
    raw["cpu"]["cores"] = (0, 1, 2, 3)
    command = engine_command(NodeSpec.model_validate(raw), Path("/engine/bin/python"))
    assert command.env["VLLM_CPU_OMP_THREADS_BIND"] == "0,2|1,3"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_command_is_the_golden_one(role: Role) -> None:
    """Exactly what a node receives changes only on purpose."""
    command = engine_command(node(role), Path("/engine/bin/python"))
    got = {"argv": list(command.argv), "env": dict(command.env)}
    expected = json.loads((GOLDEN / f"launch-{role}.json").read_text("utf-8"))
    assert got == expected


def _transfer(spec: NodeSpec) -> dict[str, object]:
    argv = engine_command(spec, Path("python")).argv
    config: dict[str, object] = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    return config


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_both_roles_verify_and_fail_closed(role: Role) -> None:
    """Both roles load the verified connector, in both directions, under policy fail."""
    config = _transfer(node(role))
    assert config["kv_connector_module_path"] == CONNECTOR_MODULE
    assert config["kv_role"] == "kv_both"
    assert config["kv_load_failure_policy"] == "fail"
    assert "engine_id" not in config


def test_one_way_is_stock() -> None:
    """The baseline's engines load nothing of the kit: vLLM's own connector, no return."""
    spec = node("decode")
    kv = spec.kv.model_copy(update={"bidirectional": False})
    command = engine_command(spec.model_copy(update={"kv": kv}), Path("python"))
    config = json.loads(command.argv[command.argv.index("--kv-transfer-config") + 1])
    assert "kv_connector_module_path" not in config
    assert set(config["kv_connector_extra_config"]) == {"kv_lease_duration", "backends"}
    assert command.env["VLLM_PLUGINS"] == ""


def test_ttl_and_threshold_reach_the_engine() -> None:
    """The two settings that users tune arrive under the engine's own names, as integers."""
    spec = node("decode")
    kv = spec.kv.model_copy(
        update={"decoder_kv_blocks_ttl_s": 77, "kv_recompute_threshold_tokens": 5}
    )
    extra = _transfer(spec.model_copy(update={"kv": kv}))["kv_connector_extra_config"]
    assert isinstance(extra, dict)
    assert (extra["decoder_kv_blocks_ttl"], extra["kv_recompute_threshold"]) == (77, 5)


def test_prefix_caching_is_set_either_way() -> None:
    """Prefix caching never depends on the engine's default."""
    assert "--no-enable-prefix-caching" in engine_command(node("prefill"), Path("p")).argv
    assert "--enable-prefix-caching" in engine_command(node("decode"), Path("p")).argv
