"""The router as a process: sockets, TLS, signals."""

import asyncio
import gc
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from aiohttp import web

from runtime.contract.node import RouterSpec
from runtime.errors import BadInput
from runtime.router.app import Router
from runtime.router.failure import JSON_TYPE, RequestFailed, error_body
from runtime.router.logs import log_to_stderr

_MOST_HEADER_BYTES = 64 * 1024
_BACKLOG = 4096
_LAST_S = 1.0
"""For writing out what stands in buffers, and for reading what is not wanted."""


class _Protocol(web.RequestHandler):
    """aiohttp's, with refusals of unreadable requests in OpenAI's shape."""

    has_asked = False
    first_by_s = 60.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close what sends no whole head in time."""
        super().connection_made(transport)
        asyncio.get_running_loop().call_later(self.first_by_s, self._close_if_silent, transport)

    def _close_if_silent(self, transport: asyncio.BaseTransport) -> None:
        if not self.has_asked:
            transport.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be parsed as HTTP."""
        refused = RequestFailed(
            "the request is not one the router can read",
            status=status,
            got=(message or type(exc).__name__).splitlines()[0][:200],
            allowed=f"HTTP/1.1 with headers of at most {_MOST_HEADER_BYTES} bytes",
            fix="correct the request and send it again",
        )
        response = web.Response(
            status=status, body=error_body(refused), headers={"Content-Type": JSON_TYPE}
        )
        response.force_close()
        return response


class _Server(web.Server):
    def __init__(self, router: Router) -> None:
        loop, limit_bytes = asyncio.get_running_loop(), router.spec.max_body_bytes
        self._options: dict[str, Any] = {
            "access_log": None,
            "max_line_size": _MOST_HEADER_BYTES,
            "max_field_size": _MOST_HEADER_BYTES,
            "lingering_time": _LAST_S,
            "loop": loop,
        }

        def make_request(
            message: Any, payload: Any, protocol: Any, writer: Any, task: Any
        ) -> web.BaseRequest:
            protocol.has_asked = True
            return web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=limit_bytes
            )

        self._first_by_s = router.spec.client_timeout_s
        super().__init__(router.handle, request_factory=make_request, handler_cancellation=True)

    def __call__(self) -> _Protocol:
        protocol = _Protocol(self, **self._options)
        protocol.first_by_s = self._first_by_s
        return protocol


def tls_of(spec: RouterSpec) -> ssl.SSLContext | None:
    """TLS for clients, if the spec has a certificate.

    Raises:
        BadInput: certificate or key cannot be used.
    """
    if spec.tls_certificate is None or spec.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(spec.tls_certificate, spec.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise BadInput(
            "the TLS certificate cannot be used",
            got=f"{spec.tls_certificate}, {spec.tls_key}: {error}",
            allowed="a PEM certificate chain and its key",
            fix="give --tls-certificate and --tls-key that belong together",
        ) from error
    return context


@asynccontextmanager
async def listening(router: Router, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve; yields the port. Leaving the block drains and stops."""
    await router.start()
    runner = web.ServerRunner(_Server(router), shutdown_timeout=_LAST_S)
    await runner.setup()
    try:
        site = web.TCPSite(
            runner, router.spec.host, router.spec.port, ssl_context=tls, backlog=_BACKLOG
        )
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await router.stop()
        await runner.cleanup()
        await router.close()


def serve(router: Router) -> None:
    """Run until SIGTERM or SIGINT; running turns get time to end.

    Raises:
        BadInput: certificate or key cannot be used.
    """
    tls = tls_of(router.spec)
    log_to_stderr()

    async def run() -> None:
        stop = asyncio.Event()
        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        async with listening(router, tls):
            # What lives as long as the process need not be looked at again and again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 50)
            await stop.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
