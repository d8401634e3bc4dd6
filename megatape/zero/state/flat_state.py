"""Optimizer state for this rank's flat tensors."""

from collections.abc import Collection

import torch

from megatape.config import OptimizerConfig
from megatape.errors import UserError
from megatape.registry import OPTIMIZERS
from megatape.zero.stages.stage import ZeroStage
from megatape.zero.state.kinds import EMA


class FlatState:
    """Optimizer state for a stage's flat tensors, which the optimizer updates element by element.

    Args:
        optimizer: Optimizer given to DeepSpeed.
        stage: ZeRO stage.
        config: Optimizer configuration.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, stage: ZeroStage, config: OptimizerConfig) -> None:
        self._optimizer = optimizer
        self._stage = stage
        self._optimizer_name = config.kind
        self._has_average = bool(config.ema_decay)
        entry = OPTIMIZERS[config.kind]
        self._kinds = entry.state
        self._counts_steps = entry.counts_steps

    def create_missing(self, flats_of_matrices: Collection[int]) -> None:
        """Create missing state as zeros, and set the moving averages to zero.

        Args:
            flats_of_matrices: `id` of each flat tensor with whole matrices. MatrixState has their state.
        """
        for flat in self._stage.flats():
            state = self._optimizer.state[flat]
            if not state and id(flat) not in flats_of_matrices:
                for kind in self._kinds:
                    state[kind] = torch.zeros_like(flat)
                if self._counts_steps:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
            if self._has_average:
                state[EMA] = torch.zeros_like(flat)

    def set_step(self, step: int) -> None:
        """Set the optimizer's step count."""
        if not self._counts_steps:
            return
        for state in self._optimizer.state.values():
            # Flat tensors of whole matrices have no step count.
            if "step" in state:
                state["step"].fill_(step)

    def check_registered(self, kinds: Collection[str]) -> None:
        """Check that the optimizer keeps no state that checkpoints do not store. A resumed run would lose it.

        Args:
            kinds: Tensor kinds in checkpoints.

        Raises:
            UserError: The optimizer keeps state that its registry entry does not name.
        """
        stored = set(kinds)
        if self._counts_steps:
            stored.add("step")
        present: set[str] = set()
        for flat in self._stage.flats():
            present.update(self._optimizer.state[flat])
        lost = sorted(present - stored)
        if lost:
            raise UserError(
                f"optimizer {self._optimizer_name} keeps {', '.join(lost)}, which checkpoints would not have: name tensors in "
                "`state` of its OptimizerEntry, as torch's state_dict does, and set `counts_steps` if it keeps `step`"
            )
