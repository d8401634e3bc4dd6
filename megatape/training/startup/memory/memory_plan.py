"""Memory plan of a run, and the smallest change of settings that makes it fit."""

import socket
from collections.abc import Callable

import torch

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.memory_parts import Memory, MemoryPart
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import SettingValues, set_options
from megatape.distributed.topology import Topology
from megatape.utils.text.units import format_bytes

# Share of the planned activations that is certainly needed. Measured peaks are 0.80 to 0.97 of the plan
# (docs/benchmarks.md).
CERTAIN_ACTIVATIONS = 0.75

# Generous factors of `MemoryPlan.rough_bound`. Weights, gradients and optimizer state of a parameter, with copies.
BYTES_PER_PARAMETER = 40.0
# Numbers that a block has for each token, as multiples of the hidden size and the MLP's size, and their bytes.
HIDDEN_WIDTHS = 20
MLP_WIDTHS = 8
BYTES_PER_NUMBER = 8.0
# Numbers that the loss has for each token, as multiples of the vocabulary size.
VOCABULARY_WIDTHS = 8

# Parts of the plan that are estimates.
ACTIVATION_PARTS = (MemoryPart.ACTIVATIONS, MemoryPart.POSITION_ENCODING, MemoryPart.LARGEST_TEMPORARY)


class MemoryPlan:
    """Planned memory of a rank. Planning takes a while, so everything is computed on request.

    Args:
        topology: All ranks.
        layout: Returns the training layout. Raises UserError if batches do not divide evenly.
        find_change: Returns the smallest change of settings that fits and its planned memory, or None. Its arguments are
            whether the run uses GPUs, and the bytes available to a rank.

    Attributes:
        topology: All ranks.
    """

    def __init__(
        self,
        topology: Topology,
        layout: Callable[[], TrainingLayout],
        find_change: Callable[[bool, float], tuple[SettingValues, Memory] | None],
    ) -> None:
        self.topology = topology
        self._layout = layout
        self._find_change = find_change
        self._on_gpu = torch.cuda.is_available()

    def memory(self) -> Memory:
        """Return the planned memory of a rank."""
        return plan_memory(self._layout(), self._on_gpu)

    def rough_bound(self) -> float:
        """Return an upper bound of a rank's memory in bytes, without tracing the model."""
        workload = self._layout().workload
        model = workload.model
        tokens = workload.micro_batch_size * workload.sequence_length
        numbers_per_block = HIDDEN_WIDTHS * model.hidden_size + MLP_WIDTHS * model.mlp_size
        numbers_per_token = model.num_layers * numbers_per_block + VOCABULARY_WIDTHS * model.vocab_size
        parameters = BYTES_PER_PARAMETER * count_parameters(model).total
        return parameters + BYTES_PER_NUMBER * tokens * numbers_per_token

    def certain_bytes(self) -> float:
        """Return the bytes certainly needed on this rank's device or, on a CPU, in total."""
        memory = self.memory()
        activations = sum(memory.device[part] for part in ACTIVATION_PARTS)
        certain = memory.device_total - (1 - CERTAIN_ACTIVATIONS) * activations
        # Without the memory for graphs, a run continues without them, or ends when it records them.
        certain -= memory.device.get(MemoryPart.CUDA_GRAPHS, 0.0)
        if not self._on_gpu:
            certain += memory.host_total
        return certain

    def device_name(self) -> str:
        """Return the name of this rank's device and host."""
        host = socket.gethostname()
        if self._on_gpu:
            return f"a {torch.cuda.get_device_name()} of host {host}"
        return f"host {host}"

    def remedy(self, available: float) -> str:
        """Return the smallest change that fits into this many bytes per rank, as command-line options."""
        fitting_change = self._find_change(self._on_gpu, available)
        if fitting_change is None:
            return "use more ranks, or settings that megatape plan --search finds"
        changes, memory = fitting_change
        return f"{set_options(changes)} needs {format_bytes(memory.device_total)}"
