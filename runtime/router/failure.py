"""Failures the router answers with, in OpenAI's error shape."""

import orjson

from runtime.errors import TurnbackError

JSON_TYPE = "application/json"

_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    502: "bad_gateway",
    503: "service_unavailable",
}


class RequestFailed(TurnbackError):
    """One request that the router itself answers with an error.

    Args:
        what: what failed, one sentence.
        status: HTTP status of the answer.
        got: the offending value or observation.
        allowed: what would have been accepted.
        fix: what to do now.
    """

    def __init__(self, what: str, *, status: int, got: str, allowed: str, fix: str) -> None:
        super().__init__(what, got=got, allowed=allowed, fix=fix)
        self.status = status


def error_body(failure: RequestFailed) -> bytes:
    """The failure as the JSON body of a reply, or of an SSE error event."""
    error = {
        "message": str(failure),
        "type": _TYPES.get(failure.status, "server_error"),
        "code": failure.status,
        "what": failure.what,
        "got": failure.got,
        "allowed": failure.allowed,
        "fix": failure.fix,
    }
    return orjson.dumps({"error": error})


def bad_request(what: str, *, got: str, allowed: str) -> RequestFailed:
    """A client's body that cannot be served."""
    return RequestFailed(
        what, status=400, got=got, allowed=allowed, fix="correct the request body and send it again"
    )


def no_node(role: str, tried: list[str]) -> RequestFailed:
    """No node of a role accepts connections."""
    return RequestFailed(
        f"no {role} node accepts connections",
        status=503,
        got=f"tried {', '.join(tried)}",
        allowed=f"at least one {role} node that listens",
        fix="read GET /health of the router, then the log of the node it names",
    )


def engine_failed(role: str, url: str, problem: str) -> RequestFailed:
    """A node took the request and gave no usable answer."""
    return RequestFailed(
        f"the {role} node gave no usable answer",
        status=502,
        got=f"{url}: {problem}",
        allowed="a complete chat completion reply",
        fix="send the request again; if it persists, read the log of that node",
    )
