"""Whole legs on rigs: a P leg, a D leg whose read succeeds, and what their replies say."""

from typing import Any

from runtime.engine_api import COLD_PREFILL, RECEIPT
from tests.plugin.rig import Rig

PROMPT = list(range(100, 400))
NEXT = [50, 51, 52, 53]


def cold(rig: Rig, name: str = "p", ids: list[int] = PROMPT, **more: Any) -> Any:
    """A cold P leg from start to end; its P dict."""
    rig.add(name, ids, dict(COLD_PREFILL), **more)
    rig.run()
    return rig.replies[name]


def decoded(rig: Rig, p_dict: Any, name: str = "d", ids: list[int] = PROMPT, **more: Any) -> Any:
    """A D leg whose read succeeds; its handle."""
    rig.add(name, ids, dict(p_dict), **({"max_tokens": 4} | more))
    rig.run()
    rig.run(finished_recving={name})
    while name not in rig.replies:
        rig.run()
    return rig.replies[name]


def handle_of(prefill: Rig, decode: Rig) -> Any:
    """A handle over PROMPT and the first three of four answer tokens."""
    return decoded(decode, cold(prefill))


def receipt(reply: Any) -> dict[str, Any]:
    """What the reply says of its dict."""
    told: dict[str, Any] = reply[RECEIPT]
    return told
