"""An emulated S3 on loopback, and a small model to put into it."""

import hashlib
from pathlib import Path
from typing import Any

from runtime.aws.clients import client
from runtime.aws.models.stage import stage_model

NAME = "org/model/abc"
BUCKET = "models"


def make_model(folder: Path, *, files: int = 4, size_bytes: int = 300_000) -> Path:
    """config.json, and weights of random bytes in a folder of their own."""
    (folder / "weights").mkdir(parents=True)
    (folder / "config.json").write_text("{}", "utf-8")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("hidden", "utf-8")
    for number in range(files):
        name = f"weights/part-{number}.safetensors"
        (folder / name).write_bytes(hashlib.shake_256(b"%d" % number).digest(size_bytes))
    return folder


def staged(model: Path) -> Any:
    """A bucket that holds it; returns S3."""
    s3 = client("s3")
    where = {"LocationConstraint": s3.meta.region_name}
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration=where)
    stage_model(s3, BUCKET, NAME, model, lambda _line: None)
    return s3


def keys_read(s3: Any) -> list[str]:
    """Grows with the key of each object that is read from now on."""
    seen: list[str] = []

    def on_call(params: dict[str, Any], **_: Any) -> None:
        seen.append(params["url_path"].partition("/models/" + NAME + "/")[2])

    s3.meta.events.register("before-call.s3.GetObject", on_call)
    return seen


def same_files(one: Path, other: Path) -> bool:
    """Whether a model's files are in both, byte for byte."""
    paths = [path.relative_to(one) for path in one.rglob("*") if path.is_file()]
    shown = [path for path in paths if not str(path).startswith(".")]
    return bool(shown) and all(
        (other / path).read_bytes() == (one / path).read_bytes() for path in shown
    )
