"""The CDK app: `cdk deploy` runs it, and `make synth` without the CDK CLI.

The only place that reads context, environment and clock; stacks get values.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from cdk_nag import AwsSolutionsChecks

from cdk.settings import only_image, read_settings, settings_file
from cdk.wheel import build_kit_wheel
from runtime.contract.deployment import DeploymentSettings
from runtime.errors import BadInput, TurnbackError
from stacks.fleet import FleetStack
from stacks.image import ImageStack
from stacks.network import NetworkStack
from stacks.operations import OperationsStack
from stacks.router import RouterStack

ROOT = Path(__file__).resolve().parents[1]
_SOURCES = ("cdk", "stacks", "ami")


@dataclass(frozen=True)
class Deployment:
    """The stacks of one deployment."""

    network: NetworkStack
    image: ImageStack
    fleet: FleetStack
    router: RouterStack
    operations: OperationsStack

    def stacks(self) -> tuple[cdk.Stack, ...]:
        """In the order in which they are deployed."""
        return self.network, self.image, self.fleet, self.router, self.operations


def build(
    app: cdk.App, settings: DeploymentSettings, *, kit_wheel: Path, now: datetime
) -> Deployment:
    """Put the stacks of a deployment into an app.

    Args:
        app: where they go.
        settings: of the deployment.
        kit_wheel: what nodes install.
        now: scheduled actions before this moment are left out.
    """
    env = cdk.Environment(region=settings.aws_region)
    named = f"turnback-{settings.name}"
    network = NetworkStack(
        app,
        f"{named}-network",
        name=settings.name,
        availability_zone=settings.availability_zone,
        network=settings.network,
        listener_port=443 if settings.router.certificate_arn else 80,
        proxy_url=settings.downloads.proxy_url,
        env=env,
    )
    image = build_image(app, settings, kit_wheel=kit_wheel)
    fleet = FleetStack(
        app,
        f"{named}-fleet",
        settings=settings,
        network=network,
        image=image,
        kit_wheel=kit_wheel,
        now=now,
        decoder_kv_blocks_ttl_s=settings.kv.decoder_kv_blocks_ttl_s,
        kv_recompute_threshold_tokens=settings.kv.kv_recompute_threshold_tokens,
        env=env,
    )
    router = RouterStack(
        app,
        f"{named}-router",
        settings=settings,
        network=network,
        image=image,
        kit_wheel=kit_wheel,
        decoder_kv_blocks_ttl_s=settings.kv.decoder_kv_blocks_ttl_s,
        env=env,
    )
    operations = OperationsStack(
        app,
        f"{named}-operations",
        settings=settings,
        network=network,
        fleet=fleet,
        router=router,
        fingerprint=fingerprint(settings, kit_wheel, ROOT),
        now=now,
        env=env,
    )
    deployment = Deployment(network, image, fleet, router, operations)
    for stack in (network, fleet, router, operations):
        _mark(stack, settings)
    return deployment


def build_image(app: cdk.App, settings: DeploymentSettings, *, kit_wheel: Path) -> ImageStack:
    """Put the stack that builds images into an app; it needs none of the others.

    Args:
        app: where it goes.
        settings: of the deployment.
        kit_wheel: by which images are verified.
    """
    image = ImageStack(
        *(app, f"turnback-{settings.name}-image"),
        name=settings.name,
        image=settings.image,
        kit_wheel=kit_wheel,
        tags_of_builds=settings.tags,
        env=cdk.Environment(region=settings.aws_region),
    )
    _mark(image, settings)
    return image


def fingerprint(settings: DeploymentSettings, kit_wheel: Path, root: Path) -> str:
    """Digest of all that the templates are made of: settings, kit, and the code that makes them.

    Args:
        settings: of the deployment.
        kit_wheel: what nodes install.
        root: of the repository.
    """
    digest = hashlib.sha256(settings.model_dump_json().encode())
    digest.update(hashlib.sha256(kit_wheel.read_bytes()).digest())
    sources = [path for room in _SOURCES for path in (root / room).rglob("*") if path.is_file()]
    for path in sorted(sources):
        if path.suffix in (".pyc", ".pyo"):
            continue
        digest.update(str(path.relative_to(root)).encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _mark(stack: cdk.Stack, settings: DeploymentSettings) -> None:
    """Tags on everything, the boundary on every role."""
    for key, value in {**settings.tags, "turnback:deployment": settings.name}.items():
        cdk.Tags.of(stack).add(key, value)
    if settings.permissions_boundary_arn:
        iam.PermissionsBoundary.of(stack).apply(
            iam.ManagedPolicy.from_managed_policy_arn(
                stack, "Boundary", settings.permissions_boundary_arn
            )
        )


def committed_context(root: Path) -> dict[str, object]:
    """cdk.json's context, which the CDK CLI would have given."""
    context: dict[str, object] = json.loads((root / "cdk.json").read_text("utf-8"))["context"]
    return context


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cdk.app", description=__doc__)
    parser.add_argument("-c", "--context", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("-o", "--output", help="folder for templates; default cdk.out")
    return parser.parse_args(argv)


def check_writable(folder: Path) -> None:
    """Make a folder; the CDK would try for ever where it cannot.

    Raises:
        BadInput: nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadInput(
            "templates cannot be written",
            got=f"{folder}: {error}",
            allowed="a folder that can be written, with room on the disk",
            fix="give another --output",
        ) from error


def main(argv: Sequence[str]) -> int:
    """Synthesize; returns the exit code."""
    try:
        return _synth(_arguments(argv))
    except TurnbackError as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return error.exit_code


def _synth(arguments: argparse.Namespace) -> int:
    by_cli = "CDK_OUTDIR" in os.environ
    check_writable(Path(arguments.output or os.environ.get("CDK_OUTDIR") or "cdk.out"))
    app = cdk.App(
        outdir=arguments.output or (None if by_cli else "cdk.out"),
        context=None if by_cli else committed_context(ROOT),
    )
    context: dict[str, object] = dict(app.node.get_all_context())
    context |= dict(each.partition("=")[::2] for each in arguments.context)
    settings = read_settings(settings_file(context, ROOT), context)
    wheel = build_kit_wheel(ROOT, ROOT / "out" / "kit")
    if only_image(context):
        build_image(app, settings, kit_wheel=wheel)
    else:
        build(app, settings, kit_wheel=wheel, now=datetime.now(UTC))
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    assembly = app.synth()
    if not by_cli:
        sys.stdout.write(f"{len(assembly.stacks)} stacks in {assembly.directory}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
