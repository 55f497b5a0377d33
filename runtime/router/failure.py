"""Failures the router answers with, in OpenAI's error shape."""

import orjson

from runtime.errors import TurnbackError

JSON_TYPE = "application/json"

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    502: "bad_gateway",
    503: "service_unavailable",
    504: "timeout_error",
}


class RequestFailed(TurnbackError):
    """One request that the router itself answers with an error.

    Args:
        what: what failed, one sentence.
        status: HTTP status of the answer.
        got: the offending value or observation.
        allowed: what would have been accepted.
        fix: what to do now.
        param: the field that is to blame.
        retry_after_s: when to come again, for 429 and 503.
    """

    def __init__(
        self,
        what: str,
        *,
        status: int,
        got: str,
        allowed: str,
        fix: str,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(what, got=got, allowed=allowed, fix=fix)
        self.status, self.param, self.retry_after_s = status, param, retry_after_s


def error_body(failure: RequestFailed) -> bytes:
    """The failure as the JSON body of a reply, or of an SSE error event.

    `type` at the top is Anthropic's; clients of OpenAI's APIs do not look at it.
    """
    error = {
        "message": str(failure),
        "type": _TYPES.get(failure.status, "server_error"),
        "param": failure.param,
        "code": failure.status,
        "what": failure.what,
        "got": failure.got,
        "allowed": failure.allowed,
        "fix": failure.fix,
    }
    return orjson.dumps({"type": "error", "error": error})


def bad_request(what: str, *, got: str, allowed: str, param: str | None = None) -> RequestFailed:
    """A client's body that cannot be served."""
    return RequestFailed(
        what,
        status=400,
        got=got,
        allowed=allowed,
        fix="correct the request and send it again",
        param=param,
    )


def no_node(role: str, got: str) -> RequestFailed:
    """No node of a role can take a request."""
    return RequestFailed(
        f"no {role} node can take the request",
        status=503,
        got=got,
        allowed=f"at least one healthy {role} node, with a peer of its generation",
        fix="send the request again later; GET /health of the router names the nodes that fail",
        retry_after_s=2,
    )


def too_busy(what: str, *, got: str, allowed: str) -> RequestFailed:
    """The router has as much to do as it may."""
    return RequestFailed(
        what,
        status=429,
        got=got,
        allowed=allowed,
        fix="send the request again after the time in Retry-After",
        retry_after_s=1,
    )


def engine_failed(role: str, name: str, problem: str) -> RequestFailed:
    """A node took the request and gave no usable answer."""
    return RequestFailed(
        f"the {role} node gave no usable answer",
        status=502,
        got=f"{name}: {problem}",
        allowed="a complete reply",
        fix="send the request again; if it persists, read the log of that node",
    )
