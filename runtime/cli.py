"""The `turnback` command."""

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from runtime.contract.explain import explain
from runtime.contract.node import KvTransferSpec, RouterSpec
from runtime.contract.profile import Profile, load_profile
from runtime.errors import EXIT_INTERRUPTED, BadInput, TurnbackError
from runtime.local.checks import check_port_free
from runtime.local.demo import LocalOptions, run_demo, run_up

app = typer.Typer(
    help="Disaggregated vLLM serving with verified bidirectional KV transfer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

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


def _run(work: Coroutine[Any, Any, Any]) -> None:
    """Run to the end; SIGTERM is taken like Ctrl-C. Errors become messages and exit codes.

    Both are handled here, since a background job starts with SIGINT ignored.
    """

    async def body() -> None:
        task = asyncio.current_task()
        if task is not None:
            for signum in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
        await work

    try:
        asyncio.run(body())
    except TurnbackError as error:
        raise _exit_with(error) from None
    except OSError as error:
        raise _exit_with(
            BadInput(
                "a file or folder cannot be used",
                got=str(error),
                allowed="folders that can be written, with room on the disk",
                fix="give another --out, or mend what the system names",
            )
        ) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo("\ninterrupted; every process that was started has been ended", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _exit_with(error: TurnbackError) -> typer.Exit:
    """Print an error; raise what comes back."""
    typer.echo(f"\nerror: {error}", err=True)
    return typer.Exit(error.exit_code)


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
        raise _exit_with(explain(error, "turnback demo")) from None
    return LocalOptions(
        profile=profile,
        out=out,
        port=port,
        model=model,
        engine_environment=None if mock else environment,
    )


@app.command()
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
    _run(run_demo(options, Console()))


@app.command()
def up(
    *,
    out: OutOption = Path("out"),
    port: PortOption = 0,
    model: ModelOption = None,
    engine_environment: EnvironmentOption = Path(".venv-engine"),
    mock: MockOption = False,
) -> None:
    """Start a prefill server, a decode server and the router; Ctrl-C ends them."""
    _run(run_up(_options(out, port, model, engine_environment, mock=mock), Console()))


@app.command()
def router(
    *,
    prefill: Annotated[list[str], typer.Option(help="URL of a prefill server; repeatable.")],
    decode: Annotated[list[str], typer.Option(help="URL of a decode server; repeatable.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1024, max=65_535, help="Port to listen on.")] = 8000,
    decoder_kv_blocks_ttl_s: Annotated[
        int, typer.Option(help="How long D keeps a turn's blocks, as D was started with.")
    ] = 480,
    handle_deadline_margin_s: Annotated[
        int, typer.Option(help="Handles are dropped this long before that.")
    ] = 10,
    block_size_tokens: Annotated[
        int, typer.Option(help="Tokens per KV block of the engines.")
    ] = 32,
) -> None:
    """The KV-aware router in front of running servers."""
    from runtime.router.app import serve  # other commands do without it

    try:
        spec = RouterSpec(
            prefill_urls=tuple(url.rstrip("/") for url in prefill),
            decode_urls=tuple(url.rstrip("/") for url in decode),
            host=host,
            port=port,
            kv=KvTransferSpec.model_validate(
                {
                    "decoder_kv_blocks_ttl_s": decoder_kv_blocks_ttl_s,
                    "handle_deadline_margin_s": handle_deadline_margin_s,
                    "block_size_tokens": block_size_tokens,
                }
            ),
        )
        check_port_free(host, port)
    except ValidationError as error:
        raise _exit_with(explain(error, "turnback router")) from None
    except BadInput as error:
        raise _exit_with(error) from None
    serve(spec)


if __name__ == "__main__":
    app()
