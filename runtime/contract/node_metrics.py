"""What machines send to CloudWatch each minute: names that dashboard and alarms read."""

from runtime.contract.operations import DEPLOYMENT, Metric, Unit

ROLE = "Role"
"""Dimension: prefill, decode or router. No metric tells single machines apart: sums and
averages over a role are what alarms look at, and each name costs by the month."""

PERIOD_S = 60
"""Between two readings of a machine."""


def _metric(name: str, unit: Unit, meaning: str) -> Metric:
    return Metric(name, unit, (DEPLOYMENT, ROLE), meaning)


ANSWERING = _metric("Answering", "Count", "1 while the machine's engine or router answers, else 0")

# Of routers.
TURNS = _metric("Turns", "Count", "turns that ended")
TURNS_FAILED = _metric("TurnsFailed", "Count", "of them failed")
FIRST_TOKENS = _metric("FirstTokens", "Count", "turns whose answer has begun")
TTFT_SUM = _metric(
    "TtftSumMs", "Milliseconds", "the router's time until then; over `FirstTokens`: mean TTFT"
)
OFFERED_TOKENS = _metric("OfferedTokens", "Count", "tokens of the handles that P was offered")
PULLED_TOKENS = _metric("PulledTokens", "Count", "of them read from D")
LOCAL_TOKENS = _metric("LocalTokens", "Count", "tokens that P's own prefix cache held")
REFUSED_HANDLES = _metric(
    "RefusedHandles", "Count", "handles and P dicts refused for what no client does"
)
CANARY_RUNS = _metric("CanaryRuns", "Count", "warm turns that were run again cold")
CANARY_DIFFERENCES = _metric("CanaryDifferences", "Count", "of them with another answer")
REUSE_ON = _metric("ReuseOn", "Count", "1 while handles are taken and made, else 0")

# Of engines.
EXPIRED = _metric("Expired", "Count", "handles (of D) and P dicts (of P) that nobody read in time")
READS = _metric("NixlReads", "Count", "NIXL reads that ended well")
READ_BYTES = _metric("NixlReadBytes", "Bytes", "KV they brought, by vLLM's count")
FAILED_READS = _metric("NixlFailed", "Count", "NIXL reads or notifications that failed")
READS_AFTER_EXPIRY = _metric(
    "NixlReadsAfterExpiry", "Count", "reads that ended after their blocks had been freed"
)
KV_USAGE = _metric("KvCacheUsage", "Percent", "KV cache blocks in use")
WAITING = _metric("RequestsWaiting", "Count", "requests that wait now")
EFA_TX_BYTES = _metric("EfaTxBytes", "Bytes", "sent by all EFA devices")
EFA_RX_BYTES = _metric("EfaRxBytes", "Bytes", "received by all EFA devices")

ROUTER_METRICS = (
    *(ANSWERING, TURNS, TURNS_FAILED, FIRST_TOKENS, TTFT_SUM, OFFERED_TOKENS, PULLED_TOKENS),
    *(LOCAL_TOKENS, REFUSED_HANDLES, CANARY_RUNS, CANARY_DIFFERENCES, REUSE_ON),
)
ENGINE_METRICS = (
    *(ANSWERING, EXPIRED, READS, READ_BYTES, FAILED_READS, READS_AFTER_EXPIRY),
    *(KV_USAGE, WAITING, EFA_TX_BYTES, EFA_RX_BYTES),
)


def log_group(deployment: str, role: str) -> str:
    """CloudWatch Logs group of a role's machines."""
    return f"/turnback/{deployment}/{role}"


LOG_SOURCES = ("journal", "engine")
"""Streams of a machine, `ID/SOURCE`: what its units say, and its engine's output."""
