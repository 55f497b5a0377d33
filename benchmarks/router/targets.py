"""The mock engines and the two routers as child processes."""

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.router.processes import API_KEY, HOST, started, wait_until_serving
from runtime.local.checks import free_ports

OUT = Path("out") / "bench-router"
VLLM_ROUTER = "0.1.17"
VLLM_POLICY = "consistent_hash"
"""Keeps a conversation on its nodes by X-Session-ID, as this kit's router does; it is also
quicker than the default, cache_aware, which keeps a tree of all prompts."""

_INSTALL_S = 600
_LOGS = OUT / "logs"


@dataclass(frozen=True)
class Target:
    """A process that takes the load, and its port."""

    name: str
    port: int
    pid: int


@dataclass(frozen=True)
class Mocks:
    """Ports of the mock engines, which are one process."""

    prefill: int
    decode: int

    @property
    def urls(self) -> tuple[str, str]:
        """Addresses of P and D."""
        return f"http://{HOST}:{self.prefill}", f"http://{HOST}:{self.decode}"


def write_results(results: dict[str, Any], name: str) -> Path:
    """Write one of the benchmark's JSON files; returns where it is."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / name
    path.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))
    return path


def vllm_router_binary() -> Path:
    """vllm-router in an environment of its own, made when it is not there."""
    folder = (OUT / "venv").resolve()
    binary = folder / "bin" / "vllm-router"
    if not binary.exists():
        venv.create(folder, with_pip=True, clear=True)
        wanted = f"vllm-router=={VLLM_ROUTER}"
        subprocess.run(
            [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", wanted],
            check=True,
            timeout=_INSTALL_S,
        )
    return binary


@contextmanager
def mock_engines(core: int, *more: str) -> Iterator[Mocks]:
    """Both mock engines.

    Args:
        core: where they run.
        more: further options of `benchmarks.router.mock`.
    """
    prefill, decode = free_ports(2)
    ports = ["--prefill", str(prefill), "--decode", str(decode)]
    argv = [sys.executable, "-m", "benchmarks.router.mock", *ports, *more]
    with started(argv, core=core, log=_LOGS / "mock.log") as child:
        wait_until_serving(child, decode, "the mock engines")
        yield Mocks(prefill, decode)


@contextmanager
def turnback(mocks: Mocks, core: int, *more: str) -> Iterator[Target]:
    """This kit's router with API keys, else with its defaults.

    Args:
        mocks: the engines.
        core: where it runs.
        more: further options of `turnback router`.
    """
    keys = _LOGS / "keys.json"
    keys.parent.mkdir(parents=True, exist_ok=True)
    keys.write_bytes(orjson.dumps({"keys": [{"key": API_KEY, "tenant": "benchmark"}]}))
    (port,) = free_ports(1)
    prefill, decode = mocks.urls
    command = str(Path(sys.executable).parent / "turnback")
    argv = [command, "router", "--prefill", prefill, "--decode", decode, "--port", str(port)]
    argv += ["--api-keys-file", str(keys), *more]
    with started(argv, core=core, log=_LOGS / "turnback.log") as child:
        wait_until_serving(child, port, "turnback router")
        yield Target("turnback", port, child.pid)


@contextmanager
def vllm_router(mocks: Mocks, core: int, policy: str = VLLM_POLICY) -> Iterator[Target]:
    """vllm-router with its defaults but for the policy, and quiet."""
    binary = str(vllm_router_binary())
    port, metrics = free_ports(2)
    prefill, decode = mocks.urls
    argv = [
        *(binary, "--vllm-pd-disaggregation", "--kv-connector", "nixl"),
        *("--prefill", prefill, "--decode", decode, "--policy", policy),
        *("--host", HOST, "--port", str(port), "--prometheus-port", str(metrics)),
        *("--log-level", "warning", "--log-dir", str(_LOGS)),
    ]
    env = dict(os.environ)
    env.pop("PYTHONPATH", None)
    with started(argv, core=core, log=_LOGS / "vllm_router.log", env=env) as child:
        wait_until_serving(child, port, "vllm-router")
        yield Target("vllm_router", port, child.pid)
