"""The connector inside vLLM's own classes, without a server."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="run by the engine environment (make test does)")

from runtime.vllm_plugin import connector, streaming
from runtime.vllm_plugin.verify import HashScheme, Verdict

GOOD = {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": 480}


def test_good_settings_pass() -> None:
    """What the launcher writes is accepted."""
    connector.refuse_bad_config(GOOD, "fail")


@pytest.mark.parametrize(
    ("extra", "policy", "named"),
    [
        (GOOD | {"decoder_kv_block_ttl": 9}, "fail", "decoder_kv_block_ttl"),
        (GOOD | {"bidirectional_kv_xfer": False}, "fail", "False"),
        (GOOD | {"bidirectional_kv_xfer": "true"}, "fail", "'true'"),
        ({}, "fail", "None"),
        (GOOD, "recompute", "'recompute'"),
    ],
)
def test_settings_that_stock_ignores_are_refused(
    extra: dict[str, Any], policy: str, named: str
) -> None:
    """A typo, a false flag or another failure policy stops the start and is named."""
    with pytest.raises(ValueError, match="got:") as refusal:
        connector.refuse_bad_config(extra, policy)
    assert named in str(refusal.value)
    assert "allowed:" in str(refusal.value)
    assert "fix:" in str(refusal.value)


def test_class_keeps_the_stock_name() -> None:
    """vLLM compares connector names."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector

    assert connector.NixlConnector.__name__ == "NixlConnector"
    assert issubclass(connector.NixlConnector, NixlPullConnector)


def scheduler(threshold: int = 64) -> Any:
    """The scheduler half with the state that the tested methods use."""
    half = object.__new__(connector.VerifiedScheduler)
    half._one_group = True
    half._scheme = HashScheme("sha256_cbor", "seed", 32)
    half._verdicts, half._receipts = {}, {}
    half.kv_recompute_threshold = threshold
    half._heartbeat_req_engine, half._heartbeat_by_engine = {}, {}
    half._reqs_not_processed = set()
    return half


def request(params: dict[str, Any]) -> Any:
    return SimpleNamespace(request_id="r", kv_transfer_params=params, block_hashes=[])


def offer(half: Any, verified_tokens: int, local_tokens: int, refusal: str | None = None) -> Any:
    half._verdicts["r"] = Verdict(300, verified_tokens, refusal)
    one = request({"do_remote_decode": True})
    return half.get_num_new_matched_tokens(one, local_tokens), half._receipts["r"]


@pytest.mark.parametrize(
    ("verified", "local", "refusal", "pulled", "reason"),
    [
        (288, 0, None, 288, "pulled"),
        (288, 128, None, 160, "pulled"),
        (288, 224, None, 64, "pulled"),
        (288, 256, None, 0, "below_threshold"),
        (288, 288, None, 0, "local_hit"),
        (288, 320, None, 0, "local_hit"),
        (0, 0, "no_match", 0, "no_match"),
    ],
)
def test_pull_size_and_reason(
    verified: int, local: int, refusal: str | None, pulled: int, reason: str
) -> None:
    """What is pulled lies between the local hit and the verified prefix, threshold kept."""
    result, receipt = offer(scheduler(), verified, local, refusal)
    assert result == (pulled, pulled > 0)
    assert (receipt.pulled_tokens, receipt.local_tokens, receipt.reason) == (pulled, local, reason)


def test_spent_handle_is_not_matched_again() -> None:
    """After a preemption the prompt is computed: the blocks may be gone."""
    half = scheduler()
    half._verdicts["r"] = Verdict(300, 288, None)
    again = request({"do_remote_decode": True, "_remote_blocks_processed": True})
    assert half.get_num_new_matched_tokens(again, 0) == (0, False)


def test_decode_leg_without_a_pin_frees_at_once() -> None:
    """turnback_pin = false: no handle, no delayed free, and the worker stops tracking it."""
    half = scheduler()
    params = {"do_remote_prefill": False, "turnback_pin": False}
    assert half.request_finished(request(params), ([1, 2],)) == (False, None)
    assert half._reqs_not_processed == {"r"}


def test_plugin_leaves_engine_cores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only processes that serve HTTP are patched."""
    process = SimpleNamespace(name="EngineCore_DP0")
    monkeypatch.setattr("multiprocessing.current_process", lambda: process)

    def patched(*_: object) -> None:
        raise AssertionError("patched an engine core")

    monkeypatch.setattr(streaming, "with_handle", patched)
    streaming.register()


def test_plugin_patches_both_stream_generators() -> None:
    """On 0.32 chat and completions are wrapped; their parameter names still fit."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionStreamResponse
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

    assert "kv_transfer_params" not in ChatCompletionStreamResponse.model_fields
    streaming.register()
    for stream in (
        OpenAIServingChat.chat_completion_stream_generator,
        OpenAIServingCompletion.completion_stream_generator,
    ):
        assert hasattr(stream, "__wrapped__")
        names = stream.__wrapped__.__code__.co_varnames
        assert {"request", "result_generator"} <= set(names)
