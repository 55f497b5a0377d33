"""The four client APIs that the router serves over the same two legs."""

from runtime.router.apis.api import Api, Body
from runtime.router.apis.chat import CHAT
from runtime.router.apis.completions import COMPLETIONS
from runtime.router.apis.messages import MESSAGES
from runtime.router.apis.responses import RESPONSES

APIS: dict[str, Api] = {api.path: api for api in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)}
"""By path."""

__all__ = ["APIS", "CHAT", "Api", "Body"]
