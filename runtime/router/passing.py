"""Requests that a decode node answers as they are: models, stored responses."""

from runtime.router.answer import Answer
from runtime.router.connection import Broken
from runtime.router.engines import Reply
from runtime.router.exchange import Response
from runtime.router.failure import RequestFailed, engine_failed, no_node
from runtime.router.nodes import Node
from runtime.router.sse import clean_json
from runtime.router.turn import Turns
from runtime.router.wire import EngineClient, NotConnected

_TIMEOUT_S = 10.0


class Passing:
    """Passes requests on.

    Args:
        client: connections to the engines.
        turns: knows nodes and responses.
        authorization: for the engines; None passes the client's on.
    """

    def __init__(self, client: EngineClient, turns: Turns, authorization: str | None) -> None:
        self._client, self._turns, self._authorization = client, turns, authorization

    async def models(self, authorization: str | None) -> Response:
        """The models of the first decode node that answers.

        Raises:
            RequestFailed: 503; none does.
        """
        fleet = self._turns.fleet
        for node in fleet.usable("decode"):
            try:
                return await self._ask(node, "GET", "/v1/models", authorization)
            except (NotConnected, Broken):
                continue
        raise no_node("decode", fleet.told())

    async def response(
        self, method: str, path: str, response_id: str, tenant: str, authorization: str | None
    ) -> Response:
        """A stored response, of the decode node that has it.

        Raises:
            RequestFailed: 404 or 502.
        """
        owner = self._turns.handles.owner_of_response(tenant, response_id)
        node = self._turns.fleet.find("decode", owner) if owner else None
        if node is None:
            raise RequestFailed(
                "there is no such response",
                status=404,
                got="an id that this router has not given out",
                allowed="the id of a response that is stored",
                fix="ask the router that served it, soon after",
            )
        try:
            return await self._ask(node, method, path, authorization)
        except (NotConnected, Broken) as error:
            raise engine_failed("decode", node.name, str(error)) from error

    async def _ask(self, node: Node, method: str, path: str, authorization: str | None) -> Response:
        key = self._authorization or authorization
        headers = {} if key is None else {"Authorization": key}
        reply = await self._client.send(
            method, node.url, path, headers=headers, timeout_s=_TIMEOUT_S
        )
        whole = Reply(reply.status, reply.content_type, await reply.read())
        if whole.status >= 400:
            answer = Answer.of_reply(whole)
            body, kind = answer.body, answer.content_type
        else:
            try:
                body, kind = clean_json(whole.body)[0], whole.content_type
            except ValueError as error:
                raise engine_failed("decode", node.name, f"unreadable reply: {error}") from error
        return Response(whole.status, body, {"Content-Type": kind})
