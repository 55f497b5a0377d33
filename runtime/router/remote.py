"""Asks a running router, on behalf of a command."""

from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import orjson

from runtime.contract.http import REUSE_PATH
from runtime.errors import BadInput

_TIMEOUT_S = 10.0


def ask_reuse(url: str, state: str, reason: str, api_key: str | None) -> dict[str, Any]:
    """Switch reuse, or ask how it stands.

    Args:
        url: any router of the deployment.
        state: on, off or status.
        reason: why it is switched off.
        api_key: an administrator's, where the router wants keys.

    Raises:
        BadInput: another state, or the router cannot be asked or refuses.
    """
    if state not in ("on", "off", "status"):
        raise BadInput(
            "the state is none of the three", got=state, allowed="on, off, status", fix="give one"
        )
    if not url.startswith(("http://", "https://")):
        raise BadInput(
            "the router's address cannot be used",
            got=url,
            allowed="http:// or https:// with host and port",
            fix="give --router http://HOST:PORT",
        )
    body = None
    if state != "status":
        wanted = {"reuse": state} | ({"reason": reason} if reason else {})
        body = orjson.dumps(wanted)
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key.strip()}"
    request = Request(  # noqa: S310 - the scheme was looked at
        f"{url.rstrip('/')}{REUSE_PATH}", body, headers, method="PUT" if body else "GET"
    )
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as reply:  # noqa: S310
            told: dict[str, Any] = orjson.loads(reply.read())
            return told
    except HTTPError as error:
        raise _refused(
            url, f"HTTP {error.code}: {error.read()[:500].decode(errors='replace')}"
        ) from error
    except (URLError, OSError, orjson.JSONDecodeError) as error:
        raise _refused(url, str(error)) from error


def _refused(url: str, got: str) -> BadInput:
    return BadInput(
        f"the router at {url} could not be asked",
        got=got,
        allowed="a running router, and an administrator's key where it wants keys",
        fix="check --router and --api-key-file",
    )
