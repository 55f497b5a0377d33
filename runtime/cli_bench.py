"""`turnback bench`: the multi-turn benchmark, on this machine or against a router."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from runtime.cli_edge import exit_with, run
from runtime.cli_local import EnvironmentOption, MockOption, ModelOption, OutOption, PortOption
from runtime.contract.bench import BenchSpec
from runtime.contract.explain import explain
from runtime.contract.profile import PROFILES, Profile, load_profile
from runtime.errors import EXIT_BELOW_BAR, BadInput
from runtime.local.up import LocalOptions

if TYPE_CHECKING:
    from runtime.bench.bars import Bars
    from runtime.bench.remote import RemoteBench
    from runtime.local.bench import LocalBench

UrlsOption = Annotated[list[str] | None, typer.Option(help="Engines whose metrics are read.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(bench)


def bench(
    *,
    url: Annotated[
        str | None, typer.Option(help="Router to measure. Left out: a pair on this machine.")
    ] = None,
    profile: Annotated[str, typer.Option(help="Sizes and workload.")] = "tiny",
    workload: Annotated[
        Path | None, typer.Option(help="Conversations of your own, in place of the profile's.")
    ] = None,
    conversations: Annotated[int | None, typer.Option(min=2)] = None,
    turns: Annotated[int | None, typer.Option(min=2)] = None,
    out: OutOption = Path("out"),
    # How it is played; left out: the profile's.
    clients: Annotated[int | None, typer.Option(help="Conversations at a time.")] = None,
    arrivals_per_s: Annotated[
        float | None, typer.Option(help="Open loop: conversations that begin per second.")
    ] = None,
    block_conversations: Annotated[
        int | None, typer.Option(help="Conversations of an ABBA block.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(help="The whole workload so many times.")] = None,
    again_share: Annotated[
        float | None, typer.Option(help="Of one-way blocks that run twice (A/A).")
    ] = None,
    abort_share: Annotated[
        float | None, typer.Option(help="Of turns whose client leaves in mid-answer.")
    ] = None,
    edit_share: Annotated[
        float | None, typer.Option(help="Of turns that change an earlier message.")
    ] = None,
    think_scale: Annotated[
        float | None, typer.Option(help="Times the workload's think times.")
    ] = None,
    timeout_s: Annotated[float | None, typer.Option(help="Longest turn.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of all that is drawn.")] = None,
    slo_ttft_ms: Annotated[
        float | None, typer.Option(help="Goodput: most milliseconds to the first token.")
    ] = None,
    slo_tpot_ms: Annotated[
        float | None, typer.Option(help="Goodput: most milliseconds per token after it.")
    ] = None,
    usd_per_node_hour: Annotated[
        float | None, typer.Option(help="Price of a prefill node.")
    ] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs of a prefill node.")] = None,
    # What the result must reach.
    min_speedup: Annotated[
        float | None, typer.Option(help="Exit code 1 below this speed-up.")
    ] = None,
    slo_ttft_p90_ms: Annotated[
        float | None, typer.Option(help="Exit code 1 where a later turn's p90 TTFT is above.")
    ] = None,
    # On this machine.
    passes: Annotated[
        str, typer.Option(help="Of caching-off, caching-on, feature-off; parted by commas.")
    ] = "caching-off",
    port: PortOption = 0,
    model: ModelOption = None,
    engine_environment: EnvironmentOption = Path(".venv-engine"),
    mock: MockOption = False,
    # Against a router.
    served_model_name: Annotated[
        str | None, typer.Option(help="Name that clients send. Left out: the profile's.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json of the served model, or its folder.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File that holds a client's key and nothing else.")
    ] = None,
    prefill: UrlsOption = None,
    decode: UrlsOption = None,
    name: Annotated[
        str, typer.Option("--pass-name", help="Of the pass, in the report.")
    ] = "caching-off",
    prefill_prefix_caching: Annotated[
        bool | None, typer.Option(help="How P was started. Left out: the profile's.")
    ] = None,
    feature_off: Annotated[
        bool, typer.Option("--feature-off", help="Both servers run kv.bidirectional = false.")
    ] = False,
) -> None:
    """Measure what returning KV gains, per turn, with intervals; the answers are compared."""
    given = locals()
    chosen = _profile(given)
    spec = chosen.bench
    from runtime.bench.bars import Bars
    from runtime.bench.run import on_uvloop

    bars = Bars(min_speedup, slo_ttft_p90_ms)
    if url is None:
        run(_local(_local_plan(given, chosen, spec), bars), on_uvloop)
    else:
        run(_remote(_remote_plan(given, chosen, spec), bars), on_uvloop)


_BENCH_FLAGS = tuple(name for name in BenchSpec.model_fields if name not in ("objectives", "price"))


def _profile(given: dict[str, Any]) -> Profile:
    """The named profile with what the command line says otherwise.

    Raises:
        typer.Exit: 2, with every value that cannot be used.
    """
    name = given["profile"]
    if not (PROFILES / f"{name}.toml").is_file():
        known = ", ".join(sorted(path.stem for path in PROFILES.glob("*.toml")))
        raise exit_with(
            BadInput("no such profile", got=name, allowed=known, fix="give another --profile")
        )
    raw = load_profile(name).model_dump()
    _update(raw["workload"], given, {each: each for each in ("conversations", "turns")})
    _update(raw["bench"], given, {each: each for each in _BENCH_FLAGS})
    _update(raw["bench"]["objectives"], given, {"ttft_ms": "slo_ttft_ms", "tpot_ms": "slo_tpot_ms"})
    _update(
        raw["bench"]["price"],
        given,
        {"usd_per_node_hour": "usd_per_node_hour", "gpus_per_node": "gpus_per_node"},
    )
    _update(raw["serving"], given, {"prefill_prefix_caching": "prefill_prefix_caching"})
    raw["kv"]["bidirectional"] = not given["feature_off"]
    try:
        return Profile.model_validate(raw)
    except ValidationError as error:
        raise exit_with(explain(error, "turnback bench")) from None


def _update(raw: dict[str, Any], given: dict[str, Any], names: dict[str, str]) -> None:
    raw |= {field: given[name] for field, name in names.items() if given[name] is not None}


def _local_plan(given: dict[str, Any], profile: Profile, spec: BenchSpec) -> "LocalBench":
    from runtime.local.bench import PASSES, LocalBench

    names = [each.strip() for each in given["passes"].split(",")]
    if set(names) - set(PASSES) or len(set(names)) < len(names):
        raise exit_with(
            BadInput(
                "the passes cannot be run",
                got=given["passes"],
                allowed=f"{', '.join(PASSES)}, each once",
                fix="correct --passes",
            )
        )
    options = LocalOptions(
        profile=profile,
        out=given["out"],
        port=given["port"],
        model=given["model"],
        engine_environment=None if given["mock"] else given["engine_environment"],
    )
    return LocalBench("bench", options, spec, names, given["workload"])


def _remote_plan(given: dict[str, Any], profile: Profile, spec: BenchSpec) -> "RemoteBench":
    from runtime.bench.remote import RemoteBench
    from runtime.bench.scrape import Server

    if given["tokenizer"] is None:
        raise exit_with(
            BadInput(
                "the tokenizer is missing",
                got="--url without --tokenizer",
                allowed="tokenizer.json of the served model, or the model's folder",
                fix="add --tokenizer PATH",
            )
        )
    engines = [Server(role, each) for role in ("prefill", "decode") for each in given[role] or ()]
    return RemoteBench(
        folder=given["out"] / "bench",
        name=given["name"],
        url=given["url"],
        served_model_name=given["served_model_name"] or profile.name,
        tokenizer=given["tokenizer"],
        profile=profile,
        bench=spec,
        servers=[*engines, Server("router", given["url"])],
        workload=given["workload"],
        api_key=_key(given["api_key_file"]),
    )


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        key = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise exit_with(
            BadInput(
                "the API key cannot be read",
                got=f"{path}: {error}",
                allowed="a text file with a client's key",
                fix="correct --api-key-file",
            )
        ) from None
    return key


async def _local(plan: "LocalBench", bars: "Bars") -> None:
    from runtime.local.bench import run_local

    _judge(await run_local(plan, Console()), bars)


async def _remote(plan: "RemoteBench", bars: "Bars") -> None:
    from runtime.bench.remote import run_remote

    _judge(await run_remote(plan, Console()), bars)


def _judge(report: dict[str, Any], bars: "Bars") -> None:
    from runtime.bench.bars import missed

    lines = missed(report, bars)
    for line in lines:
        typer.echo(f"missed: {line}", err=True)
    if lines:
        raise typer.Exit(EXIT_BELOW_BAR)
