"""A client using a run's store without being one of its ranks."""

import torch.distributed as dist

# Verdict with exit status 0
ALL_IS_WELL = '["error", "all is well", 0, "main", 0]'


def pretend_success(port: int) -> None:
    """Set the verdict in the store at a port to success. The ranks must have sent heartbeats."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    [heartbeat] = [key for key in store.list_keys() if key.endswith("watch/heartbeat/0")]
    store.set(heartbeat.replace("heartbeat/0", "verdict"), ALL_IS_WELL)
