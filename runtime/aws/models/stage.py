"""A folder of a model into a deployment's bucket; the manifest last."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError
from pydantic import ValidationError

from runtime.aws.models import failures
from runtime.aws.models.sync import FILES_AT_ONCE, Progress, Say, read_manifest, sha256_of
from runtime.contract.explain import explain
from runtime.contract.model import MANIFEST, ModelFile, ModelManifest, model_prefix
from runtime.errors import BadInput

_DIGEST = "turnback-sha256"
"""Metadata of an object: what was uploaded whole is not uploaded again."""


def files_of(folder: Path) -> list[Path]:
    """A model's files, without hidden ones; links are followed.

    Raises:
        BadInput: it is no folder of a model.
    """
    try:
        found = sorted(_walk(folder, (folder.resolve(),))) if folder.is_dir() else []
    except OSError as error:
        raise _unread(folder, error) from error
    names = {path.relative_to(folder).as_posix() for path in found}
    if "config.json" not in names or MANIFEST in names:
        why = f"with a {MANIFEST}" if MANIFEST in names else "without config.json"
        raise BadInput(
            "this folder cannot be staged",
            got=f"{folder}, {why if folder.is_dir() else 'not a folder'}",
            allowed=f"a model's files with config.json and no {MANIFEST}",
            fix="give --from the folder that hf download or a training run has written",
        )
    return found


def _walk(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Files below a folder; `above` are the folders that lead to it, and it."""
    for each in folder.iterdir():
        if each.name.startswith("."):
            continue
        if each.is_dir():
            if (real := each.resolve()) in above:
                raise BadInput(
                    "this folder cannot be staged",
                    got=f"{each} leads back to {real}",
                    allowed="links to files, and to folders beside the model's",
                    fix=f"remove the link {each}",
                )
            yield from _walk(each, (*above, real))
        elif each.is_file():
            yield each


def _unread(folder: Path, error: OSError) -> BadInput:
    return BadInput(
        "the model cannot be read",
        got=f"{error.filename or folder}: {error.strerror or error}",
        allowed="files that can be read, and stay while they are staged",
        fix="mend what the system names, then run it again: what is uploaded stays",
    )


def stage_model(s3: Any, bucket: str, name: str, folder: Path, say: Say) -> ModelManifest:
    """Upload a model; what is there already stays.

    Args:
        s3: boto3's client.
        bucket: of the deployment.
        name: id and revision of the model.
        folder: with its files.
        say: told now and then.

    Raises:
        BadInput: no model, or another one is staged under this name.
        StartFailed: S3 does not answer.
    """
    paths, stop = files_of(folder), threading.Event()
    try:
        sizes = [path.stat().st_size for path in paths]
        say(f"hashing {len(paths)} files, {failures.shown(sum(sizes))}")
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            digests = list(pool.map(lambda path: sha256_of(path, stop), paths))
        files = [
            ModelFile(path=path.relative_to(folder).as_posix(), size_bytes=size, sha256=digest)
            for path, size, digest in zip(paths, sizes, digests, strict=True)
        ]
        manifest = ModelManifest(files=tuple(files))
        if _is_staged(s3, bucket, name, manifest):
            say(f"{name} is staged already")
            return manifest
        _upload(s3, bucket, name, folder, files, say, stop)
        s3.put_object(
            Bucket=bucket,
            Key=model_prefix(name) + MANIFEST,
            Body=manifest.model_dump_json(indent=1).encode(),
            ContentType="application/json",
        )
    except failures.AwsErrors as error:
        raise _no_upload(bucket, error) from error
    except OSError as error:
        stop.set()
        raise _unread(folder, error) from error
    except ValidationError as error:
        raise explain(error, str(folder)) from error
    except BaseException:  # also Ctrl-C: threads must not go on hashing
        stop.set()
        raise
    say(f"{name} is staged: {len(files)} files, {failures.shown(manifest.size_bytes)}")
    return manifest


def _is_staged(s3: Any, bucket: str, name: str, manifest: ModelManifest) -> bool:
    """Whether the same manifest is there.

    Raises:
        BadInput: another one is.
    """
    try:
        there, _ = read_manifest(s3, bucket, name)
    except BadInput as error:
        if isinstance(error.__cause__, ClientError) and _is_missing(error.__cause__):
            return False
        raise
    if there == manifest:
        return True
    raise BadInput(
        f"another model is staged as {name}",
        got=f"files that differ: {', '.join(sorted(_differing(there, manifest))[:5])}",
        allowed="the same files: nodes take a revision that they have for what was staged first",
        fix="give it another revision (--model ID/REVISION) and set model.revision; or remove the "
        f"first one with aws s3 rm --recursive s3://{bucket}/{model_prefix(name)}",
    )


def _differing(there: ModelManifest, here: ModelManifest) -> set[str]:
    return {each.path for each in {*there.files} ^ {*here.files}}


def _is_missing(error: ClientError) -> bool:
    return error.response["Error"]["Code"] in ("NoSuchKey", "404", "NotFound")


def _upload(
    s3: Any,
    bucket: str,
    name: str,
    folder: Path,
    files: Sequence[ModelFile],
    say: Say,
    stop: threading.Event,
) -> None:
    prefix = model_prefix(name)
    missing = [each for each in files if not _is_there(s3, bucket, prefix, each)]
    progress = Progress("uploaded", sum(each.size_bytes for each in missing), say, stop)
    say(f"uploading {len(missing)} of {len(files)} files, {failures.shown(progress.total_bytes)}")
    for each in missing:  # s3transfer sends parts of a file side by side
        s3.upload_file(
            str(folder / each.path),
            bucket,
            prefix + each.path,
            ExtraArgs={"Metadata": {_DIGEST: each.sha256}},
            Callback=progress.add,
        )


def _is_there(s3: Any, bucket: str, prefix: str, file: ModelFile) -> bool:
    try:
        head = s3.head_object(Bucket=bucket, Key=prefix + file.path)
    except ClientError as error:
        if _is_missing(error):
            return False
        raise
    is_same = head.get("Metadata", {}).get(_DIGEST) == file.sha256
    return bool(is_same and head["ContentLength"] == file.size_bytes)


def _no_upload(bucket: str, error: Exception) -> BadInput:
    return BadInput(
        "the model cannot be uploaded",
        got=f"s3://{bucket}: {error}",
        allowed="credentials with s3:GetObject, s3:PutObject and s3:ListBucket on the bucket",
        fix="mend what AWS names, then run it again: what is uploaded stays",
    )
