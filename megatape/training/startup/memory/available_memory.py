"""Measures the memory available to a rank: on its GPU, or its share of the host's, within the limits of control groups."""

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch


class ControlGroup(NamedTuple):
    """Memory files of a control group.

    Attributes:
        folder: Folder of the group.
        limit: Name of the file with its limit.
        usage: Name of the file with its usage.
        prefix: Prefix of statistics that include the groups below it.
    """

    folder: Path
    limit: str
    usage: str
    prefix: str


def available_memory(local_ranks: int) -> float:
    """Return the bytes that this rank can still allocate: on its GPU, or its share of the host's with `local_ranks` ranks."""
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return float(free + torch.cuda.memory_reserved())
    return min(host_memory() / local_ranks, _address_space())


def memory_capacity(local_ranks: int) -> float:
    """Return the bytes of this rank's GPU, or its share of the host's memory with `local_ranks` ranks."""
    if torch.cuda.is_available():
        _, total = torch.cuda.mem_get_info()
        return float(total)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    share = host_capacity() / local_ranks
    if limit == resource.RLIM_INFINITY:
        return share
    return min(share, float(limit))


def host_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the bytes that this host's processes can still allocate, including swap, within the limits of control groups.

    Args:
        proc: Mount point of procfs.
        groups: Mount point of control groups, version 1 or 2.
    """
    fields = _meminfo(proc)
    free = float(fields["MemAvailable"] + fields.get("SwapFree", 0))
    for group in _memory_groups(proc, groups):
        # The limit is the text "max" if there is none.
        with suppress(OSError, ValueError):
            limit = int((group.folder / group.limit).read_text())
            usage = int((group.folder / group.usage).read_text())
            free = min(free, max(0, limit - usage + _cached_bytes(group)))
    return free


def host_capacity(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the bytes of this host's memory, or the smallest limit of a control group. See `host_memory`."""
    capacity = float(_meminfo(proc)["MemTotal"])
    for group in _memory_groups(proc, groups):
        with suppress(OSError, ValueError):
            capacity = min(capacity, int((group.folder / group.limit).read_text()))
    return capacity


def _meminfo(proc: Path) -> dict[str, int]:
    """Return field -> bytes in /proc/meminfo."""
    fields = {}
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    return fields


def _memory_groups(proc: Path, groups: Path) -> Iterator[ControlGroup]:
    """Yield this process's control groups and those above them."""
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            innermost = Path(path.lstrip("/"))
            for group in (innermost, *innermost.parents):
                if not controllers:
                    yield ControlGroup(groups / group, limit="memory.max", usage="memory.current", prefix="")
                elif "memory" in controllers.split(","):
                    folder = groups / "memory" / group
                    yield ControlGroup(folder, limit="memory.limit_in_bytes", usage="memory.usage_in_bytes", prefix="total_")


def _cached_bytes(group: ControlGroup) -> int:
    """Return the bytes of a control group's page cache, which the kernel frees when memory is short."""
    names = (f"{group.prefix}inactive_file", f"{group.prefix}active_file")
    total = 0
    with suppress(OSError):
        for line in (group.folder / "memory.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key in names:
                total += int(value)
    return total


def _address_space() -> float:
    """Return the bytes of address space that this process can still allocate (ulimit -v)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return float("inf")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return float(max(0, limit - pages * resource.getpagesize()))
