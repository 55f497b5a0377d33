"""Values into [kv] of deployment.toml: comments, order and all other lines stay."""

import difflib
import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.contract.deployment import DeploymentSettings
from runtime.contract.load import load_deployment
from runtime.errors import BadInput, BadSettings

_TABLE = re.compile(r"^\s*\[")
_KV = re.compile(r"^\s*\[\s*kv\s*\]\s*(#.*)?$")
_USUAL_PROFILE = DeploymentSettings.model_fields["profile"].default
_FROM_THE_COMMAND_LINE = ("name", "availability_zone")
"""Without default, and given to `cdk deploy` where the file leaves them out."""


def edited(text: str, values: Mapping[str, int]) -> str:
    """The text with `key = value` in its table [kv].

    Args:
        text: TOML.
        values: keys of [kv]; a line that sets one keeps its place and its comment.

    Raises:
        ValueError: the text is no TOML, or says [kv] in a way that lines cannot change
            (an inline table, dotted keys).
    """
    before = tomllib.loads(text)
    end = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += end
    start = next((at for at, line in enumerate(lines) if _KV.match(line.rstrip())), None)
    if start is None:
        lines += [end] * bool(lines) + [f"[kv]{end}"]
        start = len(lines) - 1
    for key, value in values.items():
        _put(lines, start, key, value, end)
    after = "".join(lines)
    # Whatever the lines looked like, the file must now say this and nothing else.
    wanted: dict[str, Any] = {**before, "kv": {**before.get("kv", {}), **values}}
    if tomllib.loads(after) != wanted:
        raise ValueError("its [kv] is not written as a table of lines")
    return after


def _put(lines: list[str], start: int, key: str, value: int, end: str) -> None:
    last = start
    for at in range(start + 1, len(lines)):
        if _TABLE.match(lines[at]):
            break
        if found := re.match(rf"^(\s*{key}\s*=\s*)([\w+]+)( *)(.*)$", lines[at].rstrip("\r\n")):
            head, old, gap, rest = found.groups()
            # A comment keeps its column where the new number leaves room.
            gap = " " * max(1, len(old) + len(gap) - len(str(value))) if rest else ""
            lines[at] = f"{head}{value}{gap}{rest}{end}"
            return
        if lines[at].strip() and not lines[at].lstrip().startswith("#"):
            last = at
    lines.insert(last + 1, f"{key} = {value}{end}")


def read(path: Path) -> str:
    """Text of a settings file that validates, but for what `cdk deploy -c` may give.

    Raises:
        BadInput: it cannot be read, or does not validate.
    """
    try:
        text = path.read_bytes().decode()
        _validate(text, path)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(
            f"{path} cannot be read",
            got=str(error),
            allowed="the deployment's settings, a TOML file as docs/settings.md describes it",
            fix="mend it, or name another: --settings PATH",
        ) from None
    return text


def _validate(text: str, path: Path) -> None:
    try:
        load_deployment(tomllib.loads(text), path.name)
    except BadSettings as error:
        left = [
            each
            for each in error.problems
            if each.field not in _FROM_THE_COMMAND_LINE or each.got != "nothing"
        ]
        if left:
            raise BadSettings(path.name, left) from None


@dataclass(frozen=True)
class Applied:
    """What came of it.

    Attributes:
        difference: unified; empty when the file says so already.
        profile: that the deployment serves with.
    """

    difference: str
    profile: str


def apply(path: Path, values: Mapping[str, int]) -> Applied:
    """Write values into [kv], whole or not at all.

    Raises:
        BadInput: the file is missing, cannot be written, or would not validate.
    """
    before = read(path)
    try:
        after = edited(before, values)
    except ValueError as error:
        raise BadInput(
            f"{path} cannot be changed line by line",
            got=str(error),
            allowed="a table [kv] with one key a line",
            fix="put in by hand, in [kv]: "
            + ", ".join(f"{key} = {value}" for key, value in values.items()),
        ) from None
    _validate(after, path)
    if after != before:
        _replace(path.resolve(), after)
    names = (f"{path} (before)", f"{path} (after)")
    told = difflib.unified_diff(before.splitlines(True), after.splitlines(True), *names)
    return Applied("".join(told), tomllib.loads(after).get("profile", _USUAL_PROFILE))


def _replace(path: Path, text: str) -> None:
    """A reader sees the old file or the new one; its mode stays."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        # Root may write what is marked read-only; whoever marked it did not want that.
        if not path.stat().st_mode & 0o222:
            raise PermissionError(f"{path} is marked read-only")
        with path.open("r+b"):
            pass
        draft.write_bytes(text.encode())
        shutil.copymode(path, draft)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise BadInput(
            f"{path} cannot be written",
            got=str(error),
            allowed="a settings file that can be written, in a folder that can",
            fix="make it writable, or put the printed lines into it by hand",
        ) from None
