"""What a mock engine does wrong when it is told to."""

import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from runtime.engine_api import KV_PARAMS
from runtime.local.mock_config import Faults
from tests.local.mock_rig import MESSAGES, Mocks, running_mocks
from tests.router.fleet import MODEL, until, url_of, write_tokenizer

BODY: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return folder


async def raw(mocks: Mocks, *, stream: bool) -> bytes:
    """Body of a D leg's reply, however it ends."""
    body = BODY | {"stream": stream}
    async with mocks.session.post(f"{url_of(mocks.decode)}{CHAT}", json=body) as reply:
        assert reply.status == 200
        return await reply.read()


async def told(mocks: Mocks, faults: Any) -> int:
    """Set faults over HTTP; the status."""
    url = f"{url_of(mocks.decode)}/mock/faults"
    async with mocks.session.post(url, data=orjson.dumps(faults)) as reply:
        return reply.status


async def test_slow_reply_comes_late_once(model: Path) -> None:
    """The next request waits as long as told, the one after it does not."""
    async with running_mocks(model) as mocks:
        mocks.decode.faults.slow_next = [0.3]
        spent_s = []
        for _ in range(2):
            began_s = time.perf_counter()
            await raw(mocks, stream=False)
            spent_s.append(time.perf_counter() - began_s)
        assert spent_s[0] >= 0.3 > spent_s[1]


@pytest.mark.parametrize("stream", [False, True])
async def test_garbage_has_status_200(model: Path, stream: bool) -> None:
    """Nonsense comes with the right status and type, once."""
    async with running_mocks(model) as mocks:
        mocks.decode.faults.garbage_next = 1
        nonsense = await raw(mocks, stream=stream)
        with pytest.raises(orjson.JSONDecodeError):
            orjson.loads(nonsense)
        assert not nonsense.startswith(b"data: ")
        assert b'"choices"' in await raw(mocks, stream=stream)


async def until_cut(reply: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """What came of a body, and whether its connection ended before it did."""
    got = b""
    try:
        async for chunk in reply.content.iter_any():
            got += chunk
    except aiohttp.ClientPayloadError:
        return got, True
    return got, False


@pytest.mark.parametrize("stream", [False, True])
async def test_early_close_cuts_the_body(model: Path, stream: bool) -> None:
    """Headers and half a body arrive, then the connection ends, and nothing is pinned."""
    async with running_mocks(model) as mocks:
        mocks.decode.faults.early_close_next = 1
        body = BODY | {"stream": stream, KV_PARAMS: await mocks.p_dict()}
        async with mocks.session.post(f"{url_of(mocks.decode)}{CHAT}", json=body) as reply:
            assert reply.status == 200
            got, is_cut = await until_cut(reply)
        assert is_cut
        assert got.startswith(b'data: {"id"' if stream else b'{"id"')
        assert not got.rstrip().endswith(b"}")
        rank = mocks.decode.transfers
        await until(lambda: rank.pool.free == rank.pool.capacity)
        assert mocks.decode.faults.early_close_next == 0


async def test_huge_event_is_still_an_event(model: Path) -> None:
    """One event of the stream has more than 1 MB, and the stream is whole."""
    async with running_mocks(model) as mocks:
        mocks.decode.faults.huge_event_next = 1
        frames = (await raw(mocks, stream=True)).split(b"\n\n")
        assert [len(frame) > 1_000_000 for frame in frames].count(True) == 1
        assert frames[-2:] == [b"data: [DONE]", b""]
        assert len(await raw(mocks, stream=True)) < 10_000


async def test_sick_engine_says_so_and_serves(model: Path) -> None:
    """/health gives 503 while the engine is sick, and 200 again after it."""
    async with running_mocks(model) as mocks:
        for is_sick, status in ((True, 503), (False, 200)):
            assert await told(mocks, {"is_sick": is_sick}) == 200
            async with mocks.session.get(f"{url_of(mocks.decode)}/health") as reply:
                assert reply.status == status
            assert await raw(mocks, stream=False)


async def test_faults_are_set_over_http(model: Path) -> None:
    """Every field can be set, in one request, and others stay as they were."""
    faults = {
        "fail_next": [500],
        "reset_next": 1,
        "garbage_next": 2,
        "stall_next": 3,
        "slow_next": [0.5],
        "early_close_next": 4,
        "huge_event_next": 5,
        "die_after_chunks": 6,
        "spoil_next": [{"remote_port": 0}],
        "is_sick": True,
    }
    assert set(faults) == {one.name for one in fields(Faults)}
    async with running_mocks(model) as mocks:
        assert await told(mocks, faults) == 200
        assert mocks.decode.faults == Faults(**faults)  # type: ignore[arg-type]
        assert await told(mocks, {"die_after_chunks": None, "fail_next": []}) == 200
        assert mocks.decode.faults.die_after_chunks is None
        assert mocks.decode.faults.garbage_next == 2


@pytest.mark.parametrize("wrong", [{"no_such": 1}, {"fail_next": "x"}, {"reset_next": None}, []])
async def test_wrong_faults_are_refused_and_change_nothing(model: Path, wrong: Any) -> None:
    """A test that misspells a fault hears of it."""
    async with running_mocks(model) as mocks:
        assert await told(mocks, wrong) == 400
        assert mocks.decode.faults == Faults()


async def test_stream_that_dies_pins_nothing(model: Path) -> None:
    """A stream that ends in its middle has given no handle, and keeps no blocks."""
    async with running_mocks(model) as mocks:
        mocks.decode.faults.die_after_chunks = 2
        body = BODY | {"stream": True, KV_PARAMS: await mocks.p_dict()}
        with pytest.raises(aiohttp.ClientPayloadError):
            async with mocks.session.post(f"{url_of(mocks.decode)}{CHAT}", json=body) as reply:
                await reply.read()
        rank = mocks.decode.transfers
        await until(lambda: rank.pool.free == rank.pool.capacity)
        assert rank.kept_count == 0
