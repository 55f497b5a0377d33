"""A model from the bucket to a disk: whole, checked, once; a retry continues."""

import errno
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config

from runtime.aws.clients import client
from runtime.aws.models.failures import Stopped
from runtime.aws.models.sync import MARK, Progress, sync_model
from runtime.contract.model import MANIFEST
from runtime.errors import BadInput, StartFailed
from runtime.local.checks import free_ports
from runtime.local.rehearsal import account
from tests.aws.models.bucket import BUCKET, NAME, keys_read, same_files, staged

ROOT = Path(__file__).parents[3]
KILLED = """
import os, signal, sys
from pathlib import Path
from runtime.aws.clients import client
from runtime.aws.models import sync
rename = Path.replace
def renamed(self, target):
    rename(self, target)
    if len(list(Path(target).parent.glob("*.safetensors"))) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
Path.replace = renamed
sync.FILES_AT_ONCE = 1
sync.sync_model(client("s3"), lambda: sys.argv[1], sys.argv[2], Path(sys.argv[3]), print)
"""


@pytest.fixture
def s3(server: None, model: Path) -> Any:
    """With the model staged."""
    return staged(model)


def sync(s3: Any, folder: Path, said: list[str] | None = None, **rest: Any) -> None:
    """As a node does it."""
    sync_model(s3, lambda: BUCKET, NAME, folder, (said if said is not None else []).append, **rest)


def test_model_arrives_whole_and_is_marked(s3: Any, model: Path, tmp_path: Path) -> None:
    """Every file byte for byte, none of a try left; a second sync asks nobody anything."""
    folder, said = tmp_path / "opt" / NAME, list[str]()
    sync(s3, folder, said)
    assert same_files(model, folder)
    assert not list(folder.rglob("*.part"))
    assert (folder / MARK).is_file()
    assert "5 files" in said[-1]

    def nobody() -> str:
        raise AssertionError("the bucket is asked for")

    sync_model(None, nobody, NAME, folder, said.append)
    assert "since an earlier boot" in said[-1]


@pytest.mark.parametrize("harm", ["shorter", "gone"])
def test_mark_does_not_stand_for_files_that_are_not_there(
    harm: str, s3: Any, model: Path, tmp_path: Path
) -> None:
    """They are fetched again, and only they."""
    folder = tmp_path / "node"
    sync(s3, folder)
    harmed = folder / "weights/part-1.safetensors"
    if harm == "gone":
        harmed.unlink()
    else:
        harmed.write_bytes(harmed.read_bytes()[:-1])
    read = keys_read(s3)
    sync(s3, folder)
    assert same_files(model, folder)
    assert [key for key in read if key != MANIFEST] == ["weights/part-1.safetensors"]


def test_file_of_the_right_size_and_wrong_content_is_not_kept(
    s3: Any, model: Path, tmp_path: Path
) -> None:
    """What an unmarked folder holds is hashed."""
    folder = tmp_path / "node"
    shutil.copytree(model, folder)
    harmed = folder / "weights/part-2.safetensors"
    harmed.write_bytes(b"x" * harmed.stat().st_size)
    read = keys_read(s3)
    sync(s3, folder)
    assert same_files(model, folder)
    assert read == [MANIFEST, "weights/part-2.safetensors"]


def test_killed_sync_is_continued(s3: Any, model: Path, tmp_path: Path) -> None:
    """kill -9 after two files: no mark, and the next try reads neither of them again."""
    folder = tmp_path / "node"
    argv = [sys.executable, "-c", KILLED, BUCKET, NAME, str(folder)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    whole = {path.name for path in folder.rglob("*.safetensors")}
    assert len(whole) == 2
    assert not (folder / MARK).exists()
    (folder / "weights/part-3.safetensors.part").write_bytes(b"half")
    read, said = keys_read(s3), list[str]()
    sync(s3, folder, said)
    assert same_files(model, folder)
    assert not {key.rpartition("/")[2] for key in read} & whole
    assert any("are there, checking them" in line for line in said)
    assert not list(folder.rglob("*.part"))


def test_wrong_checksum_is_told_and_nothing_of_it_stays(
    s3: Any, model: Path, tmp_path: Path
) -> None:
    """Neither under its name nor as a part; mended in the bucket, the next try takes it."""
    folder, key = tmp_path / "node", "weights/part-0.safetensors"
    good = (model / key).read_bytes()
    s3.put_object(Bucket=BUCKET, Key=f"models/{NAME}/{key}", Body=b"y" * len(good))
    with pytest.raises(StartFailed, match="not the file that was staged") as failure:
        sync(s3, folder)
    assert key in failure.value.what
    assert not (folder / key).exists()
    assert not (folder / MARK).exists()
    s3.put_object(Bucket=BUCKET, Key=f"models/{NAME}/{key}", Body=good)
    sync(s3, folder)
    assert same_files(model, folder)


def test_model_that_was_not_staged_is_told(s3: Any, tmp_path: Path) -> None:
    """With the command that stages it."""
    with pytest.raises(BadInput, match="not in the bucket") as failure:
        sync_model(s3, lambda: BUCKET, "org/model/other", tmp_path, print)
    assert "turnback model stage" in failure.value.fix


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../b", MANIFEST])
def test_manifest_cannot_lead_out_of_its_folder(path: str, s3: Any, tmp_path: Path) -> None:
    """Whoever writes to the bucket does not write to the node's /etc."""
    text = '{"format": 1, "files": [{"path": "%s", "size_bytes": 1, "sha256": "%s"}]}'
    body = (text % (path, "0" * 64)).encode()
    s3.put_object(Bucket=BUCKET, Key=f"models/{NAME}/{MANIFEST}", Body=body)
    with pytest.raises(BadInput, match=r"files\.0\.path|1 value"):
        sync(s3, tmp_path / "node")


@pytest.mark.parametrize("second", ["a", "a.part"])
def test_manifest_names_no_file_twice(second: str, s3: Any, tmp_path: Path) -> None:
    """Nor one that another is until it is whole: two threads would write it."""
    file = '{"path": "%s", "size_bytes": 1, "sha256": "%s"}'
    body = f'{{"files": [{file % ("a", "0" * 64)}, {file % (second, "1" * 64)}]}}'.encode()
    s3.put_object(Bucket=BUCKET, Key=f"models/{NAME}/{MANIFEST}", Body=body)
    with pytest.raises(BadInput, match="value"):
        sync(s3, tmp_path / "node")


def test_disk_that_is_too_small_is_told_before_a_byte_is_fetched(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is free and what is wanted."""
    usage = type("usage", (), {"free": 1024**2})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    read = keys_read(s3)
    with pytest.raises(StartFailed, match="disk is full") as failure:
        sync(s3, tmp_path / "node")
    assert "1.0 MiB free, 1.1 MiB to fetch" in failure.value.got
    assert read == [MANIFEST]


def test_disk_that_fills_up_is_told(
    s3: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a file; room made, the next try continues."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("s3transfer.download.IOWriteTask._main", full)
        with pytest.raises(StartFailed, match="disk is full") as failure:
            sync(s3, tmp_path / "node")
    assert "No space left" in failure.value.got
    assert not list((tmp_path / "node").rglob("*.safetensors"))
    sync(s3, tmp_path / "node")
    assert same_files(model, tmp_path / "node")


def test_download_that_breaks_off_each_time_is_told(
    s3: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 gives up with an error of another family; the next try continues."""

    def cut(_: object) -> None:
        raise ConnectionResetError("cut short")

    with monkeypatch.context() as patch:
        patch.setattr("s3transfer.download.DownloadChunkIterator.__next__", cut)
        with pytest.raises(StartFailed, match="S3 does not answer") as failure:
            sync(s3, tmp_path / "node")
    assert "cut short" in failure.value.got
    sync(s3, tmp_path / "node")
    assert same_files(model, tmp_path / "node")


def test_no_route_is_told(tmp_path: Path) -> None:
    """Nobody listens there."""
    (port,) = free_ports(1)
    once = Config(connect_timeout=1, retries={"total_max_attempts": 1})
    with account.only_this_account(port), pytest.raises(StartFailed) as failure:
        sync(client("s3", "", once), tmp_path / "node")
    assert "S3 does not answer" in failure.value.what
    assert "endpoint" in failure.value.allowed


def test_sync_ends_when_it_is_told_to(s3: Any, tmp_path: Path) -> None:
    """SIGTERM in the middle of 600 GB."""
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        sync(s3, tmp_path / "node", stop=stop)
    assert not (tmp_path / "node" / MARK).exists()


def test_progress_is_told_now_and_then() -> None:
    """Not for each of thousands of parts."""
    now, said = [0.0], list[str]()
    progress = Progress("fetched", 4 * 1024**3, said.append, threading.Event(), lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        progress.add(64 * 1024**2)
    assert said == [
        "fetched 704.0 MiB of 4.0 GiB, 70 MiB/s, 48 s left",
        "fetched 1.3 GiB of 4.0 GiB, 67 MiB/s, 41 s left",
    ]
