"""Rendezvous address of the ranks, and the network interface that reaches other hosts."""

import ipaddress
import os
import resource
import socket
import time

import psutil

from megatape.errors import UserError

NAME_TIMEOUT = 20.0  # seconds; a host or container that is just starting may get its name later
MIN_OPEN_FILES = 128  # the smallest run of two ranks has 40; each further rank and each shard is one more
INTERFACE_VARS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
EXTERNAL_ADDRESS = "192.0.2.1"  # belongs to no network (RFC 5737), so the default route leads there


def check_rendezvous() -> None:
    """Check that this process can reach MASTER_ADDR, before ranks wait for each other for long.

    Raises:
        UserError: The name stays unknown for NAME_TIMEOUT, MASTER_PORT is no port, or this process
            may open fewer than MIN_OPEN_FILES, sockets included.
    """
    host, port, here = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], socket.gethostname()
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"MASTER_PORT is {port!r} on {here}: give all ranks the same port from 1 to {2**16 - 1}")
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if num_files != resource.RLIM_INFINITY and num_files < MIN_OPEN_FILES:
        raise UserError(
            f"this process may open only {num_files} files and sockets on {here}: a rank needs {MIN_OPEN_FILES} or more; raise "
            "the limit, such as by `ulimit -n 4096`"
        )
    deadline = time.monotonic() + NAME_TIMEOUT
    while True:
        try:
            socket.getaddrinfo(host, port)
        except (OSError, UnicodeError) as error:  # the latter for a label of more than 63 characters
            if time.monotonic() > deadline:
                raise UserError(
                    f"MASTER_ADDR is {host!r}, which {here} does not know ({error}): give all ranks the name or address of "
                    "rank 0's host"
                ) from error
            time.sleep(1.0)
        else:
            return


def address_towards(host: str) -> str:
    """Address of this host on the route to `host`. Nothing is sent.

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
    """Name of the interface with this address. Raises UserError if there is none."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    raise UserError(f"no network interface of {socket.gethostname()} has the address {address}")


def choose_interface(master: str) -> tuple[str, str]:
    """Choose the interface that reaches the other hosts of the run.

    It is the one on the route to the main host; on that host itself, whose name may resolve to
    127.0.0.1, the one of the default route.

    Args:
        master: Name or address of the main host.

    Returns:
        Name and address of the interface.

    Raises:
        UserError: There is only loopback, which other hosts cannot reach.
    """
    address = address_towards(master)
    if ipaddress.ip_address(address).is_loopback:
        try:
            address = address_towards(EXTERNAL_ADDRESS)
        except ValueError:
            raise UserError(
                f"MASTER_ADDR {master} is {address} on {socket.gethostname()}, which other hosts cannot reach, and there is no "
                "default route: set MASTER_ADDR to an address of the network (deepspeed --master_addr ...)"
            ) from None
    return interface_of(address), address


def export_interface(master: str) -> None:
    """Set the interface of gloo and NCCL unless the user did.

    Gloo would use the one of the host's name, often loopback.

    Args:
        master: Name or address of the main host.

    Raises:
        UserError: No interface reaches other hosts, or the one that the user chose for gloo does
            not exist.
    """
    gloo = os.environ.get("GLOO_SOCKET_IFNAME")
    for name in gloo.split(",") if gloo else ():
        if name not in psutil.net_if_addrs():
            raise UserError(
                f"GLOO_SOCKET_IFNAME is {gloo}: {socket.gethostname()} has no {name}; choose from "
                f"{', '.join(sorted(psutil.net_if_addrs()))}"
            )
    if any(variable not in os.environ for variable in INTERFACE_VARS):
        name, _ = choose_interface(master)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # "=": exactly this name, not a prefix
