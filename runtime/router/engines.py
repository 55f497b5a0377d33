"""One leg: a request to an engine on behalf of a turn, and how it can fail."""

from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.router.connection import Broken
from runtime.router.failure import RequestFailed, engine_failed
from runtime.router.logs import fresh_id
from runtime.router.metrics import RouterMetrics
from runtime.router.nodes import Fleet, Node
from runtime.router.wire import EngineClient, EngineReply, NotConnected


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete reply of an engine."""

    status: int
    content_type: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class PassThrough(Exception):
    """A reply that goes to the client as it is."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class LegFailed(Exception):
    """The engine may have begun to serve the request, and gave no usable answer.

    Args:
        node: the engine.
        problem: what was seen.
        reply: its reply, if it gave one.
        is_silent: not one byte of a reply had come.
    """

    def __init__(
        self, node: Node, problem: str, reply: Reply | None = None, *, is_silent: bool = False
    ) -> None:
        super().__init__(f"{node.name}: {problem}")
        self.node, self.problem, self.reply, self.is_silent = node, problem, reply, is_silent

    def for_client(self) -> PassThrough | RequestFailed:
        """The exception that ends the turn: the engine's own 5xx, else a 502."""
        if self.reply is not None and self.reply.status >= 500:
            return PassThrough(self.reply)
        return engine_failed(self.node.role, self.node.name, self.problem)


class Legs:
    """Sends legs, and tells breakers and metrics how they went.

    Args:
        client: connections to the engines.
        fleet: whose breakers are told.
        metrics: counts failures.
        authorization: for the engines; None passes the client's on.
    """

    def __init__(
        self,
        client: EngineClient,
        fleet: Fleet,
        metrics: RouterMetrics,
        authorization: str | None,
    ) -> None:
        self._client, self._fleet, self._metrics = client, fleet, metrics
        self._authorization = authorization

    async def send(
        self,
        node: Node,
        path: str,
        body: bytes,
        *,
        authorization: str | None,
        timeout_s: float,
        on_write: Callable[[], None],
        rank: int | None = None,
    ) -> EngineReply:
        """Send one leg under a request id of its own; returns once the status is known.

        Raises:
            NotConnected: the request can go to another engine as it is.
            LegFailed: it cannot.
        """
        headers = {"X-Request-Id": fresh_id()}
        if (key := self._authorization or authorization) is not None:
            headers["Authorization"] = key
        if rank is not None:
            headers["X-data-parallel-rank"] = str(rank)
        self._fleet.used(node)
        try:
            return await self._client.send(
                "POST",
                node.url,
                path,
                headers=headers,
                body=body,
                timeout_s=timeout_s,
                on_write=on_write,
            )
        except NotConnected:
            self.failed(node, "refused")
            raise
        except Broken as error:
            raise self.broken(node, error) from error

    async def read(self, node: Node, reply: EngineReply) -> Reply:
        """Read a reply to its end.

        Raises:
            LegFailed: the connection broke or fell silent.
        """
        try:
            body = await reply.read()
        except Broken as error:
            raise self.broken(node, error) from error
        retry_after = reply.header("retry-after")
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        return Reply(reply.status, reply.content_type, body, headers)

    def broken(self, node: Node, error: Broken) -> LegFailed:
        """A connection that broke: the node's failure."""
        self.failed(node, "broken")
        return LegFailed(node, str(error), is_silent=error.is_silent)

    def failed(self, node: Node, kind: str, about: int | None = None) -> None:
        """Note a failure of a node: refused, broken, status or reply."""
        self._fleet.failed(node, about)
        self._metrics.leg_failed(node.role, kind)
