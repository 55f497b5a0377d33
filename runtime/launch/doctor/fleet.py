"""What only the answers of several nodes together show. Pure."""

from collections.abc import Mapping, Sequence

from runtime.contract.doctor import DoctorFinding, DoctorReport, NodeFacts, TrafficReading
from runtime.launch.doctor.check import Finding, failed, passed, warned
from runtime.launch.doctor.traffic import LEAST_BYTES, MOST_OVER

_MiB = 2**20
_EQUAL = (
    *("efa_devices", "efa_installer", "libfabric", "rdma_core", "driver"),
    *("engine", "nixl", "generation"),
)
FLEET_CHECKS: Mapping[str, str] = {
    "fleet-versions": "nodes have the same libraries, devices and generation",
    "fleet-traffic": "EFA sent what vLLM read, over all nodes",
}
"""Ids and titles."""


def fleet_findings(reports: Mapping[str, DoctorReport | None]) -> list[DoctorFinding]:
    """Findings over all nodes.

    Args:
        reports: by node; None of one that did not answer.
    """
    readings = [each.traffic if each else None for each in reports.values()]
    known = {name: each.facts for name, each in reports.items() if each}
    found = {"fleet-versions": versions(known)} if known else {}
    if any(each is not None for each in readings):
        found["fleet-traffic"] = traffic(readings)
    return [
        DoctorFinding(check=name, status=each.status, evidence=each.evidence, fix=each.fix)
        for name, each in found.items()
    ]


def versions(facts: Mapping[str, NodeFacts]) -> Finding:
    """Whether what two nodes of a transfer must share is equal on all of them.

    Source: other rdma-core on both sides hangs (whitecircle/halo issue 11); NIXL does not
    cap rails where one side has fewer (nixl issue 1161).
    """
    parts = {name: told for name in _EQUAL if (told := _difference(name, facts))}
    if not parts:
        return passed(f"{len(facts)} nodes agree")
    evidence = "; ".join(f"{name}: {told}" for name, told in parts.items())
    types = {each.instance_type for each in facts.values()}
    if set(parts) == {"efa_devices"} and len(types) > 1:
        return warned(
            f"{evidence} ({', '.join(sorted(types))})",
            "watch `fleet-traffic` and `rails` in a window: unequal rails are not proven",
        )
    return failed(evidence, "one image for all nodes: `turnback rollout NAME`")


def _difference(name: str, facts: Mapping[str, NodeFacts]) -> str:
    """A node of each value, the rarest first; empty: all agree. What is not known is left out."""
    nodes: dict[str, list[str]] = {}
    for node, each in facts.items():
        value = getattr(each, name)
        if value != "":
            nodes.setdefault(str(value), []).append(node)
    if len(nodes) < 2:
        return ""
    rarest = sorted(nodes.items(), key=lambda item: len(item[1]))
    return ", ".join(f"{value} on {some[0]}" for value, some in rarest)


def traffic(readings: Sequence[TrafficReading | None]) -> Finding:
    """Whether all nodes' EFA together sent what all engines read, at most a quarter more."""
    known = [each for each in readings if each is not None]
    if len(known) < len(readings):
        return warned(
            f"counters of {len(known)} of {len(readings)} nodes are known: the rest may have sent",
            "mend the other nodes' `traffic` first",
        )
    read = sum(each.nixl_bytes for each in known)
    sent = sum(each.efa_tx_bytes for each in known)
    told = f"vLLM read {read / _MiB:.1f} MiB, EFA sent {sent / _MiB:.1f} MiB"
    if read == 0:
        return warned(f"{told}: no traffic, so nothing is proven", "send turns meanwhile")
    is_watched = all(each.window_s is not None for each in known)
    if sent < read and is_watched:
        return failed(
            f"{told}: {sent / read - 1:+.0%}; the rest went another way, which is TCP",
            "see `transport` and `fi-info` of each node",
        )
    if sent < read:
        return warned(
            f"{told} since their begin: nodes that have ended since may have sent the rest",
            "ask again with --window-s 10",
        )
    if not is_watched:
        return passed(f"{told} since their begin; --window-s 10 holds it against more")
    if read >= LEAST_BYTES and sent > (1 + MOST_OVER) * read:
        return failed(
            f"{told}: {sent / read - 1:+.0%}, at most {MOST_OVER:+.0%}",
            "a longer --window-s; see `efa-errors`, and whether other programs use EFA",
        )
    return passed(f"{told}: {sent / read - 1:+.1%}")
