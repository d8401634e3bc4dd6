"""Which GPU a rank takes."""

import pytest

from megatape.parallel.engine import _device_number
from megatape.parallel.topology import Topology


def test_device_of_a_local_rank() -> None:
    topology = Topology(5, 8, 1, local_size=4)
    assert _device_number(topology, visible=4) == 1
    assert _device_number(topology, visible=1) == 0  # the scheduler shows each rank its own
    with pytest.raises(ValueError, match="8 ranks on .*, which shows 4 GPUs"):
        _device_number(Topology(5, 8, 5, local_size=8), visible=4)
