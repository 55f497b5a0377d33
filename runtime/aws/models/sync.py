"""A model from the bucket onto a node's disk: whole, checked, and once.

A file gets its name when its digest is right; until then it is `NAME.part`. When all have
theirs, a mark with the manifest is written, so that a restart reads sizes alone.
"""

import contextlib
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError
from pydantic import ValidationError

from runtime.aws.models import failures
from runtime.aws.models.failures import Stopped, shown
from runtime.aws.patience import passes
from runtime.contract.explain import explain
from runtime.contract.model import MANIFEST, PART, ModelFile, ModelManifest, model_prefix
from runtime.errors import TurnbackError

MARK = ".turnback-complete.json"
"""In the model's folder: the manifest of what is whole there."""
FILES_AT_ONCE = 4
_PART_BYTES = 16 * 1024 * 1024
_RANGES = TransferConfig(
    multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, max_concurrency=8
)
"""Of each file: a request for every 16 MiB, 8 at once."""
_HEARTBEAT_S = 10.0

Say = Callable[[str], None]
T = TypeVar("T")


@dataclass
class Progress:
    """Counts bytes over threads, and tells them now and then."""

    verb: str
    total_bytes: int
    say: Say
    stop: threading.Event
    clock: Callable[[], float] = time.monotonic
    done_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _told_at_s: float = 0.0
    _began_s: float = 0.0

    def __post_init__(self) -> None:
        self._told_at_s = self._began_s = self.clock()

    def add(self, count: int) -> None:
        """So many bytes more.

        Raises:
            Stopped: the process shall end.
        """
        if self.stop.is_set():
            raise Stopped
        with self._lock:
            self.done_bytes += count
            now_s = self.clock()
            if now_s - self._told_at_s < _HEARTBEAT_S:
                return
            self._told_at_s = now_s
        self.say(self.told())

    def told(self) -> str:
        """A line."""
        per_s = self.done_bytes / max(self.clock() - self._began_s, 1e-3)
        left_s = (self.total_bytes - self.done_bytes) / max(per_s, 1.0)
        return (
            f"{self.verb} {shown(self.done_bytes)} of {shown(self.total_bytes)}, "
            f"{per_s / 1024**2:.0f} MiB/s, {max(left_s, 0):.0f} s left"
        )


def sha256_of(path: Path, stop: threading.Event) -> str:
    """Digest of a file.

    Raises:
        OSError: it cannot be read.
        Stopped: the process shall end.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(4 * 1024 * 1024):
            if stop.is_set():
                raise Stopped
            digest.update(block)
    return digest.hexdigest()


def sync_model(
    s3: Any,
    find_bucket: Callable[[], str],
    name: str,
    folder: Path,
    say: Say,
    stop: threading.Event | None = None,
) -> None:
    """Have a model whole in a folder.

    Args:
        s3: boto3's client.
        find_bucket: returns the deployment's; not asked where the model is whole.
        name: id and revision of the model.
        folder: of the model; made where it is not there.
        say: told now and then.
        stop: set from another thread to end it.

    Raises:
        BadInput: it is not staged.
        StartFailed: S3 does not answer, the disk is full, a file is not the staged one. What
            is whole stays for the next try.
        Stopped: `stop` was set.
    """
    if (known := _marked(folder)) and all(_has_size(folder, each) for each in known.files):
        say(f"{name} is whole since an earlier boot: {shown(known.size_bytes)}")
        return
    bucket = find_bucket()
    try:
        manifest, text = read_manifest(s3, bucket, name)
        _Sync(s3, bucket, name, folder, say, stop or threading.Event()).run(manifest)
        _write_mark(folder, text)
    except OSError as error:
        raise failures.disk(folder, error) from error
    say(f"{name} is whole: {len(manifest.files)} files, {shown(manifest.size_bytes)}")


def read_manifest(s3: Any, bucket: str, name: str) -> tuple[ModelManifest, str]:
    """What was staged, and the text that says so.

    Raises:
        BadInput: nothing was, or the text is no manifest.
        StartFailed: S3 does not answer.
    """
    key = model_prefix(name) + MANIFEST
    try:
        text = s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode("utf-8", "replace")
    except failures.AwsErrors as error:
        raise _refused(name, bucket, key, error) from error
    try:
        return ModelManifest.model_validate_json(text), text
    except ValidationError as error:
        raise explain(error, f"s3://{bucket}/{key}") from error


def _refused(name: str, bucket: str, what: str, error: Exception) -> TurnbackError:
    if isinstance(error, ClientError) and not passes(error):
        return failures.not_staged(name, bucket, error)
    return failures.no_route(what, error)


def _marked(folder: Path) -> ModelManifest | None:
    try:
        return ModelManifest.model_validate_json((folder / MARK).read_bytes())
    except (OSError, ValidationError):
        return None


def _write_mark(folder: Path, text: str) -> None:
    draft = folder / f"{MARK}.part"
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / MARK)


def _has_size(folder: Path, file: ModelFile) -> bool:
    try:
        return (folder / file.path).stat().st_size == file.size_bytes
    except OSError:
        return False


@dataclass
class _Sync:
    s3: Any
    bucket: str
    name: str
    folder: Path
    say: Say
    stop: threading.Event

    def run(self, manifest: ModelManifest) -> None:
        """Fetch what is not whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        there = [each for each in manifest.files if _has_size(self.folder, each)]
        if there:
            self.say(f"{len(there)} of {len(manifest.files)} files are there, checking them")
        good = _in_threads(there, self._is_whole, self.stop)
        whole = {each.path for each, is_whole in zip(there, good, strict=True) if is_whole}
        missing = [each for each in manifest.files if each.path not in whole]
        self._check_room(missing)
        size_bytes = sum(each.size_bytes for each in missing)
        self.say(f"fetching {len(missing)} files, {shown(size_bytes)}, from s3://{self.bucket}")
        progress = Progress("fetched", size_bytes, self.say, self.stop)
        # The largest first: the last to end is then a small one.
        ordered = sorted(missing, key=lambda each: -each.size_bytes)
        _in_threads(ordered, lambda each: self._fetch(each, progress), self.stop)

    def _is_whole(self, file: ModelFile) -> bool:
        return sha256_of(self.folder / file.path, self.stop) == file.sha256

    def _check_room(self, missing: Sequence[ModelFile]) -> None:
        """Ten minutes of fetching must not end at a full disk that was full before."""
        wanted = sum(each.size_bytes for each in missing)
        for each in missing:  # what is in the way is overwritten
            with contextlib.suppress(OSError):
                wanted -= self._part(each).stat().st_size
        free = shutil.disk_usage(self.folder).free
        if wanted > free:
            raise failures.full(self.folder, f"{shown(free)} free, {shown(wanted)} to fetch")

    def _part(self, file: ModelFile) -> Path:
        target = self.folder / file.path
        return target.with_name(f"{target.name}{PART}")

    def _fetch(self, file: ModelFile, progress: Progress) -> None:
        part = self._part(file)
        part.parent.mkdir(parents=True, exist_ok=True)
        key = model_prefix(self.name) + file.path
        try:
            with part.open("wb") as out:
                if file.size_bytes:
                    self.s3.download_fileobj(
                        self.bucket, key, out, Callback=progress.add, Config=_RANGES
                    )
                out.flush()
                os.fsync(out.fileno())
        except failures.AwsErrors as error:
            raise _refused(self.name, self.bucket, key, error) from error
        if (found := sha256_of(part, self.stop)) != file.sha256:
            part.unlink()
            raise failures.wrong_digest(file.path, found, file.sha256)
        part.replace(self.folder / file.path)


def _in_threads(
    files: Sequence[ModelFile], work: Callable[[ModelFile], T], stop: threading.Event
) -> list[T]:
    """Results of work on each file, some at once; the first failure ends it all."""
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        running = [pool.submit(work, each) for each in files]
        _, left = wait(running, return_when=FIRST_EXCEPTION)
        if left:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
    errors = [each.exception() for each in running if not each.cancelled()]
    # Those that were stopped were so for the sake of the one that failed.
    for error in sorted(filter(None, errors), key=lambda each: isinstance(each, Stopped)):
        raise error
    return [each.result() for each in running]
