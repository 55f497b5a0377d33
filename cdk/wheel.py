"""The kit's wheel, the same bytes for the same sources."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from runtime.errors import StartFailed

_FROM_1980 = "315532800"
"""Seconds: the first moment that a zip file can hold."""
_SOURCES = ("runtime", "pyproject.toml", "README.md", "LICENSE")


def build_kit_wheel(root: Path, out: Path) -> Path:
    """Build the wheel that nodes install.

    A copy of the sources is built, since setuptools keeps deleted modules in `build/`.

    Args:
        root: the repository.
        out: folder for the wheel.

    Raises:
        StartFailed: setuptools failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        copy, built = Path(folder) / "kit", Path(folder) / "built"
        for name in _SOURCES:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                copy.mkdir(exist_ok=True)
                shutil.copy(source, copy / name)
        # Its third-party packages by hash, for nodes whose image lacks some.
        shutil.copy(root / "locks" / "node.lock", copy / "runtime" / "node.lock")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
                *("--no-build-isolation", "--wheel-dir", str(built), str(copy)),
            ],
            env={**os.environ, "SOURCE_DATE_EPOCH": _FROM_1980},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise StartFailed(
                "the kit's wheel cannot be built",
                got=done.stderr.strip()[-500:],
                allowed="an environment made by `make setup`",
                fix="run `make setup`, then try again",
            )
        (wheel,) = built.glob("*.whl")
        return Path(shutil.move(wheel, out / wheel.name))
