"""The network interface over which this host reaches the others."""

import ipaddress
import os
import socket

import psutil

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
ELSEWHERE = "192.0.2.1"  # an address of no network (RFC 5737): the way there is the default route


def address_towards(host: str) -> str:
    """This host's address on the way to `host`; nothing is sent. Raises ValueError if the name is unknown or there is no way."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return probe.getsockname()[0]
    except OSError as error:
        raise ValueError(
            f"no way from {socket.gethostname()} to {host}: {error}; check the host's name and the network"
        ) from None


def interface_of(address: str) -> str:
    """Name of the interface that has `address`. Raises ValueError if none has."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    raise ValueError(f"no network interface of {socket.gethostname()} has the address {address}")


def choose_interface(master: str) -> tuple[str, str]:
    """Name and address of the interface for talking to the other hosts of the run, of which `master` is one.

    It is the one on the way to `master`; on the master itself, whose name may stand for 127.0.0.1, the one of the default
    route. Raises ValueError if there is none but loopback, over which other hosts cannot answer."""
    address = address_towards(master)
    if ipaddress.ip_address(address).is_loopback:
        try:
            address = address_towards(ELSEWHERE)
        except ValueError:
            raise ValueError(
                f"MASTER_ADDR {master} is {address} on {socket.gethostname()}, which other hosts cannot reach, and there is no default "
                "route: set MASTER_ADDR to an address of the network (deepspeed --master_addr ...)"
            ) from None
    return interface_of(address), address


def export_interface(master: str) -> None:
    """Tell gloo and NCCL which interface to use, unless the user did; gloo's own choice is what the host's name stands for, often loopback.

    Raises ValueError as `choose_interface` does, or if the interface that the user chose for gloo is not there."""
    gloo = os.environ.get("GLOO_SOCKET_IFNAME")
    for name in gloo.split(",") if gloo else ():
        if name not in psutil.net_if_addrs():
            raise ValueError(
                f"GLOO_SOCKET_IFNAME is {gloo}: {socket.gethostname()} has no {name}, but {', '.join(sorted(psutil.net_if_addrs()))}"
            )
    if any(variable not in os.environ for variable in VARIABLES):
        name, _ = choose_interface(master)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # = : this very name, not all that begin with it
