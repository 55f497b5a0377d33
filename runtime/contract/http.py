"""HTTP names between clients, the benchmark and the router."""

CONVERSATION_HEADER = "X-Conversation-ID"
"""Names the conversation; only turns that share it share handles."""

SESSION_HEADER = "X-Session-ID"
"""The same, for clients that have this one."""

REQUEST_ID_HEADER = "X-Request-ID"
"""Names the request in the router's log and in its reply; made up when the client gives none."""

TIMING_HEADER = "Server-Timing"
"""Milliseconds of the turn's stages in the router: queue, take, prefill, first_byte."""

REUSE_HEADER = "X-Turnback-Reuse"
"""`off`: this turn takes no handle and leaves none (the benchmark's one-way arm)."""

PIN_HEADER = "X-Turnback-Pin"
"""`off`: the conversation's last turn. It takes a handle, if there is one, and leaves none."""

END_PATH = "/conversations/{id}/end"
"""POST: the conversation is over; its handles are given back."""

REUSE_PATH = "/turnback/reuse"
"""GET and PUT: whether handles are taken and made, for all routers of a store."""

DEBUG_HEADER = "X-Turnback-Debug"
"""`1`: the reply carries the receipts of both legs."""

RECEIPT_HEADER = "X-Turnback-Receipt"
"""JSON of `runtime.engine_api.Receipt`: what the prefill node did with the handle."""

DECODE_RECEIPT_HEADER = "X-Turnback-Decode-Receipt"
"""The same of the decode node; a streamed reply has it as an SSE comment of this name."""

PATH_HEADER = "X-Turnback-Path"
"""How the turn was served: `cold`, `warm`, `cold_retry` after a failed warm leg, or `direct`."""
