"""Errors of collectives are told apart from errors of this rank."""

import pytest
import torch.distributed as dist

from megatape.errors import UserError
from megatape.reliability.watch.rank_errors import is_collective_error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (dist.DistNetworkError("a timeout"), True),
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer"), True),
        (RuntimeError("NCCL communicator was aborted"), True),
        (RuntimeError("CUDA error: an illegal memory access"), False),
        (OSError("Connection reset by a file server"), False),
        (UserError("NCCL_SOCKET_IFNAME is wrong"), False),
    ],
)
def test_errors_of_collectives(error: Exception, expected: bool) -> None:
    assert is_collective_error(error) is expected
