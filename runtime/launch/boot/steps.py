"""What must hold before an engine starts; each step returns or raises, and changes nothing."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from runtime.contract.explain import explain
from runtime.contract.image import IMAGE_FILE, ImageFile
from runtime.contract.model import MODEL_NAME, MODELS
from runtime.contract.node import ImageSpec, NodeSpec, TransportSpec
from runtime.contract.status import KIT_STAMP, NODE_UNIT
from runtime.errors import BadInput, StartFailed, TurnbackError
from runtime.launch.machine import Machine

_HEARTBEAT_S = 15.0


def check_kit(machine: Machine, wanted: str) -> None:
    """The kit of user data is installed, and no other or half a one.

    Args:
        machine: the node.
        wanted: sha256 of the wheel; empty: user data names none, nothing is checked.

    Raises:
        StartFailed: an install has not ended well.
    """
    found = machine.text(KIT_STAMP)
    if wanted and found != wanted:
        raise StartFailed(
            "the kit is not wholly installed",
            got=f"{KIT_STAMP}: {found or 'not there'}",
            allowed=wanted,
            fix="systemctl restart turnback-kit, which installs it anew; its journal says why "
            "it failed",
        )


def read_spec(text: str, source: str) -> NodeSpec:
    """The spec of this node.

    Args:
        text: JSON.
        source: where it came from.

    Raises:
        BadInput: it is none, or one that this kit does not know.
    """
    try:
        return NodeSpec.model_validate_json(text)
    except ValidationError as error:
        unknown = [each for each in error.errors() if each["type"] == "extra_forbidden"]
        told = explain(error, source)
        if not unknown:
            raise told from error
        raise BadInput(
            f"{source} is newer than this node's kit",
            got=f"unknown: {', '.join('.'.join(map(str, each['loc'])) for each in unknown)}",
            allowed="a spec of the kit that the node has installed",
            fix="start new nodes, which install the deployed kit: turnback rollout NAME",
        ) from error


def check_time_is_left(spec: NodeSpec) -> None:
    """The node's capacity has not ended.

    Raises:
        BadInput: it has; nothing but another spec changes that.
    """
    if spec.drains_at is not None and spec.drains_at <= datetime.now(UTC):
        raise BadInput(
            "the node's capacity is about to end",
            got=f"it drains since {spec.drains_at:%Y-%m-%d %H:%M} UTC",
            allowed="an end that lies ahead",
            fix="set ROLE.capacity to the next block, deploy, and start new nodes",
        )


def bucket_model(spec: NodeSpec) -> str | None:
    """Id and revision of the model that the bucket brings; None: its folder is elsewhere.

    Raises:
        BadInput: a path that leaves the folder of models, or is no ID/REVISION in it.
    """
    model = spec.serving.model
    if not model.is_relative_to(MODELS):
        return None
    name = model.relative_to(MODELS).as_posix()
    if not MODEL_NAME.fullmatch(name):
        raise BadInput(
            "the spec's model is no folder that the bucket could fill",
            got=str(model),
            allowed=f"{MODELS}/ID/REVISION, or a folder elsewhere",
            fix="deploy again: the settings model.id and model.revision make the path",
        )
    return name


def check_image(machine: Machine, wanted: ImageSpec | None) -> str:
    """The machine image is one that the spec can be served from; returns what it has.

    Raises:
        BadInput: it is not, or does not say.
    """
    if wanted is None:
        return "the spec asks for none"
    text = machine.text(IMAGE_FILE)
    if text is None:
        raise _other_image(f"no {IMAGE_FILE}", wanted)
    try:
        image = ImageFile.model_validate_json(text)
    except ValidationError as error:
        raise explain(error, str(IMAGE_FILE)) from error
    if wrong := image.mismatch(wanted):
        raise _other_image(wrong, wanted)
    return f"vLLM {image.engine}, NIXL {image.nixl}, EFA installer {image.efa_installer}"


def _other_image(got: str, wanted: ImageSpec) -> BadInput:
    return BadInput(
        "the machine image is not the one that the spec wants",
        got=got,
        allowed=f"an image of this kit (format {wanted.format}) with vLLM {wanted.engine_version}",
        fix="build one with turnback image build, set image.ami_id, deploy, and start new nodes",
    )


def wait_for_devices(
    machine: Machine,
    wanted: TransportSpec | None,
    say: Callable[[str], None],
    *,
    wait_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Return when the node has its EFA devices; P5en brings them up late.

    Args:
        machine: the node.
        wanted: of the spec.
        say: told when their number changes, and every 15 s.
        wait_s: longest wait.
        clock, sleep: the real ones, but in tests.

    Raises:
        StartFailed: fewer than the spec wants, and TCP is not allowed.
    """
    if wanted is None:
        return "peers on this machine"
    began_s = told_at_s = clock()
    told = -1
    while (count := len(machine.efa_devices())) < wanted.efa_devices:
        now_s = clock()
        if now_s - began_s >= wait_s:
            return _too_few(machine, wanted, wait_s)
        if count != told or now_s - told_at_s >= _HEARTBEAT_S:
            told, told_at_s = count, now_s
            say(f"{count} of {wanted.efa_devices} EFA devices after {now_s - began_s:.0f} s")
        sleep(0.5)
    return f"{count} EFA devices, provider {wanted.provider}"


def _too_few(machine: Machine, wanted: TransportSpec, wait_s: float) -> str:
    found = machine.efa_devices()
    if wanted.allow_tcp:
        return f"{len(found)} of {wanted.efa_devices} EFA devices: KV may go over TCP, as allowed"
    raise StartFailed(
        "EFA devices are missing",
        got=f"{len(found)} of {wanted.efa_devices} after {wait_s:.0f} s: "
        f"{', '.join(found) or 'none'}",
        allowed=f"{wanted.efa_devices} in /sys/class/infiniband with the driver efa, "
        "or transport.allow_tcp = true",
        fix="turnback doctor says what is wrong with the others; if it says nothing, end the "
        "instance: another one takes its place",
    )


def check_model(machine: Machine, spec: NodeSpec) -> Path:
    """The model's folder on this machine.

    Raises:
        StartFailed: there is no model in it.
    """
    folder = machine.at(spec.serving.model)
    if not (folder / "config.json").is_file():
        raise StartFailed(
            "there is no model to serve",
            got=f"no {folder}/config.json",
            allowed="a folder with config.json, tokenizer and weights",
            fix="stage the model again: turnback model stage NAME --from FOLDER",
        )
    return folder


def explained(step: str, error: OSError) -> TurnbackError:
    """What the system refuses in the middle of a step."""
    return StartFailed(
        f"the system refuses a file in step {step}",
        got=f"{error.filename or ''} {error.strerror or error}".strip(),
        allowed="files that can be read and written, with room on the disk",
        fix=f"mend what the system names, then systemctl restart {NODE_UNIT}",
    )


def broke(step: str, error: Exception) -> TurnbackError:
    """What no step expects."""
    return StartFailed(
        f"step {step} broke",
        got=f"{type(error).__name__}: {error}",
        allowed="a boot that ends with a reason",
        fix="see what it names; where that is no fault of the node, report it with this text",
    )
