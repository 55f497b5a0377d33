"""Worker half of the verified connector."""

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

from runtime.vllm_plugin.scheduler import RELEASED


class ReleasingWorker(NixlPullConnectorWorker):
    """The stock worker; a released request ends like one that was read.

    Source: vLLM 0.32 and 0.33, nixl/base_worker.py, `_reap_expired_send_leases`, which
    would log each as expired and count it in `vllm:nixl_num_kv_expired_reqs`.
    """

    def _reap_expired_send_leases(self, done_sending: set[str]) -> None:
        released = [key for key, deadline in self._reqs_to_send.items() if deadline == RELEASED]
        for request_id in released:
            self.consumer_notification_counts_by_req.pop(request_id, None)
            self.expected_consumer_notifications_by_req.pop(request_id, None)
            self._reqs_to_process.remove(request_id)
            del self._reqs_to_send[request_id]
            done_sending.add(request_id)
        super()._reap_expired_send_leases(done_sending)
