"""vLLM's own pull connector, for the negative control: only its threads are made to rest.

Without that both engines of a pair burn the same core while idle, and the control takes
minutes to show what it shows.
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector

from runtime.vllm_plugin.manners import sharing_cores


class NixlConnector(NixlPullConnector):
    """Stock scheduler half, stock worker half."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        with sharing_cores():
            super().__init__(vllm_config, role, kv_cache_config)
