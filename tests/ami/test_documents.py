"""What Image Builder is given."""

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

from ami import documents
from ami.bundle import bundle_files, write_bundle
from ami.documents import KINDS, MOST_CHARACTERS, STEPS, WORK, Download, Kind, component_document
from ami.versions import read_versions

BUNDLE = Download("s3://bucket-1/a.gz", "turnback-image.tar.gz", "0" * 64)
WHEEL = Download("s3://bucket-1/b.whl", "turnback-0.1.0-py3-none-any.whl", "1" * 64)
AMI = Path(documents.__file__).parent

Document = dict[str, Any]
PHASES = ("build", "validate", "test")
STEP_KEYS = {"name", "action", "timeoutSeconds", "onFailure", "maxAttempts", "inputs"}
ACTIONS = {"ExecuteBash": dict, "S3Download": list, "Reboot": dict}


def document(kind: Kind) -> Document:
    made: Document = json.loads(component_document(kind, BUNDLE, WHEEL))
    return made


def problems(made: Document) -> list[str]:
    """Rules of Image Builder's documents that one breaks.

    Source:
        EC2 Image Builder user guide: "Document schema and definitions", "Action modules".
    """
    found = []
    if set(made) - {"name", "description", "schemaVersion", "phases"}:
        found.append("a key that a document does not have")
    if str(made.get("schemaVersion")) != "1.0":
        found.append("schemaVersion is not 1.0")
    names = [phase["name"] for phase in made["phases"]]
    if len({*names}) != len(names) or {*names} - {*PHASES}:
        found.append("phases: unknown, or twice the same")
    for phase in made["phases"]:
        steps = [step["name"] for step in phase["steps"]]
        if not steps or len({*steps}) != len(steps):
            found.append(f"{phase['name']}: no steps, or two of one name")
        for step in phase["steps"]:
            found.extend(f"{step['name']}: {each}" for each in _step_problems(step))
    return found


def _step_problems(step: Document) -> list[str]:
    found = []
    if set(step) - STEP_KEYS:
        found.append("a key that a step does not have")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", step["name"]):
        found.append("a name with other characters")
    if step["action"] not in ACTIONS:
        return [*found, "an action that is not known here"]
    inputs = step.get("inputs")
    if inputs is not None and not isinstance(inputs, ACTIONS[step["action"]]):
        found.append("inputs of another shape")
    if step["action"] == "ExecuteBash" and not (inputs and all(inputs.get("commands", ()))):
        found.append("no commands")
    if step["action"] == "S3Download":
        found.extend("a download without an end" for each in inputs or () if len(each) != 2)
        if not all(re.match(r"s3://[a-z0-9-]{3,}/\S+", each["source"]) for each in inputs or ()):
            found.append("no S3 address")
    if step.get("onFailure") not in ("Abort", "Continue", "Ignore"):
        found.append("onFailure of another word")
    if not 1 <= step.get("timeoutSeconds", 7200) <= 43_200:
        found.append("a timeout that is none")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_documents_keep_the_rules(kind: Kind) -> None:
    """Image Builder says so only once a stack is deployed."""
    assert problems(document(kind)) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("schemaVersion",), "2.0"),
        (("phases", 0, "name"), "install"),
        (("phases", 1, "name"), "build"),
        (("phases", 0, "steps", 0, "name"), "Fetch"),
        (("phases", 0, "steps", 0, "action"), "RunBash"),
        (("phases", 0, "steps", 0, "inputs"), {}),
        (("phases", 0, "steps", 1, "inputs", 0, "source"), "https://bucket/key"),
        (("phases", 0, "steps", 1, "onFailure"), "abort"),
        (("phases", 0, "steps", 1, "timeoutSeconds"), 50_000),
        (("phases", 1, "steps"), []),
    ],
)
def test_the_rules_are_rules(place: tuple[Any, ...], value: Any) -> None:
    """Each of them is broken once."""
    made = document("node")
    at: Any = made
    for part in place[:-1]:
        at = at[part]
    at[place[-1]] = value
    assert problems(made)


@pytest.mark.parametrize("kind", KINDS)
def test_service_takes_the_request(kind: Kind) -> None:
    """As the API's own model says: names, lengths, required fields."""
    model = botocore.session.get_session().get_service_model("imagebuilder")
    shape = model.operation_model("CreateComponent").input_shape
    text = component_document(kind, BUNDLE, WHEEL)
    request = {
        "name": f"turnback-demo-{kind}-0123456789ab",
        "semanticVersion": "1.0.0",
        "platform": "Linux",
        "data": text,
        "clientToken": "token",
    }
    assert not ParamValidator().validate(request, shape).has_errors()
    assert shape.members["data"].metadata["max"] == MOST_CHARACTERS
    # References grow when CloudFormation fills them in.
    assert len(text) < MOST_CHARACTERS - 2000


def test_document_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At synthesis, not by CloudFormation after ten minutes."""
    monkeypatch.setattr(documents, "MOST_CHARACTERS", 1000)
    with pytest.raises(ValueError, match="of 1000 characters"):
        component_document("node", BUNDLE, WHEEL)


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_in_the_bundle(kind: Kind) -> None:
    """And can be executed."""
    for step in STEPS[kind]:
        path = AMI / "steps" / step.script.split(" ")[0]
        assert path.stat().st_mode & 0o111, path.name


def test_every_script_is_a_step_of_an_image() -> None:
    """What no image runs is dead; environment.sh is called by others."""
    run = {step.script.split(" ")[0] for steps in STEPS.values() for step in steps}
    assert run | {"environment.sh"} == {path.name for path in (AMI / "steps").glob("*.sh")}


def test_efa_comes_after_the_last_kernel_and_a_reboot() -> None:
    """Its module is built for the kernel that runs."""
    (build, *_) = document("node")["phases"]
    names = [step["name"] for step in build["steps"]]
    order = [names.index(each) for each in ("KernelUpdate", "KernelUpdateReboot", "KernelHold")]
    assert order == [*range(order[0], order[0] + 3)]
    assert names.index("Efa") == order[-1] + 1
    assert names[-2:] == ["ImageFile", "Clean"]


@pytest.mark.parametrize("kind", KINDS)
def test_image_is_verified_before_and_after_the_snapshot(kind: Kind) -> None:
    """On the build instance, and on another that has booted from the image."""
    made = {phase["name"]: phase["steps"] for phase in document(kind)["phases"]}
    command = f"{WORK}/verify.sh {WORK}/{WHEEL.name}"
    assert [step["name"] for step in made["validate"]] == ["Verify", "Remove"]
    assert f"rm -rf {WORK}" in made["validate"][-1]["inputs"]["commands"]
    assert [step["name"] for step in made["test"]] == ["Prepare", "Fetch", "Unpack", "Verify"]
    for phase in ("validate", "test"):
        (verify,) = (step for step in made[phase] if step["name"] == "Verify")
        assert command in verify["inputs"]["commands"]
        assert verify["onFailure"] == "Abort"


def test_downloads_are_checked_before_they_are_unpacked() -> None:
    """A bucket is no proof of what lies in it."""
    build = document("node")["phases"][0]["steps"]
    (unpack,) = (step for step in build if step["name"] == "Unpack")
    commands = unpack["inputs"]["commands"]
    for each in (BUNDLE, WHEEL):
        assert f"echo '{each.sha256}  {each.name}' | sha256sum --check" in commands
    assert commands[-1] == f"tar -xzf {BUNDLE.name}"
    assert commands[0] == "set -euo pipefail"


def test_bundle_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    """Else every synth would replace components and recipes."""
    one, other = write_bundle(tmp_path / "a"), write_bundle(tmp_path / "b")
    assert one.read_bytes() == other.read_bytes()
    assert one.read_bytes()[4:8] == bytes(4)  # gzip's time of the archive


def test_bundle_holds_what_steps_reach_for(tmp_path: Path) -> None:
    """Each ../place/file of a script is in the archive; scripts can be executed."""
    with tarfile.open(fileobj=io.BytesIO(write_bundle(tmp_path / "a").read_bytes())) as archive:
        modes = {member.name: member.mode for member in archive.getmembers()}
    assert set(modes) == set(bundle_files(read_versions()))
    for step in (AMI / "steps").glob("*.sh"):
        for name in re.findall(r"\$here/\.\./([\w.-]+/[\w.-]+)", step.read_text("utf-8")):
            assert name in modes, f"{step.name}: {name}"
        assert modes[f"steps/{step.name}"] == 0o755
    assert modes["verify.sh"] == 0o755
    assert modes["steps/versions.env"] == modes["locks/node.lock"] == 0o644
