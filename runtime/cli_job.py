"""`turnback job`: the steps of a validation, run on a deployment's own machines.

The state machine sends these commands (stacks/constructs/validation/steps.py). What a program
reads is one line of JSON on stdout; all else goes to stderr.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import ValidationError

from runtime.cli_aws import edge
from runtime.contract.bench import REPORT
from runtime.contract.explain import explain
from runtime.contract.keys import ApiKeys
from runtime.contract.node import NodeAddress
from runtime.contract.profile import Profile, WorkloadSpec, load_profile
from runtime.contract.status import BOOT_FILE, STATUS_FILE, BootReport
from runtime.errors import BadInput, EngineDied, StartFailed

if TYPE_CHECKING:
    from runtime.bench.bars import Bars
    from runtime.bench.turn import TurnResult

job = typer.Typer(no_args_is_help=True, help="Steps of a validation, on a deployment's machines.")

WORK = Path("/var/lib/turnback/validation")
SAMPLE, BENCH = "sample", "bench"
PASS_NAME = "deployed"  # noqa: S105 - of a pass of the benchmark
_RUN_ID = re.compile(r"[A-Za-z0-9_.-]{1,80}")
_POLL_S = 5.0
_KEPT_FAILED_S = 120.0
"""A boot that has failed is tried again by its unit: so long must it stand."""
_UPLOAD_S = 120.0
"""Of a run's limit, for what comes after the measurement."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(job, name="job")


@dataclass(frozen=True)
class _Job:
    """What every step on a router is told."""

    run_id: str
    deployment: str
    url: str
    secret: str
    profile: Profile
    model: str
    model_bucket: str
    results_bucket: str
    tensor_parallel_size: int
    nodes_file: Path | None
    folder: Path

    @property
    def sample(self) -> Path:
        """Folder of the few turns that come first."""
        return self.folder / SAMPLE


@job.command()
def ready(
    *,
    timeout_s: Annotated[int, typer.Option(min=1, help="Longest wait.")] = 3600,
    root: Annotated[Path, typer.Option(help="Folder that stands for /.")] = Path("/"),
) -> None:
    """Of a node: wait until its engine answers, or its boot has failed for good."""
    from runtime.launch.machine import Machine
    from runtime.launch.node_report import node_report

    machine = Machine(root)
    with edge("interrupted; the node goes on"):
        _wait(
            machine.at(BOOT_FILE), lambda: node_report(machine.at(STATUS_FILE)).is_ready, timeout_s
        )
    typer.echo(json.dumps({"ready": True}))


def _wait(boot: Path, is_ready: Callable[[], bool], timeout_s: float) -> None:
    """Look every few seconds.

    Raises:
        StartFailed: the boot has failed, or time is up.
    """
    until_s, failed_s = time.monotonic() + timeout_s, None
    while True:
        try:
            if is_ready():
                return
        except StartFailed as error:  # it has just started, and is asked again
            typer.echo(f"not yet: {error.what}", err=True)
        report = _boot_report(boot)
        has_failed = report is not None and report.state == "failed"
        now_s = time.monotonic()
        failed_s = (failed_s or now_s) if has_failed else None
        is_final = failed_s is not None and now_s - failed_s >= min(_KEPT_FAILED_S, timeout_s / 2)
        if report is not None and is_final:
            raise StartFailed(report.what, got=report.got, allowed=report.allowed, fix=report.fix)
        if now_s >= until_s:
            raise StartFailed(
                "the engine does not answer in time",
                got=f"boot is in step {report.step}, {report.state}" if report else "no boot.json",
                allowed=f"an answer within {timeout_s:.0f} s",
                fix="read journalctl --unit turnback-node and /var/log/turnback on the node",
            )
        time.sleep(min(_POLL_S, timeout_s / 10))


def _boot_report(path: Path) -> BootReport | None:
    try:
        return BootReport.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


@job.command()
def measure(
    step: Annotated[
        Literal["transport", "exactness", "bench"], typer.Argument(help="Which; in this order.")
    ],
    *,
    run_id: Annotated[str, typer.Option(help="Of the validation's execution.")],
    deployment: Annotated[str, typer.Option(help="Its nodes, found by their tags.")],
    url: Annotated[str, typer.Option(help="Of the routers' load balancer.")],
    api_keys_secret: Annotated[str, typer.Option(help="ARN of the clients' keys.")],
    profile: Annotated[str, typer.Option(help="Sizes and workload.")],
    model: Annotated[str, typer.Option(help="ID/REVISION, as staged.")],
    model_bucket: Annotated[str, typer.Option(help="Where the model is staged.")],
    results_bucket: Annotated[str, typer.Option(help="Bucket for the run folder.")],
    tensor_parallel_size: Annotated[
        int, typer.Option(min=1, help="Ranks of an engine, the larger of both roles'.")
    ] = 1,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="PATH=VALUE of the profile that the deployment has otherwise."),
    ] = None,
    limit_s: Annotated[int, typer.Option(min=10, help="Longest run, uploads and all.")] = 780,
    min_speedup: Annotated[float, typer.Option(min=0, help="Bar of bench; 0: none.")] = 0,
    slo_ttft_p90_ms: Annotated[float, typer.Option(min=0, help="Bar of bench; 0: none.")] = 0,
    nodes_file: Annotated[
        Path | None, typer.Option(help="Nodes, in place of those of --deployment.")
    ] = None,
    work: Annotated[Path, typer.Option(help="Folder for run folders on this machine.")] = WORK,
) -> None:
    """Of a router: play a few turns and judge what moved and what was said, or benchmark."""
    from runtime.bench.bars import Bars

    with edge("interrupted; what was measured is in the run's folder"):
        given = _Job(
            _checked_run_id(run_id),
            deployment,
            url.rstrip("/"),
            api_keys_secret,
            _profile(profile, changes or ()),
            model,
            model_bucket,
            results_bucket,
            tensor_parallel_size,
            nodes_file,
            work / run_id,
        )
        if step == "transport":
            told = _transport(given, limit_s)
        elif step == "exactness":
            told = _exactness(given)
        else:
            told = _bench(given, limit_s, Bars(min_speedup or None, slo_ttft_p90_ms or None))
        typer.echo(json.dumps(told))


def _checked_run_id(run_id: str) -> str:
    if not _RUN_ID.fullmatch(run_id):
        raise BadInput(
            "this is no run's name",
            got=repr(run_id),
            allowed="1 to 80 letters, digits, hyphens, dots and underscores",
            fix="give the name of the state machine's execution",
        )
    return run_id


def _profile(name: str, changes: Sequence[str]) -> Profile:
    """The profile as the deployment serves it, so that the report says what ran.

    Raises:
        BadInput: it cannot be used, or its fleet returns nothing.
    """
    try:
        raw = load_profile(name).model_dump(mode="json")
        for change in changes:
            _set(raw, change)
        profile = Profile.model_validate(raw)
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise BadInput(
            f"profile {name} cannot be used",
            got=" ".join((*changes, str(error))),
            allowed="a profile of this kit, and values that it can have",
            fix="deploy with the kit that has it",
        ) from error
    if not profile.kv.bidirectional:
        raise BadInput(
            "there is nothing to validate: the fleet returns no KV",
            got="kv.bidirectional = false",
            allowed="a deployment with the feature on",
            fix="measure the published baseline by hand: docs/benchmark.md, --feature-off",
        )
    return profile


def _set(raw: dict[str, Any], change: str) -> None:
    """Put PATH=VALUE in; a list has commas."""
    path, _, text = change.partition("=")
    *tables, key = path.split(".")
    table: Any = raw
    for each in tables:
        table = table[each]
    table[key] = text.split(",") if isinstance(table[key], list) else text


def _transport(given: _Job, limit_s: int) -> dict[str, Any]:
    """Play a few turns; KV must have moved, whole and without a failure."""
    from runtime.job.judge import judge_transport, kv_size

    serving, kv = given.profile.serving, given.profile.kv
    report, results = _measure(given, sample_of(given.profile), given.sample, limit_s)
    size = kv_size(
        _model_config(given), serving.dtype, kv.block_size_tokens, given.tensor_parallel_size
    )
    return judge_transport(report, results, size)


def _model_config(given: _Job) -> dict[str, Any]:
    path = _model_file(given, "config.json")
    try:
        config = json.loads(path.read_bytes())
        if not isinstance(config, dict):
            raise ValueError("no object")
    except ValueError as error:
        raise BadInput(
            "the staged model's config.json cannot be read",
            got=f"{given.model}/config.json: {error}",
            allowed="a JSON object, as the model was published with",
            fix="stage the model again: turnback model stage",
        ) from None
    return config


def _exactness(given: _Job) -> dict[str, Any]:
    """Compare the answers of the turns that were played before."""
    from runtime.bench.report import read_report
    from runtime.job.judge import judge_exactness

    return judge_exactness(read_report(given.sample / REPORT))


def _bench(given: _Job, limit_s: int, bars: "Bars") -> dict[str, Any]:
    """Run the profile's benchmark, upload the run folder, put its figures into CloudWatch."""
    from runtime.job.judge import summary

    folder = given.folder / BENCH
    try:
        play_s = max(limit_s - _UPLOAD_S, limit_s / 2)
        report, _ = _measure(given, given.profile, folder, play_s)
    finally:
        address = _upload(given, folder)
    _put_metrics(given, report)
    if not report["complete"]:
        raise EngineDied(
            "the benchmark did not run to its end",
            got=f"{report['stopped_by']}; what it measured is in {address}",
            allowed=f"an end within {limit_s} s",
            fix="raise validation.bench_timeout_min, or take a smaller profile",
        )
    return summary(report, address, bars)


def sample_of(profile: Profile) -> Profile:
    """A few short conversations on a profile's engines, every one-way turn run twice."""
    room = profile.serving.max_model_len // 4
    work = WorkloadSpec(
        conversations=3,
        turns=3,
        common_prefix_tokens=min(128, room),
        own_prefix_tokens=min(2048, room),
        user_tokens=64,
        answer_tokens=32,
        warmup_conversations=1,
    )
    played = profile.bench.model_copy(
        update={"clients": 1, "arrivals_per_s": None, "again_share": 1.0, "repeats": 1}
    )
    return profile.model_copy(update={"workload": work, "bench": played})


def _measure(
    given: _Job, profile: Profile, folder: Path, limit_s: float
) -> "tuple[dict[str, Any], list[TurnResult]]":
    """The one place that runs a benchmark: its report, and its turns.

    A pass that does not end within `limit_s` is kept, reported and marked.
    """
    from rich.console import Console

    from runtime.aws.secrets import secret_text
    from runtime.bench.folder import PassFolder
    from runtime.bench.remote import RemoteBench, run_remote
    from runtime.bench.report import read_report
    from runtime.bench.run import on_uvloop
    from runtime.bench.scrape import Server

    servers = [Server(each.role, each.url) for each in _nodes(given)]
    plan = RemoteBench(
        folder=folder,
        name=PASS_NAME,
        url=given.url,
        served_model_name=given.model.rpartition("/")[0],
        tokenizer=_model_file(given, "tokenizer.json"),
        profile=profile,
        bench=profile.bench,
        servers=(*servers, Server("router", given.url)),
        api_key=_key(secret_text(given.secret)()),
        environment={"model": given.model, "deployment": given.deployment},
    )

    async def play() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await run_remote(plan, Console(stderr=True))

    on_uvloop(play())
    if not (folder / REPORT).is_file():
        raise EngineDied(
            "no turn was measured in time",
            got=f"none within {limit_s:.0f} s, warm-up and all",
            allowed="at least one",
            fix="read the routers' and the nodes' logs; give a longer --limit-s",
        )
    return read_report(folder / REPORT), PassFolder(folder / PASS_NAME).read()[1]


def _key(text: str) -> str:
    try:
        return ApiKeys.model_validate_json(text).keys[0].key.get_secret_value()
    except ValidationError as error:
        raise explain(error, "the secret with the clients' keys") from error


def _nodes(given: _Job) -> Sequence[NodeAddress]:
    if given.nodes_file is not None:
        from runtime.router.discovery import read_nodes_file

        return read_nodes_file(given.nodes_file)
    from runtime.aws.discovery import instance_listing

    return instance_listing(given.deployment)()


def _model_file(given: _Job, name: str) -> Path:
    from runtime.aws.clients import transfer_client
    from runtime.aws.publish import fetch_model_file

    return fetch_model_file(
        *(transfer_client(), given.model_bucket, given.model, name), given.folder / "model"
    )


def _upload(given: _Job, folder: Path) -> str:
    """The bench's files and the sample's, where there are any."""
    from runtime.aws.clients import transfer_client
    from runtime.aws.publish import upload_run

    s3 = transfer_client()
    if given.sample.is_dir():
        upload_run(s3, given.results_bucket, f"{given.run_id}/{SAMPLE}", given.sample)
    return upload_run(s3, given.results_bucket, given.run_id, folder)


def _put_metrics(given: _Job, report: dict[str, Any]) -> None:
    from runtime.aws.clients import client
    from runtime.aws.publish import put_metrics
    from runtime.job.judge import metrics

    put_metrics(client("cloudwatch"), given.deployment, metrics(report), datetime.now(UTC))
