"""A real Redis or Valkey server, and a TCP proxy that can be slow or lead elsewhere."""

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from tests.router.fleet import unused_port

_START_S = 10.0


class RedisServer:
    """A server process; ended by its pid.

    Attributes:
        port: on 127.0.0.1; kept over a restart.
    """

    def __init__(self, folder: str, *options: str) -> None:
        found = shutil.which("redis-server") or shutil.which("valkey-server")
        if found is None:
            pytest.fail("these tests need redis-server or valkey-server on PATH: make setup")
        self._program, self._folder, self._options = found, folder, options
        self.port = unused_port()
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start, and wait until it answers."""
        own = ("--port", str(self.port), "--dir", self._folder, "--bind", "127.0.0.1")
        kept = ("--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0")
        self.process = subprocess.Popen(
            [self._program, *own, *kept, *self._options], stdout=subprocess.DEVNULL
        )
        end_s = time.monotonic() + _START_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end_s:
                pytest.fail(f"{self._program} did not start on port {self.port}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            return bool(self.ask("PING"))
        except OSError:
            return False

    def ask(self, *words: str) -> str:
        """One command by a client of its own; the raw reply."""
        parts = (f"${len(word)}\r\n{word}\r\n" for word in words)
        with socket.create_connection(("127.0.0.1", self.port), timeout=2.0) as connection:
            connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
            return connection.recv(1 << 20).decode()

    def pause(self) -> None:
        """It no longer answers, and its connections stay."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End a pause."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """A server with an empty folder and nothing on disk."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(folder, *options)
        try:
            yield server
        finally:
            server.kill()


class Proxy:
    """Leads to a port.

    Attributes:
        target: where new connections lead.
        delay_s: of every reply.
        connections: made so far.
    """

    def __init__(self, target: int) -> None:
        self.target, self.delay_s, self.connections = target, 0.0, 0
        self._clients: dict[asyncio.StreamWriter, None] = {}
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        self.connections += 1
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        self._clients[writer] = None
        there_done = asyncio.create_task(self._carry(reader, back, is_reply=False))
        await self._carry(there, writer, is_reply=True)
        await there_done
        del self._clients[writer]

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                loop.call_later(self.delay_s if is_reply else 0.0, writer.write, data)
        await asyncio.sleep(self.delay_s if is_reply else 0.0)
        writer.close()

    def cut(self, at_most: int | None = None) -> None:
        """End connections; all of them, or some."""
        for writer in list(self._clients)[:at_most]:
            writer.close()


@asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[Proxy]:
    """A proxy on a free port."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        proxy.cut()
        server.close()
        await asyncio.sleep(proxy.delay_s + 0.01)  # what is delayed has been written
