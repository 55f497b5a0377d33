"""The `turnback` commands that need one machine alone: `demo`, `up`, `rehearse`."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from runtime.cli_edge import exit_with, run
from runtime.contract.explain import explain as explain_problems
from runtime.contract.profile import Profile, load_profile
from runtime.local.up import LocalOptions, run_up


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(demo)
    app.command()(up)
    app.command()(rehearse)


OutOption = Annotated[Path, typer.Option(help="Folder for models, logs and results.")]
PortOption = Annotated[int, typer.Option(min=0, max=65_535, help="Router port; 0: any free one.")]
ModelOption = Annotated[
    Path | None, typer.Option(help="Model folder. Left out: the tiny model is built.")
]
EnvironmentOption = Annotated[
    Path, typer.Option(help="Virtual environment that holds vLLM, nixl and this kit.")
]
MockOption = Annotated[
    bool, typer.Option("--mock", help="Mock engines in place of vLLM: seconds, no real times.")
]
SizeOption = Annotated[
    int | None, typer.Option(min=2, help="In place of the profile's; for a quick look.")
]


def _options(
    out: Path,
    port: int,
    model: Path | None,
    environment: Path,
    *,
    mock: bool,
    sizes: dict[str, int | None] | None = None,
) -> LocalOptions:
    raw = load_profile("tiny").model_dump()
    raw["workload"] |= {name: size for name, size in (sizes or {}).items() if size is not None}
    try:
        profile = Profile.model_validate(raw)
    except ValidationError as error:
        raise exit_with(explain_problems(error, "turnback demo")) from None
    return LocalOptions(
        profile=profile,
        out=out,
        port=port,
        model=model,
        engine_environment=None if mock else environment,
    )


def demo(
    *,
    out: OutOption = Path("out"),
    port: PortOption = 0,
    model: ModelOption = None,
    engine_environment: EnvironmentOption = Path(".venv-engine"),
    mock: MockOption = False,
    conversations: SizeOption = None,
    turns: SizeOption = None,
) -> None:
    """Two real vLLM servers on this machine hand KV back; the speed-up is measured."""
    options = _options(
        out,
        port,
        model,
        engine_environment,
        mock=mock,
        sizes={"conversations": conversations, "turns": turns},
    )
    # Late: other commands do without a benchmark's libraries.
    from runtime.local.bench import LocalBench, run_local

    plan = LocalBench("demo", options, options.profile.bench)
    run(run_local(plan, Console()))


def up(
    *,
    out: OutOption = Path("out"),
    port: PortOption = 0,
    model: ModelOption = None,
    engine_environment: EnvironmentOption = Path(".venv-engine"),
    mock: MockOption = False,
) -> None:
    """Start a prefill server, a decode server and the router; Ctrl-C ends them."""
    run(run_up(_options(out, port, model, engine_environment, mock=mock), Console()))


def rehearse(
    *,
    out: OutOption = Path("out"),
    engine_environment: EnvironmentOption = Path(".venv-engine"),
) -> None:
    """A real `cdk deploy` to an emulated account, and real engines from what it leaves."""
    # Late: other commands do without boto3.
    from runtime.local.rehearsal.run import run_rehearsal

    run(run_rehearsal(out, engine_environment, Console()))
