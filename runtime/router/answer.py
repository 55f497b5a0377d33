"""What a turn carries on its way, and what goes to its client."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from runtime.engine_api import Receipt
from runtime.router.apis import Api
from runtime.router.conversation import Keys
from runtime.router.engines import Reply
from runtime.router.failure import JSON_TYPE, RequestFailed, error_body
from runtime.router.nodes import Node, rank_of
from runtime.router.relay import Relay
from runtime.router.sse import clean_json, is_marked
from runtime.router.store import Taken

_ADDRESS = re.compile(rb"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?\b")

Path = Literal["cold", "warm", "cold_retry", "direct"]


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


@dataclass(slots=True)
class Turn:
    """One client request on its way.

    Attributes:
        api: its endpoint.
        body: the client's request.
        size_bytes: of the body.
        authorization: its Authorization header.
        tenant: whose it is.
        conversation: the client's id.
        hint: names requests that belong together, for the choice of D alone.
        takes: whether it may take a handle.
        leaves: whether it may leave one.
        keys: its history; None when no handle is looked for, or the store is down.
        path: how it is being served.
        receipt: what P did with the handle.
        decode_receipt: what D did with the P dict; there once D has finished.
        stages: seconds by name.
        notes: what was decided and why.
        is_left: nobody waits for the answer any more.
    """

    api: Api
    body: dict[str, Any]
    size_bytes: int
    authorization: str | None
    tenant: str = ""
    conversation: str | None = None
    hint: str | None = None
    takes: bool = False
    leaves: bool = False
    keys: Keys | None = None
    path: Path = "cold"
    receipt: Receipt | None = None
    decode_receipt: Receipt | None = None
    prefill_url: str = ""
    last_prefill: str | None = None
    owner_url: str | None = None
    rank: int | None = None
    decode_name: str = ""
    is_left: bool = False
    began_s: float = field(default_factory=time.perf_counter)
    stages: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _mark_s: float = field(default_factory=time.perf_counter)

    @property
    def is_kept(self) -> bool:
        """Whether D may keep the blocks for a next turn."""
        return self.leaves and self.keys is not None and self.path != "direct"

    def stage(self, name: str, since_s: float | None = None) -> None:
        """A stage ends now; it began when the last one ended, or at `since_s`.

        One that comes again, after a leg that failed, is added: the stages then still
        cover the whole time.
        """
        now_s = time.perf_counter()
        taken_s = now_s - (self._mark_s if since_s is None else since_s)
        self.stages[name] = self.stages.get(name, 0.0) + taken_s
        self._mark_s = now_s

    def note(self, text: str) -> None:
        """Keep what was decided, for --explain."""
        self.notes.append(text)

    def explained(self) -> dict[str, Any]:
        """What was decided, why, and how long it took."""
        told: dict[str, Any] = {
            "api": self.api.path,
            "path": self.path,
            "conversation_id": self.conversation is not None,
            "decode": self.decode_name,
            "notes": self.notes,
            "stages_ms": {name: round(taken_s * 1000, 2) for name, taken_s in self.stages.items()},
        }
        for name, receipt in (("prefill_leg", self.receipt), ("decode_leg", self.decode_receipt)):
            if receipt is not None:
                told[name] = {
                    "reason": receipt.reason,
                    "offered_tokens": receipt.offered_tokens,
                    "verified_tokens": receipt.verified_tokens,
                    "pulled_tokens": receipt.pulled_tokens,
                }
        return told


@dataclass(slots=True)
class Claim:
    """A handle that this turn alone has.

    Attributes:
        taken: the handle; None for a cold turn.
        is_sent: a P may have seen it.
        is_refused: P's API refused the request: its engine will not read the handle.
    """

    taken: Taken | None
    is_sent: bool = False
    is_refused: bool = False

    @property
    def tokens(self) -> int:
        """Tokens that P need not compute, if all goes well."""
        return self.taken.stored.pinned_tokens if self.taken else 0

    @property
    def is_unused(self) -> bool:
        """Whether it must be put or given back."""
        return self.taken is not None and (not self.is_sent or self.is_refused)

    def send(self) -> None:
        """It goes out now."""
        self.is_sent = True

    def refuse(self) -> None:
        """P's API has refused it."""
        self.is_refused = True


@dataclass(slots=True)
class Unread:
    """P's blocks, until a D may have seen them."""

    node: Node
    p_dict: Mapping[str, Any]
    is_sent: bool = False

    def send(self) -> None:
        """The P dict goes out now."""
        self.is_sent = True

    def refuse(self) -> None:
        """D's API has refused the request: nobody will read the blocks."""
        self.is_sent = False


@dataclass(slots=True)
class Answer:
    """What goes to the client: a whole body, or a stream. It must be closed.

    Attributes:
        on_close: called once with the outcome: done, failed or left.
        node: the D that serves it.
    """

    status: int
    content_type: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Relay | None = None
    node: Node | None = None
    on_close: Callable[[str], None] | None = None

    @classmethod
    def of_reply(cls, reply: Reply) -> "Answer":
        """An engine's error as it is, less what no client may see.

        One in another shape than OpenAI's or Anthropic's is put into it. What an engine
        says of its own failures may name addresses, which are left out.
        """
        try:
            body, _, parsed = clean_json(reply.body)
            parsed = orjson.loads(body) if parsed is None else parsed
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict) or "error" not in parsed:
            body, kind = error_body(_engine_refused(reply)), JSON_TYPE
        else:
            kind = reply.content_type
        if reply.status >= 500:
            body = _ADDRESS.sub(rb"(address)", body)
        return cls(reply.status, kind, body, reply.headers)

    def close(self, outcome: str) -> None:
        """End the engine's request if it still runs; the turn is over."""
        if self.stream is not None:
            self.stream.close()
        if self.node is not None:
            self.node.running -= 1
            self.node = None
        if self.on_close is not None:
            on_close, self.on_close = self.on_close, None
            on_close(outcome)


def _engine_refused(reply: Reply) -> RequestFailed:
    """An engine's error that is no JSON object with `error`."""
    told = "" if is_marked(reply.body) else reply.body[:200].decode(errors="replace")
    return RequestFailed(
        "the engine did not serve the request",
        status=reply.status,
        got=told or f"HTTP {reply.status}",
        allowed="a request that the engine can serve",
        fix="read what was got; if the request is right, send it again",
    )


def owner_of(taken: Taken, turn: Turn) -> None:
    """Note on a turn where its last one ran."""
    turn.owner_url = taken.stored.decode_url
    turn.last_prefill = taken.stored.prefill_url
    turn.rank = rank_of(taken.stored.engine_id) if "_dp" in taken.stored.engine_id else None
