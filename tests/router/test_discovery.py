"""The list of nodes, from a file that is followed."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtime.contract.node import NodeAddress
from runtime.errors import BadInput
from runtime.router.discovery import Listing, follow, read_nodes_file
from runtime.router.nodes import Fleet
from tests.router.fleet import router_spec, until

FILE = """
[[prefill]]
url = "http://p1:8000"
[[prefill]]
url = "http://p2:8000"
generation = "g1"
[[decode]]
url = "http://d1:8000"
draining = true
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A nodes file."""
    path = tmp_path / "nodes.toml"
    path.write_text(FILE)
    return path


@asynccontextmanager
async def following(listing: Listing, path: Path) -> AsyncIterator[Fleet]:
    """A fleet that is kept up to date."""
    fleet = Fleet(router_spec(nodes_file=path))
    task = asyncio.create_task(follow(listing, fleet, 0.001))
    try:
        yield fleet
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])


def rewrite(path: Path, text: str) -> None:
    """As a careful editor does it: no reader sees half of it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def urls(fleet: Fleet) -> set[str]:
    return {node.url for node in fleet.nodes}


def test_file_lists_nodes(path: Path) -> None:
    """Each table is a node of its role, with its generation and whether it drains."""
    assert read_nodes_file(path) == [
        NodeAddress(role="prefill", url="http://p1:8000"),
        NodeAddress(role="prefill", url="http://p2:8000", generation="g1"),
        NodeAddress(role="decode", url="http://d1:8000", draining=True),
    ]


@pytest.mark.parametrize(
    ("text", "got", "allowed"),
    [
        (b"[[prefill", "array declaration", "[[prefill]]"),
        (b"\xff\xfe", "utf-8", "[[prefill]]"),
        (b'[[prefill]]\nurl = "p1:8000"', "p1:8000", "https?"),
        (b'[[prefil]]\nurl = "http://p1"', "prefil", "not permitted"),
        (b'[[decode]]\nurl = "http://p1"\nweight = 2', "decode.0.weight = 2", "not permitted"),
        (b"[[decode]]", "decode.0.url", "required"),
        (b"\n", "no line", "a comment"),
    ],
)
def test_unusable_file_tells_what_got_allowed_and_fix(
    path: Path, text: bytes, got: str, allowed: str
) -> None:
    """The message names the file, the bad value, what may stand there, and what to do."""
    path.write_bytes(text)
    with pytest.raises(BadInput) as told:
        read_nodes_file(path)
    assert str(path) in told.value.what
    assert got in told.value.got
    assert allowed in told.value.allowed
    assert str(path) in told.value.fix


async def test_changes_of_the_file_are_followed(path: Path) -> None:
    """A node that is added joins, one that is removed leaves, without a restart."""
    async with following(lambda: read_nodes_file(path), path) as fleet:
        await until(lambda: len(fleet.nodes) == 3)
        rewrite(path, '[[prefill]]\nurl = "http://p1:8000"\n[[decode]]\nurl = "http://d2:8000"')
        await until(lambda: urls(fleet) == {"http://p1:8000", "http://d2:8000"})


def test_file_without_nodes_is_possible(path: Path) -> None:
    """An operator can say so in as many words."""
    rewrite(path, "# none today")
    assert read_nodes_file(path) == []


@pytest.mark.parametrize(
    "spoil", [lambda path: rewrite(path, "[["), lambda path: rewrite(path, ""), Path.unlink]
)
async def test_unusable_file_keeps_the_last_list(
    path: Path, spoil: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    """A half-written or missing file loses no node, is told once, and is taken when it is right."""
    reads = 0

    def listing() -> list[NodeAddress]:
        nonlocal reads
        reads += 1
        return list(read_nodes_file(path))

    async with following(listing, path) as fleet:
        await until(lambda: len(fleet.nodes) == 3)
        with caplog.at_level(logging.WARNING, "turnback.router"):
            spoil(path)
            seen = reads
            await until(lambda: reads > seen + 5)
        assert len(fleet.nodes) == 3
        warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1
        assert "the last list stays" in warnings[0]
        rewrite(path, '[[decode]]\nurl = "http://d1:8000"')
        await until(lambda: urls(fleet) == {"http://d1:8000"})


async def test_number_without_end_is_no_toml_either(tmp_path: Path) -> None:
    """tomllib raises a plain ValueError for it: told like any other mistake."""
    file = tmp_path / "nodes.toml"
    for text in ("a=" + "9" * 5000, "a=" + "[" * 5000):
        file.write_text(text)
        with pytest.raises(BadInput, match="is not TOML"):
            read_nodes_file(file)
