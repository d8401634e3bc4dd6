"""Addresses and network interfaces of this host: finding those through which the ranks of a run can reach each other."""

import ipaddress
import os
import socket
import time
from contextlib import suppress

import psutil

from megatape.errors import UserError

# Seconds. A host or container may only get its name some time after starting.
NAME_TIMEOUT = 20.0
INTERFACE_VARS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
# No network has this address (RFC 5737), so the default route leads there.
EXTERNAL_ADDRESS = "192.0.2.1"
MAX_PORT = 2**16 - 1


def check_rendezvous(name_timeout: float = NAME_TIMEOUT) -> None:
    """Check that MASTER_ADDR and MASTER_PORT can be used, before ranks wait for each other for a long time.

    Args:
        name_timeout: Seconds to wait for the host's name to become known.

    Raises:
        UserError: The name stays unknown, or MASTER_PORT is not a port number.
    """
    host = os.environ["MASTER_ADDR"]
    port = os.environ["MASTER_PORT"]
    this_host = socket.gethostname()
    if not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
        raise UserError(f"MASTER_PORT is {port!r} on {this_host}: give all ranks the same port from 1 to {MAX_PORT}")
    deadline = time.monotonic() + name_timeout
    while True:
        try:
            socket.getaddrinfo(host, port)
        except (OSError, UnicodeError) as error:
            # A UnicodeError means that a label in the name has more than 63 characters.
            if time.monotonic() > deadline:
                raise UserError(
                    f"MASTER_ADDR is {host!r}, which {this_host} does not know ({error}): give all ranks the name or address "
                    "of rank 0's host"
                ) from error
            time.sleep(1.0)
        else:
            return


def address_towards(host: str) -> str:
    """Return this host's address on the route to `host`, without sending anything.

    Raises:
        UserError: The name is unknown or has no route.
    """
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return probe.getsockname()[0]
    except OSError as error:
        raise UserError(
            f"no route from {socket.gethostname()} to {host}: {error}; check the host's name and the network"
        ) from None


def interface_of(address: str) -> str:
    """Return the name of the network interface with this address.

    Raises:
        UserError: No interface has it.
    """
    for name, entries in psutil.net_if_addrs().items():
        if any(without_zone(entry.address) == address for entry in entries):
            return name
    raise UserError(f"no network interface of {socket.gethostname()} has the address {address}")


def without_zone(address: str) -> str:
    """Strip the interface from an IPv6 address: fe80::1%eth0 -> fe80::1."""
    return address.partition("%")[0]


def is_loopback(host: str) -> bool:
    """Whether a host name or address only resolves to loopback addresses.

    Raises:
        OSError: The name is unknown.
    """
    addresses = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None)]
    return all(ipaddress.ip_address(without_zone(address)).is_loopback for address in addresses)


def choose_interface(master: str) -> tuple[str, str]:
    """Choose the network interface that reaches the run's other hosts.

    That is the one on the route to the main host. On the main host itself, whose name may resolve to 127.0.0.1, it is the one
    on the default route.

    Args:
        master: Name or address of the main host.

    Returns:
        Name and address of the interface.

    Raises:
        UserError: There is only a loopback interface, which other hosts cannot reach.
    """
    address = address_towards(master)
    if ipaddress.ip_address(address).is_loopback:
        try:
            address = address_towards(EXTERNAL_ADDRESS)
        except UserError:
            raise UserError(
                f"MASTER_ADDR {master} is {address} on {socket.gethostname()}, which other hosts cannot reach, and there is no "
                "default route: set MASTER_ADDR to an address of the network (deepspeed --master_addr ...)"
            ) from None
    return interface_of(address), address


def export_interface(master: str) -> None:
    """Set the network interface of gloo and NCCL, unless the user has set it.

    By default, gloo uses the interface that the host's name resolves to, often the loopback interface.

    Args:
        master: Name or address of the main host.

    Raises:
        UserError: No interface reaches other hosts, or the one chosen by the user for gloo does not exist.
    """
    chosen = os.environ.get("GLOO_SOCKET_IFNAME")
    if chosen:
        _check_interfaces(chosen)
    if any(variable not in os.environ for variable in INTERFACE_VARS):
        name, _ = choose_interface(master)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        # "=" asks for exactly this name. Otherwise NCCL takes it as a prefix.
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def _check_interfaces(chosen: str) -> None:
    """Check that this host has the interfaces in GLOO_SOCKET_IFNAME, a comma-separated list."""
    present = sorted(psutil.net_if_addrs())
    for name in chosen.split(","):
        if name not in present:
            raise UserError(
                f"GLOO_SOCKET_IFNAME is {chosen}: {socket.gethostname()} has no {name}; choose from {', '.join(present)}"
            )


def export_loopback() -> None:
    """Let gloo use the loopback interface, for runs on a single host, unless the user has chosen an interface."""
    # In some containers, no loopback interface is visible.
    with suppress(UserError):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of("127.0.0.1"))


def free_port() -> int:
    """Return an unused port of this host."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
