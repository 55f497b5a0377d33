"""A headless Chromium under test: its DevTools protocol over a websocket."""

import asyncio
import base64
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from runtime.local.environments import BROWSERS

_STEP_S = 60.0
"""Longest wait for one answer; a busy machine is slow."""


@dataclass
class Page:
    """One tab."""

    socket: aiohttp.ClientWebSocketResponse
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _sent: int = 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol; events that come meanwhile are kept."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        await self.socket.send_json(message)
        while True:
            told: dict[str, Any] = await self.socket.receive_json(timeout=_STEP_S)
            if told.get("id") == self._sent:
                assert "error" not in told, f"{method}: {told['error']}"
                return dict(told["result"])
            self.events.append(told)

    async def open(self, path: Path) -> None:
        """Load a file and wait until it is laid out."""
        self.events.clear()
        await self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(await self.socket.receive_json(timeout=_STEP_S))
        await self.evaluate("document.fonts.ready.then(() => 0)")

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        told = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told.get("exceptionDetails")
        return told["result"].get("value")

    async def look(self, *, scheme: str, width_px: int, height_px: int = 900) -> None:
        """Emulate a reader's system."""
        await self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width_px,
            height=height_px,
            deviceScaleFactor=1,
            mobile=width_px < 600,
        )

    async def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        told = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(told["data"]))  # noqa: ASYNC240 - nothing else runs

    def requested(self) -> list[str]:
        """Addresses that the page asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]


@asynccontextmanager
async def running_chromium(folder: Path) -> AsyncIterator[Page]:
    """Start the browser with a profile of its own; a missing one fails the test."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert program, "no Chromium: run `make setup`, or sudo apt-get install -y chromium"
    told = folder / "DevToolsActivePort"
    process = await asyncio.create_subprocess_exec(
        *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"),
        *("--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_STEP_S):
            while not told.exists() or told.read_text("ascii").count("\n") < 1:
                assert process.returncode is None, "Chromium ended by itself"
                await asyncio.sleep(0.05)
        port, path = told.read_text("ascii").split("\n")[:2]
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=0) as socket,
        ):
            yield await _first_page(Page(socket))
    finally:
        # Its children are of its process group.
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _first_page(page: Page) -> Page:
    targets = (await page.call("Target.getTargets"))["targetInfos"]
    target = next(one["targetId"] for one in targets if one["type"] == "page")
    attached = await page.call("Target.attachToTarget", targetId=target, flatten=True)
    page.session = attached["sessionId"]
    for domain in ("Page", "Network", "Runtime"):
        await page.call(f"{domain}.enable")
    return page
