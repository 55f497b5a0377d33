"""The connector inside vLLM's own classes, without a server."""

import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="run by the engine environment (make test does)")

import torch
import vllm
from vllm.distributed.device_communicators import shm_broadcast
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionStreamResponse as ChatStream,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

from runtime.vllm_plugin import connector, streaming
from runtime.vllm_plugin.manners import nap_between_steps, resting_progress_thread
from runtime.vllm_plugin.scheduler import RELEASED
from runtime.vllm_plugin.worker import ReleasingWorker

GOOD = {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": 480}


def transfer(extra: dict[str, Any] = GOOD, **changes: Any) -> Any:
    """The part of vLLM's KVTransferConfig that is looked at."""
    values = {
        "kv_connector_extra_config": extra,
        "kv_load_failure_policy": "fail",
        "kv_buffer_device": "cuda",
        "kv_role": "kv_both",
    }
    return SimpleNamespace(**(values | changes))


def test_good_settings_pass() -> None:
    """What the launcher writes is accepted; on CPU the buffer's device is the CPU."""
    connector.refuse_bad_config(transfer(), is_cpu=False)
    connector.refuse_bad_config(transfer(kv_buffer_device="cpu"), is_cpu=True)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (transfer(GOOD | {"decoder_kv_block_ttl": 9}), "decoder_kv_block_ttl"),
        (transfer(GOOD | {"bidirectional_kv_xfer": False}), "False"),
        (transfer(GOOD | {"bidirectional_kv_xfer": "true"}), "'true'"),
        (transfer({}), "None"),
        (transfer(kv_load_failure_policy="recompute"), "'recompute'"),
        (transfer(kv_buffer_device="cpu"), "kv_buffer_device"),
        (transfer(kv_role="kv_producer"), "kv_producer"),
    ],
)
def test_settings_that_stock_ignores_are_refused(settings: Any, named: str) -> None:
    """What would hang, or free blocks too early, stops the start and is named."""
    with pytest.raises(ValueError, match="got:") as refusal:
        connector.refuse_bad_config(settings, is_cpu=False)
    assert named in str(refusal.value)
    assert "allowed:" in str(refusal.value)
    assert "fix:" in str(refusal.value)


def test_class_keeps_the_stock_name() -> None:
    """vLLM compares connector names."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector

    assert connector.NixlConnector.__name__ == "NixlConnector"
    assert issubclass(connector.NixlConnector, NixlPullConnector)


FULL = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.float32)
WINDOW = SlidingWindowSpec(
    block_size=32, num_kv_heads=2, head_size=64, dtype=torch.float32, sliding_window=64
)


@dataclass(frozen=True, kw_only=True)
class _Gaps(FullAttentionSpec):
    """Counts as full attention for vLLM, and may keep other blocks."""


SUBCLASS = _Gaps(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.float32)
STATE = MambaSpec(block_size=32, shapes=((1,),), dtypes=(torch.float32,))


def unproven(specs: list[Any], *, is_cpu: bool = True, **changes: Any) -> None:
    """Ask whether a model of such layers is refused."""
    parallel = {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1}
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(**(parallel | changes.pop("parallel", {}))),
        cache_config=SimpleNamespace(block_size=32, prefix_match_unit=changes.pop("unit", None)),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=changes.pop("is_plain", False)
        ),
        model_config=SimpleNamespace(use_mla=changes.pop("use_mla", False)),
    )
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
    caches = SimpleNamespace(kv_cache_groups=groups)
    connector.refuse_unproven_model(config, caches, is_cpu=is_cpu)


def test_attention_models_are_served() -> None:
    """Full attention alone or beside sliding windows; MLA on GPU."""
    unproven([FULL])
    unproven([FULL, WINDOW, WINDOW])
    unproven([FULL], use_mla=True, is_cpu=False)


@pytest.mark.parametrize(
    ("specs", "changes", "named"),
    [
        ([FULL, STATE], {}, "MambaSpec"),
        ([FULL, replace(WINDOW, block_size=16)], {}, "[16, 32]"),
        ([FULL], {"parallel": {"decode_context_parallel_size": 2}}, "context parallelism"),
        ([FULL], {"use_mla": True}, "MLA"),
        ([FULL, WINDOW], {"unit": 16}, "prefix_match_unit 16"),
        ([WINDOW], {"is_plain": True}, "hybrid"),
        ([SUBCLASS], {}, "_Gaps"),
    ],
)
def test_model_that_was_not_proven_is_refused(
    specs: list[Any], changes: dict[str, Any], named: str
) -> None:
    """The start ends with what was found and what is allowed; no wrong answer is given."""
    with pytest.raises(ValueError, match="cannot serve this model") as refusal:
        unproven(specs, **changes)
    assert named in str(refusal.value)
    assert "fix:" in str(refusal.value)


@pytest.fixture
def worker() -> Any:
    """The worker half with the state that the tested method uses."""
    half = object.__new__(ReleasingWorker)
    half._reqs_to_send = {"released": RELEASED, "live": time.perf_counter() + 60, "old": 0.0}
    half._reqs_to_process = {"released", "live", "old"}
    half.consumer_notification_counts_by_req = Counter()
    half.expected_consumer_notifications_by_req = {}
    half.xfer_stats = SimpleNamespace(record_kv_expired_req=lambda: half.expired.append(1))
    half.expired = []
    return half


def test_released_blocks_are_freed_and_not_counted_as_expired(worker: Any) -> None:
    """One was released, one has run out, one is live: two are freed, one is counted."""
    done: set[str] = set()
    worker._reap_expired_send_leases(done)
    assert done == {"released", "old"}
    assert worker.expired == [1]
    assert worker._reqs_to_process == set(worker._reqs_to_send) == {"live"}


def test_agents_of_a_cpu_engine_rest_when_idle() -> None:
    """The progress thread of an idle agent takes next to nothing of its core, not all of it."""
    import nixl._api as api

    stock = api.nixlBind.nixlAgent
    with resting_progress_thread():
        agent = api.nixl_agent("idle", api.nixl_agent_config(num_threads=1))
    assert api.nixlBind.nixlAgent is stock
    began, began_cpu = time.perf_counter(), time.process_time()
    time.sleep(0.5)  # the span over which its CPU time is measured
    share = (time.process_time() - began_cpu) / (time.perf_counter() - began)
    assert agent is not None
    assert share < 0.5


def test_workers_nap_where_they_would_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's wait for the next step takes its yield from where it is patched, and still returns."""
    monkeypatch.setattr(shm_broadcast, "sched_yield", shm_broadcast.sched_yield)
    nap_between_steps()
    waiting = object.__new__(shm_broadcast.SpinCondition)
    waiting.is_reader, waiting.last_read, waiting.busy_loop_s = True, time.monotonic(), 60
    began_cpu = time.process_time()
    for _ in range(500):
        waiting.wait()
    assert time.monotonic() - waiting.last_read >= 0.05
    assert time.process_time() - began_cpu < time.monotonic() - waiting.last_read


def test_plugin_leaves_engine_cores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only processes that serve HTTP are patched."""
    process = SimpleNamespace(name="EngineCore_DP0")
    monkeypatch.setattr("multiprocessing.current_process", lambda: process)

    def patched(*_: object) -> None:
        raise AssertionError("patched an engine core")

    monkeypatch.setattr(streaming, "with_handle", patched)
    streaming.register()


def test_plugin_patches_both_stream_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 0.32 chat and completions are wrapped by name; on 0.33 nothing is touched."""
    if "kv_transfer_params" in ChatStream.model_fields:
        monkeypatch.setattr(streaming, "with_handle", None)  # would raise when called
        streaming.register()
        return
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

    streaming.register()
    for stream in (
        OpenAIServingChat.chat_completion_stream_generator,
        OpenAIServingCompletion.completion_stream_generator,
    ):
        assert hasattr(stream, "__wrapped__")
        names = stream.__wrapped__.__code__.co_varnames
        assert {"request", "result_generator"} <= set(names)


def test_sources_under_test_are_the_ones_asked_for() -> None:
    """Where the next engine's sources were asked for, they are what was imported."""
    asked = os.environ.get("PYTHONPATH", "")
    if "engine-next" in asked:
        assert vllm.__file__.startswith(asked)
        assert "kv_transfer_params" in ChatStream.model_fields
    else:
        assert vllm.__version__.startswith("0.32")
