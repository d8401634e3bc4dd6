"""A run's store listens only on loopback if the run has one host, and messages of strangers are ignored."""

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist

from megatape.distributed.launch.store import open_store
from megatape.distributed.topology import Topology
from megatape.distributed.values.messages import Messages
from tests.helpers.processes.workers import free_port, run_workers

TIMEOUT = timedelta(seconds=10)


def listening(port: int) -> set[str]:
    """Return the addresses at which this process listens on a port."""
    connections = psutil.Process().net_connections("tcp")
    return {entry.laddr.ip for entry in connections if entry.status == psutil.CONN_LISTEN and entry.laddr.port == port}


@pytest.mark.parametrize(
    ("environment", "topology", "is_loopback"),
    [
        ({"LOCAL_WORLD_SIZE": "2"}, Topology(0, 2, 0, local_size=2), True),
        ({"LOCAL_WORLD_SIZE": "2"}, Topology(0, 4, 0, local_size=2), False),
        ({"SLURM_STEP_NUM_TASKS": "2"}, Topology(0, 2, 0, local_size=2), True),
        ({"MASTER_ADDR": "localhost"}, Topology(0, 2, 0, local_size=2), True),
        ({}, Topology(0, 2, 0, local_size=2), False),
    ],
    ids=["one host", "two hosts", "one host by srun", "by hand on loopback", "by hand"],
)
def test_where_the_store_listens(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], topology: Topology, is_loopback: bool
) -> None:
    """The store listens on all interfaces if ranks may be on several hosts and MASTER_ADDR is not a loopback address."""
    for name in ("LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "TORCHELASTIC_RUN_ID", "CROSS_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    port = free_port()
    monkeypatch.setenv("MASTER_ADDR", "0.0.0.0")
    monkeypatch.setenv("MASTER_PORT", str(port))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(topology, TIMEOUT, wait_for_ranks=False)
    store.set("key", "value")
    addresses = listening(port)
    if is_loopback:
        assert addresses == {"127.0.0.1"}
    else:
        assert addresses & {"::", "0.0.0.0"}


def test_a_single_rank_listens_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs can follow each other in one process, even if another program uses the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(port))
        store = open_store(Topology(0, 1, 0), TIMEOUT)
        store.set("key", "value")
        assert store.get("key") == b"value"
        assert listening(port) == {"127.0.0.1"}, "the server of this test alone"


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the type of torch's error, which the commands handle."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        with pytest.raises(dist.DistNetworkError, match="127.0.0.1 port .*in use"):
            open_store(Topology(0, 2, 0, local_size=2), TIMEOUT)


@pytest.fixture
def store() -> Iterator[Any]:
    yield dist.HashStore()


@pytest.fixture
def signed(store: Any) -> Messages:
    messages = Messages(store, "watch/")
    messages.authenticate(b"secret")
    return messages


def test_messages(store: Any) -> None:
    ranks = [Messages(store, "watch/") for _ in range(2)]
    for secret in (None, b"secret"):
        if secret:
            for rank in ranks:
                rank.authenticate(secret)
        name = f"verdict {secret!r}"
        assert ranks[0].get(name) is None
        assert ranks[0].put_first(name, "rank 0 failed", 2)
        assert not ranks[1].put_first(name, "rank 1 failed", 2)
        ranks[1].put(f"left {secret!r}")
        for rank in ranks:
            assert rank.get(name) == ["rank 0 failed", 2]
            assert rank.get(f"left {secret!r}") == []


@pytest.mark.parametrize("text", ['["all is well", false, 0]', "", "[", "\xff[1]", "0" * 64 + "[1]", "{}", "[" * 100_000])
def test_a_message_of_a_stranger_is_ignored(store: Any, signed: Messages, text: str) -> None:
    """Nor does a stranger's message prevent a rank from writing its own."""
    store.set("watch/verdict", text)
    assert signed.get("verdict") is None
    assert signed.put_first("verdict", "rank 1 failed", 1)
    assert signed.get("verdict") == ["rank 1 failed", 1]


def test_a_signed_message_has_its_name(store: Any, signed: Messages) -> None:
    """A stranger that reads a message cannot store it under another name."""
    signed.put("failure", 1, "gloo: connection lost")
    store.set("watch/verdict", store.get("watch/failure").decode())
    assert signed.get("verdict") is None


def listen(payload: None, topology: Topology) -> list[str]:
    """Return the addresses at which a rank listens, for the store and for the collectives of gloo."""
    dist.barrier()
    connections = psutil.Process(os.getpid()).net_connections("tcp")
    return sorted({entry.laddr.ip for entry in connections if entry.status == psutil.CONN_LISTEN})


def test_ranks_of_one_host_listen_on_loopback_only(tmp_path: Path) -> None:
    results = run_workers("tests.distributed.launch.test_store:listen", 2, None, tmp_path, timeout=90)
    assert results == [["127.0.0.1"], ["127.0.0.1"]]
