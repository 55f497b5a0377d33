"""A folder into the bucket; the manifest last, and never two models of one name."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from runtime.aws.models.stage import stage_model
from runtime.cli_node import stage_deployed
from runtime.contract.model import MANIFEST, ModelManifest
from runtime.errors import BadInput
from tests.aws.models.bucket import BUCKET, NAME, staged

pytestmark = pytest.mark.usefixtures("server")


def uploads(s3: Any) -> list[str]:
    """Grows with the name of each object that is written."""
    seen: list[str] = []

    def on_call(params: dict[str, Any], **_: Any) -> None:
        seen.append(params["url_path"].rpartition("/")[2])

    s3.meta.events.register("before-call.s3.PutObject", on_call)
    return seen


def test_manifest_names_every_file_and_comes_last(model: Path) -> None:
    """But hidden ones; size and digest of each."""
    s3 = staged(model)
    seen = uploads(s3)
    for key in ("config.json", MANIFEST):
        s3.delete_object(Bucket=BUCKET, Key=f"models/{NAME}/{key}")
    stage_model(s3, BUCKET, NAME, model, lambda _line: None)
    assert seen == ["config.json", MANIFEST]
    body = s3.get_object(Bucket=BUCKET, Key=f"models/{NAME}/{MANIFEST}")["Body"].read()
    manifest = ModelManifest.model_validate_json(body)
    paths = [each.path for each in manifest.files]
    assert paths == ["config.json", *(f"weights/part-{n}.safetensors" for n in range(4))]
    assert manifest.size_bytes == 2 + 4 * 300_000


def test_interrupted_upload_has_no_manifest_and_continues(model: Path) -> None:
    """What was uploaded stays; a file that changed since is uploaded again."""
    s3 = staged(model)
    s3.delete_object(Bucket=BUCKET, Key=f"models/{NAME}/{MANIFEST}")
    (model / "weights/part-1.safetensors").write_bytes(b"z" * 300_000)

    def refuse(**_: Any) -> None:
        raise KeyboardInterrupt

    s3.meta.events.register("before-call.s3.PutObject", refuse)
    with pytest.raises(KeyboardInterrupt):
        stage_model(s3, BUCKET, NAME, model, lambda _line: None)
    with pytest.raises(ClientError):
        s3.head_object(Bucket=BUCKET, Key=f"models/{NAME}/{MANIFEST}")
    s3.meta.events.unregister("before-call.s3.PutObject", refuse)
    seen = uploads(s3)
    stage_model(s3, BUCKET, NAME, model, lambda _line: None)
    assert seen == ["part-1.safetensors", MANIFEST]


def test_staged_model_is_not_uploaded_again(model: Path) -> None:
    """Nor is its manifest written anew."""
    s3 = staged(model)
    seen, said = uploads(s3), list[str]()
    stage_model(s3, BUCKET, NAME, model, said.append)
    assert seen == []
    assert "already" in said[-1]


def test_other_files_under_the_same_name_are_refused(model: Path) -> None:
    """Nodes that have the first would serve beside nodes that have the second."""
    s3 = staged(model)
    (model / "weights/part-1.safetensors").write_bytes(b"z" * 300_000)
    seen = uploads(s3)
    with pytest.raises(BadInput, match="another model is staged") as failure:
        stage_model(s3, BUCKET, NAME, model, lambda _line: None)
    assert "part-1" in failure.value.got
    assert "--model ID/REVISION" in failure.value.fix
    assert seen == []


@pytest.mark.parametrize("what", ["nothing", "file", "no config", "manifest"])
def test_folder_that_is_no_model_is_refused(what: str, model: Path) -> None:
    """Before anything is hashed or uploaded."""
    folder = model
    if what == "nothing":
        folder = model / "nowhere"
    elif what == "file":
        folder = model / "config.json"
    elif what == "no config":
        (model / "config.json").unlink()
    else:
        (model / MANIFEST).write_text("{}", "utf-8")
    with pytest.raises(BadInput, match="cannot be staged"):
        stage_model(None, BUCKET, NAME, folder, lambda _line: None)


@pytest.mark.parametrize("name", ["config.json.part", os.fsdecode(b"bad\xff.bin"), "x" * 200])
def test_name_that_no_node_could_take_is_refused(name: str, model: Path) -> None:
    """Before anything is uploaded: a part of another file, no UTF-8, a path too long."""
    folder = model / "/".join([name] * 3) if len(name) == 200 else model
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("x", "utf-8")
    with pytest.raises(BadInput, match="cannot be"):
        stage_model(None, BUCKET, NAME, model, lambda _line: None)


def test_file_that_cannot_be_read_is_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its name, as bad input and no traceback."""

    def refuse(path: Path, _stop: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("runtime.aws.models.stage.sha256_of", refuse)
    with pytest.raises(BadInput, match="cannot be read") as failure:
        stage_model(None, BUCKET, NAME, model, lambda _line: None)
    assert "config.json: Permission denied" in failure.value.got


def test_link_to_a_folder_above_is_refused(model: Path) -> None:
    """Each turn of it would be a copy of the model."""
    (model / "weights" / "again").symlink_to(model)
    with pytest.raises(BadInput, match="cannot be staged") as failure:
        stage_model(None, BUCKET, NAME, model, lambda _line: None)
    assert "weights/again" in failure.value.got


@pytest.mark.parametrize("name", ["../up/1", "org/model", "/org/model/1", "org/model/1/"])
def test_name_that_no_deployment_has_is_refused(name: str, model: Path) -> None:
    """Before AWS is asked: no node would ever take it."""
    with pytest.raises(BadInput, match="no name of a model"):
        stage_deployed("demo", model, lambda _line: None, name)


def test_links_are_followed(model: Path, tmp_path: Path) -> None:
    """As the Hugging Face cache lays models out."""
    blob = tmp_path / "blob"
    blob.write_bytes(b"weights")
    (model / "linked.safetensors").symlink_to(blob)
    s3 = staged(model)
    key = f"models/{NAME}/linked.safetensors"
    assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"weights"
