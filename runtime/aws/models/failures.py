"""What can go wrong between a bucket and a disk, as the kit's messages."""

import errno
from pathlib import Path

from boto3.exceptions import Boto3Error
from botocore.exceptions import BotoCoreError, ClientError
from s3transfer.exceptions import RetriesExceededError, S3ValidationError

from runtime.contract.model import MODELS
from runtime.errors import BadInput, StartFailed, TurnbackError

AwsErrors = (BotoCoreError, ClientError, Boto3Error, RetriesExceededError, S3ValidationError)
"""boto3 translates s3transfer's own errors when it writes to a path, not to an open file."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Stopped(Exception):
    """The process was told to end."""


def shown(size_bytes: float) -> str:
    """A size for people."""
    is_large = size_bytes >= 1024**3
    return f"{size_bytes / 1024**3:.1f} GiB" if is_large else f"{size_bytes / 1024**2:.1f} MiB"


def not_staged(name: str, bucket: str, error: Exception) -> BadInput:
    """S3 says 403 as well as 404 to whoever may not list."""
    return BadInput(
        f"model {name} is not in the bucket, or may not be read",
        got=f"s3://{bucket}: {error}",
        allowed="a model that was staged whole, and s3:GetObject on it",
        fix="turnback model stage NAME --from FOLDER, then start again",
    )


def no_route(what: str, error: Exception) -> StartFailed:
    """No answer, or one that breaks off each time."""
    if isinstance(error, RetriesExceededError):
        got = f"given up after several tries, the last: {error.last_exception}"
    else:
        got = str(error)
    return StartFailed(
        f"S3 does not answer: {what}",
        got=got,
        allowed="a way to S3: the network's S3 gateway endpoint, NAT, or a proxy",
        fix="look at route table, security group and proxy; what is whole stays, start again",
    )


def disk(folder: Path, error: OSError) -> TurnbackError:
    """The system refuses to write."""
    if error.errno in _FULL:
        return full(folder, f"{error.strerror} while writing")
    return StartFailed(
        "the model cannot be written",
        got=f"{error.filename or folder}: {error.strerror or error}",
        allowed="a folder that can be written",
        fix="mend what the system names, then start again",
    )


def full(folder: Path, got: str) -> StartFailed:
    """Before a byte is fetched, or in the middle."""
    return StartFailed(
        "the disk is full",
        got=f"{folder}: {got}",
        allowed="room for the whole model",
        fix=f"remove models of other revisions from {MODELS}, or take an instance type "
        "with a larger instance store; what is whole stays, start again",
    )


def wrong_digest(path: str, found: str, wanted: str) -> StartFailed:
    """Of a file that was fetched whole."""
    return StartFailed(
        f"{path} is not the file that was staged",
        got=f"sha256 {found}",
        allowed=wanted,
        fix="start again, which fetches it anew; if it stays so, stage the model again",
    )
