"""An emulated account on loopback, and a model."""

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.backends import get_backend
from moto.server import ThreadedMotoServer

from runtime.local.checks import free_ports
from runtime.local.rehearsal import account
from tests.aws.models.bucket import make_model


@pytest.fixture(autouse=True)
def _no_connection_outlives_its_test() -> Iterator[None]:
    """boto leaves those of a download that was given up to the collector, which would find
    them in whatever test comes next."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def server() -> Iterator[None]:
    """An emulated account that other processes reach too."""
    (port,) = free_ports(1)
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    with account.only_this_account(port):
        boto3.setup_default_session()
        yield
    server.stop()
    get_backend("s3").reset()  # this process's, not the server's


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """As a person has it."""
    return make_model(tmp_path / "model")
