"""POST /v1/turnback/release: a decode node frees a handle's blocks at once.

An endpoint plugin of vLLM, loaded when VLLM_PLUGINS names it. The request reaches the
connector as one that is aborted on arrival, so no step computes anything for it.
Source: vLLM 0.32 and 0.33, v1/engine/async_llm.py,
`notify_kv_transfer_request_rejected`.
"""

import re
import reprlib
import uuid
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from runtime.engine_api import KV_PARAMS, RELEASE, RELEASE_PATH, transfer_params_problem

_RANK = re.compile(r"_dp(\d{1,6})$")


class ReleasePlugin:
    """Adds the route; see vllm/plugins/endpoint_plugins/interface.py for the contract."""

    name = "turnback_release"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Register the route."""
        app.add_api_route(RELEASE_PATH, release, methods=["POST"])

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Nothing to prepare: the engine client stands in the application's state."""


async def release(raw: Request) -> JSONResponse:
    """Hand a release to the engine; also a handle already read or released gets 202."""
    try:
        body = await raw.json()
    except (ValueError, RecursionError) as error:
        return _refused("the body is not JSON", got=str(error))
    handle: Any = body.get(KV_PARAMS) if isinstance(body, dict) else None
    if problem := transfer_params_problem(handle):
        return _refused(problem, got=reprlib.repr(handle))
    engine_id: str = handle["remote_engine_id"]
    engine_client = raw.app.state.engine_client
    rank = _RANK.search(engine_id)
    ranks = engine_client.vllm_config.parallel_config.data_parallel_size
    if rank and int(rank[1]) >= ranks:
        return JSONResponse({}, status_code=202)  # not of this engine: nothing to free
    await engine_client.notify_kv_transfer_request_rejected(
        f"release-{uuid.uuid4().hex}",
        {
            RELEASE: True,
            "remote_engine_id": engine_id,
            "remote_request_id": handle["remote_request_id"],
        },
        data_parallel_rank=int(rank[1]) if rank else None,
    )
    return JSONResponse({}, status_code=202)


def _refused(problem: str, *, got: str) -> JSONResponse:
    message = (
        f"the release was refused: {problem}; got: {got}; allowed: one JSON object with "
        f"{KV_PARAMS}, a handle as the decode node returned it; fix: send the handle unchanged"
    )
    error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    return JSONResponse({"error": error}, status_code=400)
