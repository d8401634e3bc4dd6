"""Lists of hosts in Slurm's notation."""

import pytest

from megatape.distributed.launch.slurm import first_host


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-2]", "n1"),
        ("gpu[007,009-012],login", "gpu007"),
        ("rack[1-2]-n[01-04]", "rack1-n01"),
        ("n[3,5-6]-ib.cluster.org,m1", "n3-ib.cluster.org"),
        ("login-2,n[1-4]", "login-2"),
    ],
)
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host
