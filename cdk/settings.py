"""`deployment.toml` and the app's context -> the contract's settings, nothing else."""

from collections.abc import Mapping
from pathlib import Path

from runtime.contract.deployment import DeploymentSettings
from runtime.contract.settings_file import FILE_KEY, ONLY_KEY, overrides_in
from runtime.contract.settings_file import read_settings as read_file
from runtime.errors import BadInput


def settings_file(context: Mapping[str, object], root: Path) -> Path:
    """The settings file: `deployment.toml` of the repository, or what the context names."""
    return root / str(context.get(FILE_KEY, "deployment.toml"))


def only_image(context: Mapping[str, object]) -> bool:
    """Whether the image stack alone is wanted.

    Raises:
        BadInput: another part is.
    """
    part = context.get(ONLY_KEY)
    if part not in (None, "image"):
        raise BadInput(
            "this part of a deployment cannot be had alone",
            got=f"-c {ONLY_KEY}={part}",
            allowed=f"-c {ONLY_KEY}=image",
            fix="give that, or leave it out for the whole deployment",
        )
    return part == "image"


def read_settings(path: Path, context: Mapping[str, object]) -> DeploymentSettings:
    """Settings of the file under those of the context.

    Args:
        path: TOML file.
        context: the app's; keys without the prefix are not looked at.

    Raises:
        BadSettings: with every problem of file and context.
        BadInput: the file cannot be read.
    """
    return read_file(path, overrides_in(context), needs_image=not only_image(context))
