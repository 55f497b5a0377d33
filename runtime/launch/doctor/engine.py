"""The running engine: what it was started with, whom it reaches, whether KV moves at all."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

from runtime.contract.status import NODE_UNIT
from runtime.engine_api import NIXL_AFTER_EXPIRY, NIXL_FAILED, NIXL_READS, parse_metrics
from runtime.launch.command import kv_transfer_config
from runtime.launch.doctor import parse
from runtime.launch.doctor.check import Finding, Look, failed, passed, warned
from runtime.launch.doctor.libraries import wants_libfabric
from runtime.launch.doctor.processes import engine_process, family
from runtime.launch.node_report import get_text

_RESTART = f"systemctl restart {NODE_UNIT}"
_NOT_RUNNING = f"see `boot` and journalctl -u {NODE_UNIT}"
_UNREADABLE = failed("the engine's environment cannot be read", "run the doctor as root")
_CONNECT_S = 3.0
_DONE = "vllm:request_success_total"
LEAST_REQUESTS = 10
"""So many without a transfer are no accident."""


def generation(look: Look) -> Finding:
    """Whether the process that runs was started from the spec as it is now."""
    status, spec = look.facts.status, look.facts.spec.value
    if status.value is None:
        return failed(f"no engine runs: {status.problem}", _NOT_RUNNING)
    if spec is None:
        return warned(f"generation {status.value.generation} runs", "see the finding of `spec`")
    if status.value.generation != spec.generation:
        return failed(
            f"generation {status.value.generation} runs, {spec.generation} is deployed",
            "turnback rollout NAME",
        )
    return passed(f"generation {spec.generation}")


def connector(look: Look) -> Finding:
    """Whether the engine runs with the spec's connector settings and block sizes."""
    process, spec = engine_process(look.machine), look.facts.spec.value
    if process is None:
        return failed("no vLLM server runs", _NOT_RUNNING)
    if spec is None:
        return warned("what it must be started with is not known", "see the finding of `spec`")
    given = parse.flags(process.argv)
    try:
        config = json.loads(given.get("--kv-transfer-config", ""))
    except ValueError:
        return failed("it runs without --kv-transfer-config", _RESTART)
    wanted = {
        "--block-size": str(spec.kv.block_size_tokens),
        "--prefix-caching-hash-algo": spec.kv.prefix_hash_algorithm,
    }
    other = [
        f"{name} {given.get(name)}, not {value}"
        for name, value in wanted.items()
        if given.get(name) != value
    ]
    if config != kv_transfer_config(spec.kv):
        other.append(f"--kv-transfer-config {json.dumps(config, separators=(',', ':'))}")
    if other:
        return failed("; ".join(other), _RESTART)
    return passed(f"NixlConnector over {', '.join(spec.kv.backends)}, as in the spec")


def hash_seed(look: Look) -> Finding:
    """Whether the engine hashes blocks from the spec's seed: else no prefix is verified."""
    process, spec = engine_process(look.machine), look.facts.spec.value
    if process is None:
        return failed("no vLLM server runs", _NOT_RUNNING)
    if process.env is None:
        return _UNREADABLE
    seed = process.env.get("PYTHONHASHSEED")
    if spec is None:
        return warned(f"PYTHONHASHSEED is {seed}", "see the finding of `spec`")
    if seed != str(spec.kv.prefix_hash_seed):
        return failed(
            f"PYTHONHASHSEED is {seed or 'not set'}, the spec's is {spec.kv.prefix_hash_seed}",
            f"let boot start the engine: {_RESTART}",
        )
    return passed(f"PYTHONHASHSEED is {seed}")


def transport(look: Look) -> Finding:
    """Whether the engine can only use EFA, and has the plugin of the spec's backend in memory.

    Source: vLLM's default is UCX, which lands on TCP (vllm issue 41814); libfabric itself
    falls back to tcp where FI_PROVIDER does not keep it from it.
    """
    process = engine_process(look.machine)
    if process is None:
        return failed("no vLLM server runs", _NOT_RUNNING)
    if process.env is None:
        return _UNREADABLE
    told = process.env.get("FI_PROVIDER")
    if told != "efa":
        return failed(f"FI_PROVIDER is {told or 'not set'} in the engine, not efa", _RESTART)
    backend = "LIBFABRIC" if wants_libfabric(look) else "UCX"
    plugin = f"libplugin_{backend}.so"
    pids = family(look.machine, process.pid)
    maps = (look.machine.text(f"/proc/{pid}/maps") or "" for pid in pids)
    if not any(plugin in each for each in maps):
        return failed(
            f"none of the engine's {len(pids)} processes has {plugin} loaded",
            "see `connector` and `nixl-plugin`",
        )
    if backend == "UCX":
        return warned("UCX chooses EFA or TCP by itself", "see `traffic`; kv.backends LIBFABRIC")
    return passed("FI_PROVIDER is efa, NIXL's LIBFABRIC plugin is loaded")


def transfers(look: Look) -> Finding:
    """Whether KV moves where requests are served, and no transfer failed."""
    status = look.facts.status.value
    page = get_text(status.url, "/metrics", look.left_s) if status else None
    if status is None or page is None:
        return failed("the engine does not answer /metrics", _NOT_RUNNING)
    told = parse_metrics(page, (NIXL_READS, NIXL_FAILED, NIXL_AFTER_EXPIRY, _DONE))
    done, reads = int(told[_DONE]), int(told[NIXL_READS])
    counted = f"{done} requests, {reads} transfers"
    if told[NIXL_FAILED]:
        return failed(
            f"{counted}, {int(told[NIXL_FAILED])} failed",
            "see `efa-errors`, `peers` and the engine's log",
        )
    if status.role == "decode" and done >= LEAST_REQUESTS and not reads:
        return failed(
            f"{counted}: this node computes every prompt itself",
            "send requests to the router, not to the node; see the router's GET /health",
        )
    if told[NIXL_AFTER_EXPIRY]:
        return warned(
            f"{counted}, {int(told[NIXL_AFTER_EXPIRY])} read after their blocks were freed",
            "a longer kv_lease_duration_s, or a quicker link: see `traffic`",
        )
    return passed(counted)


def peers(look: Look) -> Finding:
    """Whether the other nodes' side channels can be reached."""
    named = [each for each in look.facts.peers if not _is_own(*each)]
    if not named:
        return passed("no peer was named")
    with ThreadPoolExecutor(len(named)) as pool:
        timeout_s = min(_CONNECT_S, look.left_s)
        problems = [*pool.map(lambda peer: _unreached(peer, timeout_s), named)]
    silent = [each for each in problems if each]
    if silent:
        ports = ", ".join(sorted({str(port) for _, port in named}))
        return failed(
            f"{len(silent)} of {len(named)} peers: {'; '.join(silent)}",
            f"the node security group must let its own members reach {ports}; see the peer's "
            "`ports`",
        )
    return passed(f"{len(named)} peers answer")


def _is_own(host: str, port: int) -> bool:
    """Whether this machine would speak to itself; nothing is sent."""
    try:
        if ip_address(host).is_loopback:
            return False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as route:
            route.connect((host, port))
            return bool(route.getsockname()[0] == host)
    except (OSError, ValueError):
        return False


def _unreached(peer: tuple[str, int], timeout_s: float) -> str:
    try:
        socket.create_connection(peer, timeout_s).close()
    except OSError as error:
        return f"{peer[0]}:{peer[1]} {error}"
    return ""
