"""An emulated account on loopback, and an environment from which no other can be reached."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime.launch.command import Command
from runtime.launch.supervisor import Service

ACCOUNT_ID = "123456789012"
"""moto's."""
REGION = "us-west-2"
"""One with p5en."""


def emulator(port: int, log: Path) -> Service:
    """The emulator as a process of its own."""
    return Service(
        "emulated account",
        Command((sys.executable, "-m", "runtime.local.rehearsal.emulator", str(port))),
        f"http://127.0.0.1:{port}/moto-api/",
        log,
    )


def variables(port: int) -> dict[str, str]:
    """What sends SDKs and the CDK CLI to the emulator, and keeps the CLI from anything else."""
    # By its name: moto takes a template's address for its own by the word localhost.
    address = f"http://localhost:{port}"
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ENDPOINT_URL_S3": address,  # with it the CLI uses paths, not host names
        "AWS_ACCESS_KEY_ID": "rehearsal",
        "AWS_SECRET_ACCESS_KEY": "rehearsal",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "localhost,127.0.0.1",
        "no_proxy": "localhost,127.0.0.1",
        "CI": "1",
        "CDK_DISABLE_VERSION_CHECK": "1",
        "CDK_DISABLE_CLI_TELEMETRY": "true",
    }


@contextmanager
def only_this_account(port: int) -> Iterator[None]:
    """This process and its children see the emulator, and none of the user's credentials."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(variables(port))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
