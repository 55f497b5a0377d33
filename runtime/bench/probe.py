"""Whether there is a router that serves the model, asked before anything is measured."""

from typing import Any

import aiohttp
import orjson

from runtime.errors import BadInput, StartFailed

_PATH = "/v1/models"
_TIMEOUT_S = 10.0
_SHOWN = 300


async def check_router(session: aiohttp.ClientSession, url: str, model: str) -> None:
    """Ask for the models, with the session's key.

    Args:
        session: of the benchmark.
        url: the router's address, without a path.
        model: served name that the benchmark will ask for.

    Raises:
        BadInput: nobody answers there, the key is refused, or the model is another.
        StartFailed: the router answers, its engines do not.
    """
    address = f"{url.rstrip('/')}{_PATH}"
    try:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with session.get(address, timeout=timeout) as reply:
            status, body = reply.status, await reply.read()
    except TimeoutError:
        raise _unreachable(url, f"no reply within {_TIMEOUT_S:g} s") from None
    except (aiohttp.ClientError, ValueError) as error:
        raise _unreachable(url, repr(error)) from None
    told = f"HTTP {status}: {body[:_SHOWN].decode('utf-8', 'replace')}"
    if status in (401, 403):
        raise BadInput(
            "the router refuses the API key",
            got=f"{address}: {told}",
            allowed="one of the router's API keys",
            fix="give a key of the deployment, or check that it was not rotated",
        )
    if status >= 500:
        raise StartFailed(
            "the router has no engines that answer",
            got=f"{address}: {told}",
            allowed=f"HTTP 200 of GET {_PATH}",
            fix="wait until GET /health is 200, or look into the engines' logs",
        )
    served = _models(body) if status == 200 else None
    if served is None:
        raise _unreachable(url, told)
    if model not in served:
        raise BadInput(
            "the router serves another model",
            got=model,
            allowed=", ".join(served) or f"none is served at {address}",
            fix="give the served model's name",
        )


def _models(body: bytes) -> list[str] | None:
    """Ids of an OpenAI list of models; None when it is no such list."""
    try:
        listed: Any = orjson.loads(body)
        return [str(each["id"]) for each in listed["data"]]
    except (LookupError, TypeError, ValueError):
        return None


def _unreachable(url: str, told: str) -> BadInput:
    return BadInput(
        "the router cannot be reached",
        got=f"{url}: {told}",
        allowed="an address on which a router answers like an OpenAI server",
        fix="start it, or give its address without a path, as in http://127.0.0.1:8000",
    )
