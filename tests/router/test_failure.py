"""Failures in OpenAI's error shape."""

import json
from typing import Any

import pytest

from runtime.router.failure import (
    RequestFailed,
    bad_request,
    engine_failed,
    error_body,
    no_node,
    too_busy,
)

FAILURES = {
    "invalid_request_error": bad_request("w", got="g", allowed="a", param="messages[0]"),
    "service_unavailable": no_node("decode", "decode-1 down"),
    "rate_limit_error": too_busy("w", got="g", allowed="a"),
    "bad_gateway": engine_failed("decode", "decode-1", "HTTP 500"),
}


def told(failure: RequestFailed) -> dict[str, Any]:
    """The error object of a body."""
    body = json.loads(error_body(failure))
    assert body["type"] == "error"  # Anthropic's clients look here
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize("kind", FAILURES)
def test_body_has_openais_fields_and_the_four_parts(kind: str) -> None:
    """message, type, param and code for libraries; what, got, allowed and fix for people."""
    failure = FAILURES[kind]
    error = told(failure)
    assert (error["type"], error["code"], error["param"]) == (kind, failure.status, failure.param)
    for part in ("what", "got", "allowed", "fix"):
        assert error[part]
        assert error[part] in error["message"]


@pytest.mark.parametrize("kind", FAILURES)
def test_only_what_may_be_sent_again_has_a_time(kind: str) -> None:
    """429 and 503 say when to come again; others do not invite it."""
    failure = FAILURES[kind]
    assert (failure.retry_after_s is not None) is (failure.status in (429, 503))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (504, "timeout_error"),
        (500, "server_error"),
        (599, "server_error"),
    ],
)
def test_type_follows_the_status(status: int, kind: str) -> None:
    """Client libraries choose their exception by it; unknown ones are the server's."""
    failure = RequestFailed("w", status=status, got="g", allowed="a", fix="f")
    assert told(failure)["type"] == kind
