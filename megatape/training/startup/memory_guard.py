"""Checks a rank's memory before the first step, and explains out-of-memory errors in one line."""

import errno
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from megatape.accounting.fitting_change import Changes
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory import plan_memory
from megatape.accounting.memory_parts import Memory, MemoryPart
from megatape.accounting.parameters import count_parameters
from megatape.distributed.exchange import gather_values
from megatape.distributed.topology import Topology
from megatape.errors import ExitStatus, OutOfMemory
from megatape.reliability.watch.rank_errors import RankFailed
from megatape.training.startup.available_memory import available_memory, memory_capacity
from megatape.utils.units import format_bytes

# Share of the planned activations that a run certainly keeps. Measured peaks are 0.80 to 0.97 of the plan
# (docs/benchmarks.md).
CERTAIN_ACTIVATIONS = 0.75

# Parts of the plan that are estimates.
ACTIVATION_PARTS = (MemoryPart.ACTIVATIONS, MemoryPart.POSITION_ENCODING, MemoryPart.LARGEST_TEMPORARY)

# A run is only planned before it starts if a rough upper bound of its memory reaches this share of the available memory.
SMALL = 0.25

# Seconds to wait for memory that other processes may be about to free.
PATIENCE = 20.0

# Errors of torch and its libraries that have no type of their own.
MESSAGES = re.compile(r"can't allocate memory|out of memory|not enough memory|bad_alloc|std::bad_array_new_length")


class MemoryGuard:
    """Checks and explains the memory of a run.

    Args:
        topology: All ranks.
        layout: Returns the layout of the run. Raises UserError if its batches do not divide evenly.
        find_change: Returns the smallest change of settings that fits, and the memory planned with it, or None. Its arguments
            are whether the run uses GPUs, and the bytes available to a rank.
        measure: Returns the bytes available to this rank, by default its free memory.
        patience: Seconds to wait for ending processes, such as those of the run's previous start, to free their memory.
    """

    def __init__(
        self,
        topology: Topology,
        layout: Callable[[], TrainingLayout],
        find_change: Callable[[bool, float], tuple[Changes, Memory] | None],
        measure: Callable[[], float] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._topology = topology
        self._layout = layout
        self._find_change = find_change
        self._measure = measure or (lambda: available_memory(topology.local_size))
        self._patience = patience
        self._on_gpu = torch.cuda.is_available()

    def check(self) -> None:
        """Check that every rank has the memory that the run certainly needs. Collective.

        Raises:
            OutOfMemory: The memory of a rank does not suffice. Raised on all ranks.
        """
        available = self._measure()
        least = min(gather_values(available, self._topology))
        if self._rough_bound() < SMALL * least:
            return
        certain = self._certain_bytes()
        if certain <= least:
            return
        if certain <= memory_capacity(self._topology.local_size):
            available = self._wait_for(certain, available)
        least, holder = min(gather_values((available, self._holder()), self._topology))
        if certain <= least:
            return
        error = OutOfMemory(
            f"the run needs at least {format_bytes(certain)} of memory a rank, and {format_bytes(least)} are free on {holder}: "
            f"{self._remedy(least)}"
        )
        error.everywhere = True
        raise error

    @contextmanager
    def explained_errors(self, steps: Callable[[], int] = lambda: 0) -> Iterator[None]:
        """Convert the block's errors about exhausted memory to OutOfMemory, with a message based on the plan.

        Args:
            steps: Returns the number of steps made by this process. After the first one the error counts as a death, so that
                the run is restarted while it advances.
        """
        try:
            yield
        except (MemoryError, RuntimeError, OSError) as error:
            if not is_out_of_memory(error):
                raise
            num_steps = steps()
            explained = OutOfMemory(self._explain(num_steps))
            if num_steps:
                explained.status = ExitStatus.DIED
            raise explained from error

    def _rough_bound(self) -> float:
        """Return an upper bound of a rank's memory in bytes, without tracing the model."""
        workload = self._layout().workload
        model = workload.model
        tokens = workload.micro_batch_size * workload.sequence_length
        widths = model.num_layers * (20 * model.hidden_size + 8 * model.mlp_size) + 8 * model.vocab_size
        return 40.0 * count_parameters(model).total + 8.0 * tokens * widths

    def _certain_bytes(self) -> float:
        """Return the bytes that the run certainly needs on this rank's device or, on a CPU, in total."""
        memory = self._plan()
        activations = sum(memory.device[part] for part in ACTIVATION_PARTS)
        certain = memory.device_total - (1 - CERTAIN_ACTIVATIONS) * activations
        if not self._on_gpu:
            certain += memory.host_total
        return certain

    def _wait_for(self, needed: float, available: float) -> float:
        """Wait until enough memory is available, or patience ends. Returns the bytes that are available then.

        Args:
            needed: Bytes to wait for.
            available: Bytes available now.
        """
        deadline = time.monotonic() + self._patience
        while available < needed and time.monotonic() < deadline:
            time.sleep(min(1.0, self._patience))
            available = self._measure()
        return available

    def _plan(self) -> Memory:
        """Return the planned memory of a rank."""
        return plan_memory(self._layout(), self._on_gpu)

    def _explain(self, num_steps: int) -> str:
        """Describe exhausted memory in one line: where and when, the plan, and a remedy.

        Args:
            num_steps: Number of steps made by this process.
        """
        when = "before the end of the first step"
        if num_steps:
            when = f"in step {num_steps + 1} of this process"
        text = f"out of memory {when}, on {self._holder()}"
        # Planning needs host memory as well.
        with suppress(MemoryError, RuntimeError, OSError):
            memory = self._plan()
            largest = max(memory.device, key=lambda part: memory.device[part])
            total = memory_capacity(self._topology.local_size)
            text += f" with {format_bytes(total)} a rank: the plan counts {format_bytes(memory.device_total)}, "
            text += f"most of it {largest.value} ({format_bytes(memory.device[largest])})"
            return f"{text}: {self._remedy(min(total, memory.device_total))}"
        return f"{text}: lower training.micro_batch_size, or ask megatape plan"

    def _holder(self) -> str:
        """Return the name of the device that has this rank's memory."""
        host = socket.gethostname()
        if self._on_gpu:
            return f"a {torch.cuda.get_device_name()} of host {host}"
        return f"host {host}"

    def _remedy(self, available: float) -> str:
        """Return the smallest change that fits, as options of the command line.

        Args:
            available: Bytes available to a rank.
        """
        found = self._find_change(self._on_gpu, available)
        if found is None:
            return "use more ranks, or settings that megatape plan --search finds"
        changes, memory = found
        options = " ".join(f"--set {key}={value}" for key, value in changes.items())
        return f"{options} needs {format_bytes(memory.device_total)}"


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
