"""A model folder for the mock engines."""

from pathlib import Path

import pytest

from tests.router.fleet import write_tokenizer


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return folder
