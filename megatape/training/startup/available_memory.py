"""Measures the memory that a rank can use: on its GPU, or its share of the host's within the limits of control groups."""

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch


def available_memory(local_ranks: int) -> float:
    """Return the bytes that this rank can still allocate: on its GPU, or as its share of the host's memory.

    Args:
        local_ranks: Number of ranks on this host.
    """
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return float(free + torch.cuda.memory_reserved())
    return min(host_memory() / local_ranks, _address_space())


def memory_capacity(local_ranks: int) -> float:
    """Return the bytes of this rank's GPU, or its share of the host's memory.

    Args:
        local_ranks: Number of ranks on this host.
    """
    if torch.cuda.is_available():
        _, total = torch.cuda.mem_get_info()
        return float(total)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    share = host_capacity() / local_ranks
    if limit == resource.RLIM_INFINITY:
        return share
    return min(share, float(limit))


def host_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the bytes that processes can still allocate on this host, including swap, within the limits of control groups.

    Args:
        proc: Mount point of procfs.
        groups: Mount point of control groups, version 1 or 2.
    """
    fields = _meminfo(proc)
    free = float(fields["MemAvailable"] + fields.get("SwapFree", 0))
    for folder, limit, used, prefix in _memory_groups(proc, groups):
        with suppress(OSError, ValueError):
            maximum = int((folder / limit).read_text())  # "max" if there is no limit
            usage = int((folder / used).read_text())
            free = min(free, max(0, maximum - usage + _cached(folder, prefix)))
    return free


def host_capacity(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the bytes of this host's memory, or of the smallest limit of a control group. Arguments as for `host_memory`."""
    capacity = float(_meminfo(proc)["MemTotal"])
    for folder, limit, _, _ in _memory_groups(proc, groups):
        with suppress(OSError, ValueError):
            capacity = min(capacity, int((folder / limit).read_text()))
    return capacity


def _meminfo(proc: Path) -> dict[str, int]:
    """Return the bytes of each field of /proc/meminfo."""
    fields = {}
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    return fields


def _memory_groups(proc: Path, groups: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Yield the control groups of this process and those above: folder, files of limit and usage, prefix of statistics."""
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            folder = Path(path.lstrip("/"))
            for group in (folder, *folder.parents):
                if not controllers:
                    yield groups / group, "memory.max", "memory.current", ""
                elif "memory" in controllers.split(","):
                    files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
                    yield groups / "memory" / group, *files


def _cached(folder: Path, prefix: str) -> int:
    """Return the bytes of a control group's page cache, which the kernel frees when memory is short.

    Args:
        folder: Folder of the control group.
        prefix: Prefix of the names in its statistics that include the groups below it.
    """
    names = (f"{prefix}inactive_file", f"{prefix}active_file")
    total = 0
    with suppress(OSError):
        for line in (folder / "memory.stat").read_text().splitlines():
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
