"""Settings -> templates, once per session for equal settings."""

import copy
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import aws_cdk
from aws_cdk.assertions import Template

from cdk.app import Deployment, build, committed_context
from runtime.contract.load import load_deployment

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
NOW = datetime(2027, 1, 1, tzinfo=UTC)
AMI = "ami-0123456789abcdef0"
CERTIFICATE = "arn:aws:acm:us-west-2:111122223333:certificate/0f0f0f0f"
BLOCK = {
    "kind": "capacity_block",
    "capacity_reservation_id": "cr-0123456789abcdef0",
    "ends_at": "2027-01-31T11:30:00Z",
}
RESERVATION = {"kind": "reservation", "capacity_reservation_id": "cr-0fedcba9876543210"}
IMPORTED = {
    "kind": "imported",
    "vpc_id": "vpc-0123456789abcdef0",
    "subnet_id": "subnet-0123456789abcdef0",
    "client_cidrs": ["10.0.0.0/8"],
}

Raw = dict[str, Any]
TOPOLOGIES: dict[str, Raw] = {
    "1p1d": {},
    "2p4d": {"prefill.count": 2, "decode.count": 4},
    "capacity-block": {"prefill.capacity": BLOCK, "decode.capacity": BLOCK},
    "odcr": {
        "prefill.capacity": RESERVATION,
        "decode.capacity": RESERVATION | {"placement_group": "reserved"},
    },
    "two-routers": {"router.replicas": 2, "router.certificate_arn": CERTIFICATE},
    "imported-vpc": {"network": IMPORTED},
    "endpoints": {"network.egress": "endpoints"},
}
"""Changes to the committed settings file."""


def raw_settings(changes: Mapping[str, Any] = {}, **top: Any) -> Raw:
    """The committed file with what it leaves open, changed at dotted paths."""
    raw: Raw = tomllib.loads((ROOT / "deployment.toml").read_text("utf-8"))
    raw |= {"name": "demo", "availability_zone": "us-west-2b"}
    raw["image"]["ami_id"] = AMI
    for path, value in {**changes, **top}.items():
        *tables, last = path.split(".")
        at = raw
        for table in tables:
            at = at.setdefault(table, {})
        at[last] = copy.deepcopy(value)
    return raw


@dataclass(frozen=True)
class Synth:
    """Templates of a deployment, and the stacks they came from."""

    deployment: Deployment
    templates: dict[str, Template]

    @property
    def all(self) -> dict[str, Any]:
        """Whole templates by stack: network, image, fleet, router, operations."""
        return {name: each.to_json() for name, each in self.templates.items()}

    def resources(self, stack: str, kind: str) -> dict[str, Any]:
        """Resources of a type, `AWS::` left out."""
        return dict(self.templates[stack].find_resources(f"AWS::{kind}"))

    def only(self, stack: str, kind: str, marked: str = "") -> Any:
        """Properties of the one resource of a type whose logical id begins with a mark."""
        (found,) = (
            each for key, each in self.resources(stack, kind).items() if key.startswith(marked)
        )
        return found.get("Properties", {})

    def launch_template(self, role: str) -> Any:
        """Launch template data of a role."""
        stack, mark = ("router", "") if role == "router" else ("fleet", role.capitalize())
        return self.only(stack, "EC2::LaunchTemplate", mark)["LaunchTemplateData"]

    def spec_text(self, role: str) -> str:
        """What the role's parameter holds."""
        return str(self.only("fleet", "SSM::Parameter", role.capitalize())["Value"])


def wheel(folder: Path) -> Path:
    """A stand-in for the kit's wheel, always of the same bytes."""
    path = folder / "turnback-0.1.0-py3-none-any.whl"
    path.write_bytes(b"a wheel")
    return path


def synth(raw: Raw, folder: Path, *, now: datetime = NOW) -> Synth:
    """Synthesize, without rules of cdk-nag."""
    app = aws_cdk.App(outdir=str(folder / "cdk.out"), context=committed_context(ROOT))
    settings = load_deployment(raw, "deployment.toml")
    deployment = build(app, settings, kit_wheel=wheel(folder), now=now)
    names = ("network", "image", "fleet", "router", "operations")
    return Synth(
        deployment,
        {
            name: Template.from_stack(stack)
            for name, stack in zip(names, deployment.stacks(), strict=True)
        },
    )


def scrubbed(value: Any) -> Any:
    """Asset hashes and scripts replaced: hashes differ between systems, scripts have tests."""
    if isinstance(value, dict):
        return {
            key: "<script>" if key == "UserData" else scrubbed(each) for key, each in value.items()
        }
    if isinstance(value, list):
        return [scrubbed(each) for each in value]
    if not isinstance(value, str):
        return value
    named = re.sub(r"-(node|router)-[0-9a-f]{12}$", r"-\1-<digest>", value)
    return re.sub(r"\b[0-9a-f]{64}\b", "<hash>", named)


def golden(name: str) -> dict[str, Any]:
    """A file that was read by a person."""
    return cast(dict[str, Any], json.loads((GOLDEN / name).read_text("utf-8")))


def text_of(value: Any) -> str:
    """A template's string with references filled in: `Fn::Join` and friends as plain text."""
    if isinstance(value, str):
        return value.replace("${AWS::AccountId}", "111122223333")
    if isinstance(value, list):
        return "".join(text_of(each) for each in value)
    ((name, inner),) = value.items()
    if name == "Fn::Join":
        return text_of(inner[1])
    if name in ("Fn::Base64", "Fn::Sub"):
        return text_of(inner)
    return f"<{json.dumps(inner)}>".replace("'", "")
