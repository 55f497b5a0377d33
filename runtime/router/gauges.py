"""Gauges of the router: read when /metrics is asked for."""

from collections.abc import Iterable

from runtime.router.metrics import Sample
from runtime.router.turn import Turns


def gauges(turns: Turns) -> Iterable[Sample]:
    """What the router does now, for /metrics."""
    admission, store = turns.admission, turns.store
    yield "turnback_turns_running", "Turns that run now", {}, admission.running
    yield "turnback_turns_waiting", "Turns that wait for a place", {}, admission.waiting
    idle_text = "Since the last turn ended, or since the start; 0 while one runs"
    yield "turnback_idle_seconds", idle_text, {}, admission.idle_s
    yield "turnback_store_up", "1 while the store answers", {}, float(store.is_up)
    failures = store.failures
    yield "turnback_store_failures", "Operations the store did not answer in time", {}, failures
    for node in turns.fleet.nodes:
        labels = {"role": node.role, "node": node.name}
        yield "turnback_node_up", "1 while a node may be sent turns", labels, node.state == "ok"
        is_open = node.breaker.is_open
        yield "turnback_breaker_open", "1 while a node's breaker is open", labels, is_open
        yield "turnback_node_running", "Turns on a node", labels, node.running
        tokens = node.outstanding_tokens
        yield "turnback_node_prompt_tokens", "Prompt tokens sent to a P", labels, tokens
        if node.role == "decode":
            pinned = node.pinned_tokens
            yield "turnback_pinned_tokens", "Tokens that handles pin on a D", labels, pinned
