"""A model folder for the mock engines, and the loop that the router runs on."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from tests.router.fleet import write_tokenizer


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return folder


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The router runs on uvloop, and so do its tests."""
    return {"uvloop": uvloop.new_event_loop}
