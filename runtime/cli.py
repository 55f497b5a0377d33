"""The `turnback` command."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from runtime import (
    cli_aws,
    cli_bench,
    cli_doctor,
    cli_image,
    cli_job,
    cli_local,
    cli_logs,
    cli_metrics,
    cli_node,
    cli_report,
    cli_tune,
    cli_validate,
)
from runtime.cli_edge import exit_with
from runtime.contract.explain import explain as explain_problems
from runtime.contract.node import KvTransferSpec, RouterSpec
from runtime.errors import BadInput, TurnbackError
from runtime.local.checks import check_port_free

app = typer.Typer(
    help="Disaggregated vLLM serving with verified bidirectional KV transfer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cli_local.register(app)
cli_bench.register(app)
cli_aws.register(app)
cli_image.register(app)
cli_node.register(app)
cli_doctor.register(app)
cli_report.register(app)
cli_job.register(app)
cli_validate.register(app)
cli_tune.register(app)
cli_logs.register(app)
cli_metrics.register(app)

_SPEC = RouterSpec.model_fields


def _flag(field: str, text: str, **limits: Any) -> Any:
    """An option whose value goes into a RouterSpec field as it is."""
    return typer.Option(f"--{field.replace('_', '-')}", help=text, show_default=True, **limits)


def _default(field: str) -> Any:
    return _SPEC[field].default


@app.command()
def router(
    *,
    prefill: Annotated[
        list[str] | None, typer.Option(help="URL of a prefill server; repeatable.")
    ] = None,
    decode: Annotated[
        list[str] | None, typer.Option(help="URL of a decode server; repeatable.")
    ] = None,
    nodes_file: Annotated[
        Path | None, typer.Option(help="TOML file that lists nodes; changes are followed.")
    ] = None,
    deployment: Annotated[
        str, _flag("deployment", "Serve with the running EC2 instances of this name.")
    ] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1024, max=65_535, help="Port to listen on.")] = 8000,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="PEM certificate chain; with it the router speaks HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM key of the certificate.")] = None,
    decoder_kv_blocks_ttl_s: Annotated[
        int, typer.Option(help="How long D keeps a turn's blocks, as D was started with.")
    ] = 480,
    kv_lease_duration_s: Annotated[
        int, typer.Option(help="How long P keeps a prompt's blocks, as P was started with.")
    ] = 30,
    handle_deadline_margin_s: Annotated[
        int, typer.Option(help="Handles are dropped this long before the TTL's end.")
    ] = 10,
    block_size_tokens: Annotated[
        int, typer.Option(help="Tokens per KV block of the engines.")
    ] = 32,
    connect_timeout_s: Annotated[
        float, _flag("connect_timeout_s", "Longest wait for a connection to an engine.")
    ] = _default("connect_timeout_s"),
    prefill_timeout_s: Annotated[
        float, _flag("prefill_timeout_s", "Longest prefill leg.")
    ] = _default("prefill_timeout_s"),
    silence_timeout_s: Annotated[
        float, _flag("silence_timeout_s", "Longest silence of a decode leg.")
    ] = _default("silence_timeout_s"),
    turn_timeout_s: Annotated[
        float, _flag("turn_timeout_s", "Longest wait for the beginning of an answer.")
    ] = _default("turn_timeout_s"),
    client_timeout_s: Annotated[
        float, _flag("client_timeout_s", "Longest wait for a client's body or reading.")
    ] = _default("client_timeout_s"),
    max_body_bytes: Annotated[int, _flag("max_body_bytes", "Largest client request.")] = _default(
        "max_body_bytes"
    ),
    max_running_turns: Annotated[int, _flag("max_running_turns", "Turns at once.")] = _default(
        "max_running_turns"
    ),
    max_waiting_turns: Annotated[
        int, _flag("max_waiting_turns", "Turns that may wait for a place or a node.")
    ] = _default("max_waiting_turns"),
    queue_timeout_s: Annotated[
        float, _flag("queue_timeout_s", "Longest such wait; then 429 or 503.")
    ] = _default("queue_timeout_s"),
    drain_s: Annotated[
        float, _flag("drain_s", "How long a stopping router lets turns end.")
    ] = _default("drain_s"),
    health_interval_s: Annotated[
        float, _flag("health_interval_s", "Between two health checks of a node.")
    ] = _default("health_interval_s"),
    breaker_failures: Annotated[
        int, _flag("breaker_failures", "Failures in a row that open a node's breaker.")
    ] = _default("breaker_failures"),
    breaker_open_s: Annotated[float, _flag("breaker_open_s", "How long it stays open.")] = _default(
        "breaker_open_s"
    ),
    pin_share: Annotated[
        float, _flag("pin_share", "Share of D's KV cache that handles may pin.")
    ] = _default("pin_share"),
    store: Annotated[
        str | None,
        typer.Option(
            envvar="TURNBACK_STORE", help="valkey:// or redis:// address; left out: own memory."
        ),
    ] = None,
    store_timeout_s: Annotated[
        float, _flag("store_timeout_s", "Longest wait for the store, twice a turn.")
    ] = _default("store_timeout_s"),
    canary_share: Annotated[
        float, _flag("canary_share", "Share of greedy warm turns run again cold.")
    ] = _default("canary_share"),
    canary_max_differences: Annotated[
        int, _flag("canary_max_differences", "Differences that switch reuse off.")
    ] = _default("canary_max_differences"),
    api_keys_file: Annotated[
        Path | None, typer.Option(help="JSON file of API keys; changes are followed.")
    ] = None,
    api_keys_secret: Annotated[
        str | None, typer.Option(help="The same in AWS Secrets Manager: name or ARN.")
    ] = None,
    engine_api_key_file: Annotated[
        Path | None, typer.Option(help="File with the key that the engines want.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Log for each turn what was decided and why.")
    ] = False,
) -> None:
    """The KV-aware router in front of running servers."""
    given = dict(locals())
    raw = {name: value for name, value in given.items() if name in _SPEC}
    raw["kv"] = {name: given[name] for name in KvTransferSpec.model_fields if name in given}
    raw |= {"prefill_urls": prefill or (), "decode_urls": decode or (), "store_url": store}
    try:
        spec = RouterSpec.model_validate(raw)
        check_port_free(host, port)
        _serve(spec, api_keys_secret)
    except ValidationError as error:
        raise exit_with(explain_problems(error, "turnback router")) from None
    except TurnbackError as error:
        raise exit_with(error) from None
    except (OSError, UnicodeDecodeError) as error:
        raise exit_with(
            BadInput(
                "a file or address cannot be used",
                got=str(error),
                allowed="files that can be read, an address of this machine",
                fix="mend what the system names",
            )
        ) from None


def _serve(spec: RouterSpec, api_keys_secret: str | None) -> None:
    """Wire the router to its sources and run it."""
    # Late: other commands do without these.
    from runtime.router.app import Router
    from runtime.router.auth import Gate, authorization_of
    from runtime.router.server import serve

    if spec.api_keys_file is not None and api_keys_secret is not None:
        raise BadInput(
            "the API keys are given twice",
            got="--api-keys-file and --api-keys-secret",
            allowed="one of the two",
            fix="leave one out",
        )
    read_keys: Callable[[], str] | None = None
    if spec.api_keys_file is not None:
        read_keys = partial(spec.api_keys_file.read_text)
    elif api_keys_secret is not None:
        from runtime.aws.secrets import secret_text

        read_keys = secret_text(api_keys_secret)
    listing = None
    if spec.deployment:
        from runtime.aws.discovery import instance_listing

        listing = instance_listing(spec.deployment)
    key_file = spec.engine_api_key_file
    engine_key = authorization_of(key_file.read_text() if key_file else None)
    serve(Router(spec, Gate(read_keys), engine_key, listing))


@app.command()
def reuse(
    state: Annotated[str, typer.Argument(help="on, off or status.")],
    *,
    router_url: Annotated[
        str, typer.Option("--router", help="Address of any router of the deployment.")
    ] = "http://127.0.0.1:8000",
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with an administrator's API key.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Shown by status and in the log.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Turn reuse of KV off or on, without a deploy, for all routers that share a store."""
    from runtime.router.remote import ask_reuse

    try:
        told = ask_reuse(
            router_url, state, reason, api_key_file.read_text() if api_key_file else None
        )
    except (TurnbackError, OSError) as error:
        if isinstance(error, TurnbackError):
            raise exit_with(error) from None
        raise exit_with(
            BadInput(
                "the API key file cannot be read",
                got=str(error),
                allowed="a file with one key",
                fix="give another --api-key-file",
            )
        ) from None
    if as_json:
        typer.echo(json.dumps(told))
        return
    typer.echo(f"reuse is {told['reuse']}" + (f": {told['reason']}" if told["reason"] else ""))
    if told.get("all_routers") is False:
        typer.echo("the store does not answer: only this router was switched", err=True)


if __name__ == "__main__":
    app()
