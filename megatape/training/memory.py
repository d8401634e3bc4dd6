"""Checks a rank's memory before the first step, and explains out-of-memory errors in one line."""

import errno
import re
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import torch

from megatape.accounting.counts import count_parameters
from megatape.accounting.memory import Memory, plan_memory
from megatape.accounting.remedy import smallest_fitting_change
from megatape.config import Config
from megatape.distributed.exchange import exchange
from megatape.distributed.topology import Topology
from megatape.errors import ExitStatus, OutOfMemory
from megatape.reliability.watch import RankFailed
from megatape.utils.units import format_bytes

# Share of the planned activations that a run certainly keeps. Measured peaks are 0.80 to 0.97 of the plan
# (docs/benchmarks.md).
CERTAIN_ACTIVATIONS = 0.75

# A run is only planned before it starts if a rough upper bound of its memory reaches this share of the available memory.
SMALL = 0.25

# Seconds to wait for memory that other processes may be about to free.
PATIENCE = 20.0

# Errors of torch and its libraries that have no type of their own.
MESSAGES = re.compile(r"can't allocate memory|out of memory|not enough memory|bad_alloc|std::bad_array_new_length")


def check_memory(
    config: Config, topology: Topology, measure: Callable[[], float] | None = None, patience: float = PATIENCE
) -> None:
    """Check that every rank has the memory that the run certainly needs. Collective.

    Args:
        config: Configuration of the run.
        topology: All ranks.
        measure: Returns the bytes available to this rank, by default its free memory.
        patience: Seconds to wait for ending processes, such as those of the run's previous start, to free their memory.

    Raises:
        OutOfMemory: The memory of a rank does not suffice. Raised on all ranks.
    """
    if measure is None:
        measure = partial(available_memory, topology.local_size)
    available = measure()
    least = min(exchange(available, topology))
    if _rough_bound(config) < SMALL * least:
        return
    on_gpu = torch.cuda.is_available()
    memory = plan_memory(config, topology.world_size, on_gpu)
    certain = sum(memory.device.values()) - (1 - CERTAIN_ACTIVATIONS) * _activations(memory)
    if not on_gpu:
        certain += sum(memory.host.values())
    if certain <= least:
        return
    if certain <= _capacity(on_gpu, topology.local_size):
        deadline = time.monotonic() + patience
        while available < certain and time.monotonic() < deadline:
            time.sleep(min(1.0, patience))
            available = measure()
    least, holder = min(exchange((available, _holder(on_gpu)), topology))
    if certain <= least:
        return
    error = OutOfMemory(
        f"the run needs at least {format_bytes(certain)} of memory a rank, and {format_bytes(least)} are free on {holder}: "
        f"{_remedy(config, topology.world_size, on_gpu, least)}"
    )
    error.everywhere = True
    raise error


@contextmanager
def memory_errors(config: Config, topology: Topology, steps: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Convert the block's errors about exhausted memory to OutOfMemory, with a message based on the plan.

    Args:
        config: Configuration of the run.
        topology: All ranks.
        steps: Returns the number of steps made by this process. After the first one the error counts as a death, so that the
            run is restarted while it advances.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        made = steps()
        raised = OutOfMemory(_explain(config, topology, made))
        if made:
            raised.status = ExitStatus.DIED
        raise raised from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of a GPU or of this rank's host is exhausted.

    RankFailed has the text of another rank's error, which that rank reports itself.
    """
    if isinstance(error, OutOfMemory | RankFailed):
        return False
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and bool(MESSAGES.search(str(error)))


def available_memory(local_ranks: int) -> float:
    """Return the bytes that this rank can still allocate: on its GPU, or as its share of the host's memory.

    Args:
        local_ranks: Number of ranks on this host.
    """
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return float(free + torch.cuda.memory_reserved())
    return min(host_memory() / local_ranks, _address_space())


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


def _rough_bound(config: Config) -> float:
    """Return an upper bound of a rank's memory in bytes, without tracing the model."""
    model = config.model
    tokens = config.training.micro_batch_size * config.data.sequence_length
    widths = model.num_layers * (20 * model.hidden_size + 8 * model.mlp_size) + 8 * model.vocab_size
    return 40.0 * count_parameters(model).total + 8.0 * tokens * widths


def _activations(memory: Memory) -> float:
    """Return the planned bytes that belong to a micro-batch."""
    return sum(memory.device[part] for part in ("activations", "position encoding", "largest temporary"))


def _explain(config: Config, topology: Topology, made: int) -> str:
    """Describe exhausted memory in one line: where and when, the plan, and a remedy."""
    on_gpu = torch.cuda.is_available()
    when = "before the end of the first step"
    if made:
        when = f"in step {made + 1} of this process"
    text = f"out of memory {when}, on {_holder(on_gpu)}"
    with suppress(MemoryError, RuntimeError, OSError):  # planning needs host memory, too
        memory = plan_memory(config, topology.world_size, on_gpu)
        largest = max(memory.device, key=lambda part: memory.device[part])
        total = _capacity(on_gpu, topology.local_size)
        text += (
            f" with {format_bytes(total)} a rank: the plan counts {format_bytes(memory.device_total)}, most of it {largest} "
            f"({format_bytes(memory.device[largest])})"
        )
        return f"{text}: {_remedy(config, topology.world_size, on_gpu, min(total, memory.device_total))}"
    return f"{text}: lower training.micro_batch_size, or ask megatape plan"


def _capacity(on_gpu: bool, local_ranks: int) -> float:
    """Return the bytes of this rank's GPU, or its share of the host's."""
    if on_gpu:
        _, total = torch.cuda.mem_get_info()
        return float(total)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    share = host_capacity() / local_ranks
    if limit == resource.RLIM_INFINITY:
        return share
    return min(share, float(limit))


def _holder(on_gpu: bool) -> str:
    """Return the name of the device that has this rank's memory."""
    host = socket.gethostname()
    if on_gpu:
        return f"a {torch.cuda.get_device_name()} of host {host}"
    return f"host {host}"


def _remedy(config: Config, world_size: int, on_gpu: bool, available: float) -> str:
    """Return the smallest change that fits, as options of the command line."""
    found = smallest_fitting_change(config, world_size, on_gpu, available)
    if found is None:
        return "use more ranks, or settings that megatape plan --search finds"
    changes, memory = found
    options = " ".join(f"--set {key}={value}" for key, value in changes.items())
    return f"{options} needs {format_bytes(memory.device_total)}"
