"""Float32 master weights and AdamW moments as DeepSpeed ZeRO holds them, seen as slices of whole parameters.

Initialization, checkpoints and export go through this view, which is the same for every stage: for each parameter a rank owns
one contiguous piece [start, start + size) of the flattened tensor. The layouts below are internals of the pinned DeepSpeed
version; tests/parallel/test_zero_state.py fails if they change.
"""

from collections.abc import Callable
from typing import Any

import deepspeed
import torch
from torch import Tensor

WEIGHT = "weight"
MOMENTS = ("exp_avg", "exp_avg_sq")
KINDS = (WEIGHT, *MOMENTS)

# Reads the elements [start, stop) of a flattened parameter: (kind, name, shape, start, stop) -> float32 tensor.
Reader = Callable[[str, str, tuple[int, ...], int, int], Tensor]


class ZeroState:
    """Access to masters and moments of an initialized DeepSpeed engine; moments are materialized (zero) if there are none."""

    def __init__(self, engine: deepspeed.DeepSpeedEngine) -> None:
        self.engine = engine
        self.stage: int = engine.zero_optimization_stage()
        # Any: DeepSpeed hangs its bookkeeping (ds_id, _hp_mapping, ...) on the parameters.
        self.parameters: dict[str, Any] = dict(engine.module.named_parameters())
        optimizer = engine.optimizer
        self.adam: torch.optim.Optimizer = optimizer if self.stage == 0 else optimizer.optimizer
        for flat in self._flats():
            state = self.adam.state[flat]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state |= {kind: torch.zeros_like(flat) for kind in MOMENTS}

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the whole parameter, also where this rank holds only a piece."""
        parameter = self.parameters[name]
        return tuple(getattr(parameter, "ds_shape", parameter.shape))

    def piece(self, name: str, kind: str) -> tuple[int, Tensor]:
        """This rank's piece of a parameter: its start in the flattened tensor and a view that can be written to."""
        parameter = self.parameters[name]
        if self.stage == 0:
            whole = parameter.data if kind == WEIGHT else self.adam.state[parameter][kind]
            return 0, whole.view(-1)
        if self.stage == 3:
            group, offset, size = self.engine.optimizer.grad_position[parameter.ds_id]
            start = min(size * self.engine.optimizer._get_param_partition_rank(parameter), parameter.ds_numel)
            size = min(size, parameter.ds_numel - start)  # the last partition is padded
            flat = self._flats()[group]
        else:
            mapping = parameter._hp_mapping
            if mapping is None:
                return 0, torch.empty(0)
            start, flat = mapping.lp_fragment_address.start, self._flats()[mapping.param_group_index]
            offset, size = mapping.hp_fragment_address.start, mapping.hp_fragment_address.numel
        source = flat.data if kind == WEIGHT else self.adam.state[flat][kind]
        return start, source.narrow(0, offset, size)

    def gather(self, name: str, kind: str, destination: int) -> Tensor | None:
        """The whole float32 tensor on rank `destination`, None elsewhere. Collective above stage 0."""
        shape = self.shape(name)
        start, piece = self.piece(name, kind)
        rank = torch.distributed.get_rank()
        if self.stage == 0:
            return piece.detach().clone().view(shape) if rank == destination else None
        whole = torch.zeros(shape, dtype=torch.float32, device=self.engine.device)
        whole.view(-1).narrow(0, start, piece.numel()).copy_(piece)
        torch.distributed.reduce(whole, destination)  # every element is zero on all ranks but its owner
        return whole if rank == destination else None

    def load(self, read: Reader, kinds: tuple[str, ...], step: int) -> None:
        """Overwrite the given kinds of all parameters with what `read` returns for this rank's pieces, and AdamW's step count.

        With WEIGHT among the kinds, the compute weights follow their masters."""
        for kind in kinds:
            for name in self.parameters:
                start, piece = self.piece(name, kind)
                if piece.numel():
                    piece.copy_(read(kind, name, self.shape(name), start, start + piece.numel()))
        for state in self.adam.state.values():
            state["step"].fill_(step)
        if WEIGHT in kinds:
            self._publish()

    def _flats(self) -> list[Tensor]:
        """The tensors that AdamW steps: parameters (stage 0) or this rank's flat partitions of them."""
        if self.stage == 0:
            return [parameter for group in self.adam.param_groups for parameter in group["params"]]
        optimizer = self.engine.optimizer
        return optimizer.fp32_partitioned_groups_flat if self.stage == 3 else optimizer.single_partition_of_fp32_groups

    def _publish(self) -> None:
        """Copy masters to the weights that compute with them."""
        if self.stage in (1, 2):
            self.engine.optimizer.update_lp_params()
        elif self.stage == 3:
            for name, parameter in self.parameters.items():
                assert parameter.data.numel() == 0, f"{name} is gathered; its copy would stay stale"
                _, piece = self.piece(name, WEIGHT)
                parameter.ds_tensor.data.zero_()
                parameter.ds_tensor.data.narrow(0, 0, piece.numel()).copy_(piece)
