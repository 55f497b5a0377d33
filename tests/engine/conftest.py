"""A real pair behind the router, started the way a user starts it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from runtime.local.model import build_model
from tests.engine.pairs import ENGINE, ROOT
from tests.engine.play import PairClient
from tests.engine.words import plain_words
from tests.fuzz.script import Texts

START_LIMIT_S = 300.0


@dataclass
class Up:
    """A running `turnback up`.

    Attributes:
        curl: the command that it printed.
    """

    process: subprocess.Popen[str]
    router_url: str
    prefill_url: str
    decode_url: str
    curl: str


@pytest.fixture(scope="session")
def model() -> Path:
    """The tiny model."""
    return build_model(ROOT / "out" / "models").resolve()


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Up]:
    """`turnback up` with the verified connector; Ctrl-C ends it and leaves nothing.

    One for test_exactness.py, test_freed.py and test_pair.py, whose last test ends it.
    """
    out = tmp_path_factory.mktemp("up")
    argv = [sys.executable, "-m", "runtime.cli", "up", "--out", str(out), "--model", str(model)]
    with subprocess.Popen(
        [*argv, "--engine-environment", str(ENGINE)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Up(process, **read_addresses(process))
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


def read_addresses(process: subprocess.Popen[str]) -> dict[str, str]:
    """Read what `turnback up` prints until it is ready."""
    assert process.stdout is not None
    lines: list[str] = []
    end = time.monotonic() + START_LIMIT_S
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith("Ctrl-C") or time.monotonic() > end:
            break
    text = "\n".join(lines)
    found = dict(re.findall(r"^(router|prefill|decode): +(http\S+)$", text, re.MULTILINE))
    assert set(found) == {"router", "prefill", "decode"}, text
    curl = next(line for line in lines if line.startswith("curl "))
    return {f"{name}_url": url for name, url in found.items()} | {"curl": curl}


def descendants(pid: int) -> list[int]:
    """All processes below one, by /proc."""
    below: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text("ascii").split()):
            below += [child, *descendants(child)]
    return below


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
async def client(up: Up) -> AsyncIterator[PairClient]:
    """Plays turns against the engines; what they pin for a test is given back after it."""
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        one = PairClient(session, up.prefill_url, up.decode_url, "tiny")
        yield one
        await one.release_all()


@pytest.fixture
def texts(model: Path, request: pytest.FixtureRequest) -> Texts:
    """Texts of a test's own."""
    return Texts(plain_words(model), seed=sum(request.node.name.encode()))
