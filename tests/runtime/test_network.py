"""The network interface to other hosts."""

import socket

import psutil
import pytest

from megatape.runtime import network
from megatape.runtime.network import address_towards, choose_interface, export_interface, interface_of


def loopback() -> str:
    """Name of this machine's loopback interface."""
    return next(name for name, entries in psutil.net_if_addrs().items() if "127.0.0.1" in [entry.address for entry in entries])


def test_loopback() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == loopback()


def test_unknown_host() -> None:
    with pytest.raises(ValueError, match="no route from .* to no-such-host.invalid"):
        address_towards("no-such-host.invalid")


def test_master_named_by_a_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on hosts whose own name means 127.0.1.1: takes the default route's interface, or an error says what to set."""
    addresses = {"master": "127.0.1.1", network.ELSEWHERE: "10.1.2.3"}
    monkeypatch.setattr(network, "address_towards", addresses.__getitem__)
    monkeypatch.setattr(network, "interface_of", {"10.1.2.3": "eth7"}.__getitem__)
    assert choose_interface("master") == ("eth7", "10.1.2.3")
    monkeypatch.undo()

    def no_route(host: str) -> str:
        if host == network.ELSEWHERE:
            raise ValueError("no way")
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
