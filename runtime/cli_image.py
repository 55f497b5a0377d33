"""`turnback image`: build the machine images."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli_aws import JsonOption, edge, teller
from runtime.contract.image import ImageKind

if TYPE_CHECKING:
    from runtime.aws.image_build import ImageBuild


def register(app: typer.Typer) -> None:
    """Add the commands."""
    image = typer.Typer(help="Machine images.", no_args_is_help=True)
    image.command()(build)
    image.callback()(lambda: None)
    app.add_typer(image, name="image")


def build(
    name: Annotated[str, typer.Argument(help="The deployment.")],
    *,
    kind: Annotated[ImageKind, typer.Option(help="Of GPU nodes, or of routers.")] = "node",
    wait: Annotated[bool, typer.Option("--wait", help="Until there is an AMI.")] = False,
    timeout_s: Annotated[int, typer.Option(min=1, help="Longest such wait.")] = 4 * 3600,
    region: Annotated[str, typer.Option(help="Left out: the environment's.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Build an image with EC2 Image Builder; the image stack must be deployed."""
    from runtime.aws.clients import client
    from runtime.aws.image_build import Pace, build_image

    say = teller(as_json=as_json)
    with edge(f"interrupted; a build that was started goes on: turnback image build {name} --wait"):
        made = build_image(
            name, kind, client("imagebuilder", region), say, Pace(timeout_s) if wait else None
        )
        if as_json:
            typer.echo(json.dumps(_as_json(made)))
        if made.failure is not None:
            raise made.failure
        if not as_json:
            typer.echo(_told(made))


def _told(made: "ImageBuild") -> str:
    if made.ami_id:
        return f"\nfor deployment.toml:\n\n{made.settings_lines()}"
    return f"it goes on by itself; turnback image build {made.deployment} --wait follows it"


def _as_json(made: "ImageBuild") -> dict[str, Any]:
    failure = made.failure and {
        "what": made.failure.what,
        "got": made.failure.got,
        "allowed": made.failure.allowed,
        "fix": made.failure.fix,
    }
    return {
        "deployment": made.deployment,
        "kind": made.kind,
        "image": made.arn,
        "status": made.status,
        "ami_id": made.ami_id or None,
        "waited_s": round(made.waited_s, 1),
        "failure": failure,
    }
