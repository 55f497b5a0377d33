"""Steps -> the documents that Image Builder's task orchestrator runs on a build instance.

Source:
    EC2 Image Builder user guide, "Use the AWSTOE component document framework": a document is
    YAML, of which JSON is a part; phases are build, validate (before the snapshot) and test
    (on an instance of the new image). Data of a component: 16,000 characters.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["node", "router"]
KINDS: tuple[Kind, ...] = ("node", "router")
MOST_CHARACTERS = 16_000
WORK = "/var/tmp/turnback-image"  # noqa: S108 - on the build instance, root's own
_HOUR_S = 3600


@dataclass(frozen=True)
class Step:
    """One script.

    Attributes:
        script: in steps/, with its arguments.
        timeout_s: longest run.
        reboots: whether the machine restarts after it.
    """

    script: str
    timeout_s: int = 600
    reboots: bool = False


STEPS: Mapping[Kind, Sequence[Step]] = {
    "node": (
        Step("10-kernel-update.sh", _HOUR_S, reboots=True),
        Step("20-kernel-hold.sh"),
        Step("30-efa.sh", _HOUR_S),
        Step("40-libraries.sh"),
        Step("50-limits.sh"),
        Step("55-nvidia.sh"),
        Step("60-kit.sh", 1800),
        Step("70-engine.sh", 2 * _HOUR_S),
        Step("80-units.sh"),
        Step("90-image-file.sh node"),
        Step("99-clean.sh"),
    ),
    "router": (
        Step("10-kernel-update.sh", _HOUR_S, reboots=True),
        Step("60-kit.sh", 1800),
        Step("81-router-units.sh"),
        Step("90-image-file.sh router"),
        Step("99-clean.sh"),
    ),
}
"""In this order: EFA's module after the last kernel, what describes the image last."""


@dataclass(frozen=True)
class Download:
    """A file in S3.

    Attributes:
        uri: s3://bucket/key.
        name: on the build instance.
        sha256: what it must be.
    """

    uri: str
    name: str
    sha256: str


def component_document(kind: Kind, bundle: Download, wheel: Download) -> str:
    """The document of one image, as JSON.

    Args:
        kind: of the image.
        bundle: the archive of bundle.py.
        wheel: of the kit, by which the image is verified; it does not stay in it.

    Raises:
        ValueError: it is longer than Image Builder takes.
    """
    fetch = _fetch(bundle, wheel)
    verify = _bash("Verify", [f"{WORK}/verify.sh {WORK}/{wheel.name}"], 900)
    document = {
        "name": f"turnback-{kind}",
        "description": f"Image of turnback's {kind}s",
        "schemaVersion": "1.0",
        "phases": [
            {"name": "build", "steps": [*fetch, *_steps(kind)]},
            # Scripts and kit are not to be in the image.
            {"name": "validate", "steps": [verify, _bash("Remove", [f"rm -rf {WORK}"], 60)]},
            # Another machine: what lay in /var/tmp has not come along.
            {"name": "test", "steps": [*fetch, verify]},
        ],
    }
    text = json.dumps(document, indent=1)
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"the {kind} document has {len(text)} of {MOST_CHARACTERS} characters")
    return text


def _fetch(bundle: Download, wheel: Download) -> list[dict[str, Any]]:
    files = (bundle, wheel)
    return [
        _bash("Prepare", [f"rm -rf {WORK}", f"install -d -m 0700 {WORK}"], 60),
        {
            "name": "Fetch",
            "action": "S3Download",
            "timeoutSeconds": 300,
            "onFailure": "Abort",
            "maxAttempts": 3,
            "inputs": [
                {"source": each.uri, "destination": f"{WORK}/{each.name}"} for each in files
            ],
        },
        _bash(
            "Unpack",
            [
                f"cd {WORK}",
                *(f"echo '{each.sha256}  {each.name}' | sha256sum --check" for each in files),
                f"tar -xzf {bundle.name}",
            ],
            60,
        ),
    ]


def _steps(kind: Kind) -> list[dict[str, Any]]:
    made = []
    for step in STEPS[kind]:
        file = step.script.split(" ", 1)[0]
        name = "".join(part.capitalize() for part in file.removesuffix(".sh").split("-")[1:])
        made.append(_bash(name, [f"{WORK}/steps/{step.script}"], step.timeout_s))
        if step.reboots:
            made.append({"name": f"{name}Reboot", "action": "Reboot", "onFailure": "Abort"})
    return made


def _bash(name: str, commands: Sequence[str], timeout_s: int) -> dict[str, Any]:
    return {
        "name": name,
        "action": "ExecuteBash",
        "timeoutSeconds": timeout_s,
        "onFailure": "Abort",
        "inputs": {"commands": ["set -euo pipefail", *commands]},
    }
