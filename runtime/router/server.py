"""The router as a process: sockets, TLS, signals."""

import asyncio
import gc
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop

from runtime.contract.node import RouterSpec
from runtime.errors import BadInput
from runtime.router.app import Router
from runtime.router.inbound import Inbounds
from runtime.router.logs import log_to_stderr


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
    inbounds = Inbounds(router.handle, router.spec.client_timeout_s)
    try:
        yield await inbounds.start(router.spec.host, router.spec.port, tls)
    finally:
        await router.stop()
        await inbounds.stop()
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
