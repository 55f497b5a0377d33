"""One pass against a router that runs somewhere."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from runtime.bench.folder import PassFolder
from runtime.bench.measure import measure, read_workload
from runtime.bench.player import Target
from runtime.bench.progress import shown
from runtime.bench.report import read_report
from runtime.bench.results import report_in_any_case, told_why
from runtime.bench.scrape import Server
from runtime.bench.workloads.load import WorkloadFile
from runtime.contract.bench import REPORT, BenchSpec
from runtime.contract.profile import Profile
from runtime.errors import BadInput

_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class RemoteBench:
    """What to run.

    Attributes:
        folder: takes the pass's folder and the reports; a pass of another name beside it
            becomes part of the report.
        name: of the pass.
        tokenizer: tokenizer.json of the served model, or its folder.
        servers: whose metrics are read: engines, and the router itself.
        profile: sizes; its `prefill_prefix_caching` and `kv.bidirectional` say how the
            fleet was started.
        environment: what the report says of the fleet.
    """

    folder: Path
    name: str
    url: str
    served_model_name: str
    tokenizer: Path
    profile: Profile
    bench: BenchSpec
    servers: Sequence[Server] = ()
    workload: WorkloadFile | None = None
    api_key: str | None = field(default=None, repr=False)
    environment: dict[str, Any] = field(default_factory=dict)


async def run_remote(plan: RemoteBench, console: Console) -> dict[str, Any]:
    """Run the pass and write the report of all passes in the folder.

    Returns:
        What the report says of this pass: bars are asked of it, whichever is the main one.

    Raises:
        BadInput, StartFailed, EngineDied: as their names say.
    """
    folder = PassFolder(plan.folder / plan.name)
    if folder.is_begun:
        raise BadInput(
            "there is a pass of this name already",
            got=str(folder.path),
            allowed="a new name for each pass of a folder",
            fix="give another --pass-name or --out, or move the folder away",
        )
    workload = read_workload(plan.profile, plan.tokenizer, plan.bench, plan.workload, console.print)
    known = {"kit": version("turnback"), "engine": "vllm"}
    known |= await _engine_versions(plan.servers)
    info = workload.pass_of(plan.name, plan.profile, plan.bench, known | plan.environment)
    target = Target(
        *(plan.url, plan.served_model_name, info.run_id),
        allowed_token_ids=workload.allowed_token_ids,
        api_key=plan.api_key,
    )
    with (
        report_in_any_case(plan.folder, console),
        told_why(folder),
        shown(console, plan.name, workload.turns(info)) as progress,
    ):
        await measure(
            target, plan.servers, workload, folder, info, progress.on_turn, progress.on_warm
        )
    report = read_report(plan.folder / REPORT)
    passes: list[dict[str, Any]] = [report, *report["other_passes"]]
    return next(one for one in passes if one["pass"]["name"] == plan.name)


async def _engine_versions(servers: Sequence[Server]) -> dict[str, str]:
    """What the first engine that answers says of itself."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for server in servers:
            if server.role == "router":
                continue
            try:
                async with session.get(f"{server.url.rstrip('/')}/version") as reply:
                    return {"vllm": str((await reply.json())["version"])}
            except (aiohttp.ClientError, LookupError, TimeoutError, TypeError, ValueError):
                continue
    return {}
