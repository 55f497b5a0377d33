"""What answers for a node's engine: /metrics and /version on a port of its own."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ami.versions import read_versions

VLLM = read_versions()["engine"]["vllm"]


@dataclass
class EngineDouble:
    """Answers /metrics and /version of an engine."""

    url: str = ""
    version: str = VLLM
    samples: dict[str, float] = field(default_factory=dict)
    asked: int = 0

    def page(self) -> str:
        """Of /metrics, with labels."""
        return "".join(f'{name}{{engine="0"}} {value}\n' for name, value in self.samples.items())


SERVED = {
    "vllm:request_success_total": 100.0,
    "vllm:nixl_xfer_time_seconds_count": 100.0,
    "vllm:nixl_bytes_transferred_sum": 8.0 * 2**30,
}
"""Of an engine that has read 8 GiB."""


@contextmanager
def engine_double() -> Iterator[EngineDouble]:
    """A server on a port of its own."""
    double = EngineDouble(samples=dict(SERVED))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            double.asked += 1
            pages = {"/metrics": double.page(), "/version": json.dumps({"version": double.version})}
            body = pages.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    double.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def closed_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
