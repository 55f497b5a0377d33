"""What the plugin overrides and uses of vLLM is there, under the names it knows.

Run against the installed vLLM and, by `tests.plugin.on_next_engine`, against the next one.
"""

import ast
import inspect
from types import FunctionType
from typing import Any

import pytest

pytest.importorskip("vllm", reason="run by the engine environment (make test does)")

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.request import Request

from runtime.vllm_plugin import connector, release, scheduler, worker
from tests.plugin.rig import Rig

OVERRIDDEN = [
    *(
        (scheduler.VerifiedScheduler, name)
        for name in (
            "__init__",
            "_nixl_handshake_listener",
            "on_new_request",
            "get_num_new_matched_tokens",
            "update_state_after_alloc",
            "update_connector_output",
            "request_finished",
        )
    ),
    (worker.ReleasingWorker, "_reap_expired_send_leases"),
    (connector.NixlConnector, "__init__"),
]


@pytest.mark.parametrize(("owner", "name"), OVERRIDDEN, ids=lambda one: str(one))
def test_override_has_the_parameters_of_what_it_overrides(owner: type, name: str) -> None:
    """A method that vLLM renames or calls otherwise would silently stop verifying."""
    mine = inspect.signature(getattr(owner, name))
    stock = inspect.signature(getattr(owner.__mro__[1], name))
    assert list(mine.parameters) == list(stock.parameters)


def test_no_other_method_is_overridden() -> None:
    """The list above is whole: a method of ours does not shadow one of vLLM's by chance."""
    for owner in {owner for owner, _ in OVERRIDDEN}:
        shadowed = {
            name
            for name, value in vars(owner).items()
            if isinstance(value, FunctionType | staticmethod) and hasattr(owner.__mro__[1], name)
        }
        assert shadowed == {name for one, name in OVERRIDDEN if one is owner}


def attributes_of(part: Any, variable: str) -> set[str]:
    """Names that a module or class reads or calls on a variable, as in `variable.name`."""
    tree = ast.parse(inspect.getsource(part))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == variable
    }


def test_used_attributes_of_the_scheduler_half_exist() -> None:
    """Everything the scheduler half takes from `self` or a request is there."""
    rig = Rig()
    request: Any = rig.add("r", [1, 2, 3], None)
    used = attributes_of(scheduler.VerifiedScheduler, "self")
    assert {"_reqs_not_processed", "_reqs_need_recv", "transfer_tp_size"} <= used
    assert not {name for name in used if not hasattr(rig.half, name)}
    used = attributes_of(scheduler, "request")
    assert {"block_hashes", "num_in_flight_tokens"} <= used
    assert isinstance(request, Request)
    assert not {name for name in used if not hasattr(request, name)}


def test_used_attributes_of_the_worker_half_exist() -> None:
    """The worker half cannot be built without NIXL: its base classes must set each name."""
    used = attributes_of(worker.ReleasingWorker, "self")
    assert {"_reqs_to_send", "_reqs_to_process"} <= used
    bases = worker.ReleasingWorker.__mro__[1:-1]
    sources = "".join(inspect.getsource(base) for base in bases)
    assert not {name for name in used if f"self.{name}" not in sources}


def test_release_reaches_the_engine_as_vllm_rejects_requests() -> None:
    """The route calls one method of the engine client, with these arguments."""
    assert attributes_of(release, "engine_client") == {
        "notify_kv_transfer_request_rejected",
        "vllm_config",
    }
    method = AsyncLLM.notify_kv_transfer_request_rejected
    names = ["self", "request_id", "kv_transfer_params", "data_parallel_rank"]
    assert list(inspect.signature(method).parameters) == names
