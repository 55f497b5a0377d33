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
from runtime.contract.published import load_published
from runtime.errors import EXIT_BELOW_BAR, BadInput
from runtime.local.up import LocalOptions

if TYPE_CHECKING:
    from runtime.bench.bars import Bars
    from runtime.bench.remote import RemoteBench
    from runtime.bench.workloads.load import WorkloadFile
    from runtime.local.bench import LocalBench

UrlsOption = Annotated[list[str] | None, typer.Option(help="Engines whose metrics are read.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(bench)


def bench(
    context: typer.Context,
    *,
    url: Annotated[
        str | None, typer.Option(help="Router to measure. Left out: a pair on this machine.")
    ] = None,
    profile: Annotated[
        str, typer.Option(help="Sizes and workload: a name, or a file of your own, PATH.toml.")
    ] = "tiny",
    workload: Annotated[
        Path | None, typer.Option(help="Conversations of your own, in place of the profile's.")
    ] = None,
    conversations: Annotated[
        int | None, typer.Option(min=2, help="In place of the profile's; of a file the first ones.")
    ] = None,
    turns: Annotated[
        int | None, typer.Option(min=2, help="In place of the profile's; of a file at most.")
    ] = None,
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
        str | None,
        typer.Option(
            help="Of caching-off, caching-on, feature-off; parted by commas. Left out: the first, "
            "and feature-off too for a profile with published figures."
        ),
    ] = None,
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
    _refuse_unused(context, is_remote=url is not None)
    chosen = _profile(given)
    spec = chosen.bench
    from runtime.bench.bars import Bars
    from runtime.bench.run import on_uvloop

    bars = Bars(min_speedup, slo_ttft_p90_ms)
    if url is None:
        run(_local(_local_plan(given, chosen, spec), bars), on_uvloop)
    else:
        run(_remote(_remote_plan(given, chosen, spec), bars), on_uvloop)


_OF_A_PAIR = ("passes", "port", "model", "engine_environment", "mock")
_OF_A_ROUTER = (
    *("served_model_name", "tokenizer", "api_key_file", "prefill", "decode", "name"),
    *("prefill_prefix_caching", "feature_off"),
)


def _refuse_unused(context: typer.Context, *, is_remote: bool) -> None:
    """An option that this run would pass over is a mistake: what was meant is not measured."""
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    unused = [
        flags[name]
        for name in (_OF_A_PAIR if is_remote else _OF_A_ROUTER)
        if (source := context.get_parameter_source(name)) is not None
        and source.name == "COMMANDLINE"
    ]
    if unused:
        which = "with --url" if is_remote else "without --url"
        raise exit_with(
            BadInput(
                f"options that a run {which} would not use",
                got=", ".join(unused),
                allowed="with --url, options of a router that runs; without, of a pair that is "
                "started on this machine (docs/reference.md)",
                fix="leave them out"
                if is_remote
                else "leave them out, or add --url; the passes of a pair are chosen by --passes",
            )
        )


_BENCH_FLAGS = tuple(name for name in BenchSpec.model_fields if name not in ("objectives", "price"))


def _profile(given: dict[str, Any]) -> Profile:
    """The named profile with what the command line says otherwise.

    Raises:
        typer.Exit: 2, with every value that cannot be used.
    """
    raw = _read_profile(given["profile"]).model_dump()
    if given["workload"] is None:
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


def _read_profile(name: str) -> Profile:
    try:
        return load_profile(name)
    except ValidationError as error:
        raise exit_with(explain(error, name)) from None
    except (OSError, ValueError) as error:
        known = ", ".join(sorted(path.stem for path in PROFILES.glob("*.toml")))
        is_missing = isinstance(error, FileNotFoundError)
        raise exit_with(
            BadInput(
                "no such profile" if is_missing else "the profile cannot be read",
                got=name if is_missing else f"{name}: {error}",
                allowed=f"{known}, or the path of a file of your own that ends in .toml",
                fix="give another --profile, or mend the file",
            )
        ) from None


def _update(raw: dict[str, Any], given: dict[str, Any], names: dict[str, str]) -> None:
    raw |= {field: given[name] for field, name in names.items() if given[name] is not None}


def _local_plan(given: dict[str, Any], profile: Profile, spec: BenchSpec) -> "LocalBench":
    from runtime.local.bench import PASSES, LocalBench

    names = _pass_names(given["passes"], profile)
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
    return LocalBench("bench", options, spec, names, _file(given))


def _file(given: dict[str, Any]) -> "WorkloadFile | None":
    from runtime.bench.workloads.load import WorkloadFile

    path = given["workload"]
    return None if path is None else WorkloadFile(path, given["conversations"], given["turns"])


def _pass_names(given: str | None, profile: Profile) -> list[str]:
    """The published baseline is a fleet without the feature: such a profile has that pass too."""
    if given is not None:
        return [each.strip() for each in given.split(",")]
    is_published = load_published(profile.name) is not None
    return ["caching-off", "feature-off"] if is_published else ["caching-off"]


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
        workload=_file(given),
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
