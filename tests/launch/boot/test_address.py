"""The node's own address and id."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from runtime.errors import StartFailed
from runtime.launch.boot import address
from runtime.launch.boot.address import instance_id, metadata_text, private_address
from runtime.local.checks import free_ports


class _Metadata(http.server.BaseHTTPRequestHandler):
    """IMDSv2: nothing without a token."""

    def do_PUT(self) -> None:
        is_good = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds") is not None
        self._answer(200 if is_good else 400, "a-token")

    def do_GET(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") != "a-token":
            self._answer(401, "")
        elif self.path == "/latest/meta-data/local-ipv4":
            self._answer(200, "10.20.3.4")
        elif self.path == "/latest/meta-data/instance-id":
            self._answer(200, "i-0a1b")
        else:
            self._answer(404, "")

    def _answer(self, code: int, text: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """Of a metadata service."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Metadata)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def test_metadata_tell_the_address(port: int) -> None:
    """By a token, as instances of this kit want it."""
    assert private_address("127.0.0.1", port) == "10.20.3.4"
    assert metadata_text("spot", "127.0.0.1", port) is None


def test_metadata_tell_the_id(port: int) -> None:
    """Without them nothing else is tagged in its place."""
    assert instance_id("127.0.0.1", port) == "i-0a1b"
    (closed,) = free_ports(1)
    with pytest.raises(StartFailed, match="id is not known"):
        instance_id("127.0.0.1", closed)


@pytest.mark.parametrize("code", [200, 403])
def test_page_in_place_of_a_token_is_none(
    code: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata that are switched off answer with several lines, which fit into no header."""
    page = "<?xml?>\n<html>\n<h1>403 - Forbidden</h1>"
    monkeypatch.setattr(_Metadata, "do_PUT", lambda self: self._answer(code, page))
    assert metadata_text("local-ipv4", "127.0.0.1", port) is None
    assert private_address("127.0.0.1", port) == "127.0.0.1"


def test_without_metadata_it_is_the_address_of_the_way_out() -> None:
    """Nothing is sent for it."""
    (closed,) = free_ports(1)
    assert private_address("127.0.0.1", closed) == "127.0.0.1"


def test_no_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback would be worse: peers would pull from themselves."""
    monkeypatch.setattr(address, "_outgoing", lambda _to: None)
    (closed,) = free_ports(1)
    with pytest.raises(StartFailed, match="address is not known"):
        private_address("127.0.0.1", closed)
