"""HTTP names between clients, the benchmark and the router."""

CONVERSATION_HEADER = "X-Conversation-ID"
"""Names the conversation; the router keeps the latest handle under it."""

REUSE_HEADER = "X-Turnback-Reuse"
"""`off`: this turn takes no handle and leaves none (the benchmark's one-way arm)."""

PIN_HEADER = "X-Turnback-Pin"
"""`off`: the conversation's last turn. It takes a handle, if there is one, and leaves none."""

END_PATH = "/conversations/{id}/end"
"""POST: the conversation is over; its handle is given back."""

DEBUG_HEADER = "X-Turnback-Debug"
"""`1`: the reply carries RECEIPT_HEADER and PATH_HEADER."""

RECEIPT_HEADER = "X-Turnback-Receipt"
"""JSON of `runtime.engine_api.Receipt`: what the prefill node did with the handle."""

DECODE_RECEIPT_HEADER = "X-Turnback-Decode-Receipt"
"""The same of the decode node; a streamed reply has it as an SSE comment of this name."""

PATH_HEADER = "X-Turnback-Path"
"""How the turn was served: `cold`, `warm`, `cold_retry` after a failed warm leg, or `direct`."""
