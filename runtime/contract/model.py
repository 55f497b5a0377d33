"""A model's files: where they lie in a deployment's bucket and on its nodes."""

import re
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from runtime.contract.node import Frozen

MODELS = Path("/opt/turnback/models")
"""Folder of models on a node: MODELS / id / revision."""
MODEL_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*){2}")
"""id/revision, as of the settings `model.id` and `model.revision`: nodes ask for no other."""
MANIFEST = "manifest.json"
"""Written last: what has none is not staged."""
PART = ".part"
"""A node's file has this ending until it is whole."""


def _inside(path: str) -> str:
    """Refuse a path that leaves its folder, or takes the manifest's place."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == MANIFEST:
        raise ValueError(f"must be a relative path inside the model, and not {MANIFEST}")
    return path


class ModelFile(Frozen):
    """One file."""

    path: Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_inside)]
    """Below the model's folder, with `/`."""
    size_bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class ModelManifest(Frozen):
    """`manifest.json` beside a model's files in the bucket."""

    format: Literal[1] = 1
    """Of this file."""
    files: tuple[ModelFile, ...] = Field(min_length=1)
    """All of them."""

    @model_validator(mode="after")
    def _are_apart(self) -> Self:
        """A node fetches files side by side: no two may write to one."""
        paths = [each.path for each in self.files]
        known = {*paths}
        twice = {path for path in known if path + PART in known}
        twice |= {path for path, count in Counter(paths).items() if count > 1}
        if twice:
            named = ", ".join(sorted(twice)[:5])
            raise ValueError(f"files must be named once, and not again with {PART}: {named}")
        return self

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(each.size_bytes for each in self.files)


def model_prefix(name: str) -> str:
    """Where a model's files lie in the bucket.

    Args:
        name: id and revision, such as `Qwen/Qwen3-32B/9216db5`.
    """
    return f"models/{name}/"


def model_bucket_parameter(deployment: str) -> str:
    """Name of the SSM parameter that tells a deployment's bucket."""
    return f"/turnback/{deployment}/model-bucket"
