"""Network interfaces to other hosts, and the rendezvous that ranks must reach."""

import socket

import psutil
import pytest

from megatape.distributed.launch import network
from megatape.distributed.launch.network import (
    address_towards,
    check_rendezvous,
    choose_interface,
    export_interface,
    interface_of,
)
from megatape.errors import UserError


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of rendezvous and interfaces. Changes by a test are undone after it."""
    for name in ("MASTER_ADDR", "MASTER_PORT", *network.INTERFACE_VARS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def loopback() -> str:
    """Return the name of this machine's loopback interface."""
    return next(name for name, entries in psutil.net_if_addrs().items() if "127.0.0.1" in [entry.address for entry in entries])


def test_loopback() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == loopback()


def test_unknown_host() -> None:
    with pytest.raises(ValueError, match="no route from .* to no-such-host.invalid"):
        address_towards("no-such-host.invalid")


def test_master_named_by_a_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some hosts resolve their own name to 127.0.1.1. The default route's interface is used, or an error says what to set."""
    addresses = {"master": "127.0.1.1", network.EXTERNAL_ADDRESS: "10.1.2.3"}
    monkeypatch.setattr(network, "address_towards", addresses.__getitem__)
    monkeypatch.setattr(network, "interface_of", {"10.1.2.3": "eth7"}.__getitem__)
    assert choose_interface("master") == ("eth7", "10.1.2.3")
    monkeypatch.undo()

    def no_route(host: str) -> str:
        if host == network.EXTERNAL_ADDRESS:
            raise UserError("no way")
        return "127.0.1.1"

    monkeypatch.setattr(network, "address_towards", no_route)
    with pytest.raises(ValueError, match=f"MASTER_ADDR master is 127.0.1.1 on {socket.gethostname()}.*--master_addr"):
        choose_interface("master")


def test_the_users_interface_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback())
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib")
    export_interface("no-such-host.invalid")  # asks for no way
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth99")
    with pytest.raises(ValueError, match="GLOO_SOCKET_IFNAME is eth99.*has no eth99"):
        export_interface("127.0.0.1")


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Return an environment in which ranks can meet."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    check_rendezvous()
    return monkeypatch


@pytest.mark.parametrize("host", ["no-such-host.invalid", "", "a" * 64])
def test_an_address_that_nobody_knows(meeting: pytest.MonkeyPatch, host: str) -> None:
    meeting.setenv("MASTER_ADDR", host)
    with pytest.raises(UserError, match=f"MASTER_ADDR is '{host}', which .* does not know"):
        check_rendezvous(name_timeout=0.0)


def test_a_name_that_is_known_a_little_later(meeting: pytest.MonkeyPatch) -> None:
    """A container that starts at the same time has such a name."""
    answers = iter([socket.gaierror(socket.EAI_NONAME, "not known"), socket.gaierror(socket.EAI_AGAIN, "try again"), None])
    waits: list[float] = []

    def resolve(*_: object) -> None:
        if answer := next(answers):
            raise answer

    meeting.setattr("socket.getaddrinfo", resolve)
    meeting.setattr("time.sleep", waits.append)
    check_rendezvous(name_timeout=60.0)
    assert len(waits) == 2


@pytest.mark.parametrize("port", ["abc", "-1", "0", "99999", ""])
def test_a_port_that_is_none(meeting: pytest.MonkeyPatch, port: str) -> None:
    meeting.setenv("MASTER_PORT", port)
    with pytest.raises(UserError, match=f"MASTER_PORT is '{port}' on .*from 1 to 65535"):
        check_rendezvous()
