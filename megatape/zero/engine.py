"""The training engine: one optimizer step under DeepSpeed ZeRO."""

import math
from collections.abc import Callable, Iterable

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist
from torch import Tensor, nn

from megatape.config import Config
from megatape.optim.optimizer import build_optimizer
from megatape.parallel.mesh import Axis, Mesh
from megatape.registry import OPTIMIZERS
from megatape.runtime.exchange import exchange
from megatape.runtime.topology import Topology
from megatape.targets import counted
from megatape.zero.compiler import postpone_compiler
from megatape.zero.mpu import Mpu
from megatape.zero.replicas import find_differences, replicated_over_tensor_axis
from megatape.zero.settings import deepspeed_config
from megatape.zero.state import WEIGHT, ZeroState

Inputs = dict[str, Tensor | None]  # the module's keyword arguments for one micro-batch, on this rank's device


class TrainingDiverged(RuntimeError):
    """The loss or the gradient is not finite, or ranks differ in weights that all of them hold. Raised on all ranks.

    Files already written are not affected."""


class Engine:
    """A module under DeepSpeed ZeRO.

    build_module: makes this rank's share of the module on the given tensor axis. Its forward pass returns the float32 sum of
        its targets' losses; its weights are uninitialized until `state.load`."""

    def __init__(
        self,
        config: Config,
        topology: Topology,
        mesh: Mesh,
        build_module: Callable[[Axis], nn.Module],
    ) -> None:
        postpone_compiler()
        self.topology, self.mesh = topology, mesh
        mpu = Mpu(mesh)
        self.gradient_clip = config.training.gradient_clip
        settings = deepspeed_config(config, topology.world_size)
        # No dtype here: on a CPU zero.Init takes any explicit one, even float32, as bfloat16. From
        # the settings it takes the right one.
        sharded = deepspeed.zero.Init(
            data_parallel_group=mesh.data.group, mpu=mpu, config_dict_or_path=settings, enabled=config.zero.stage == 3
        )
        with sharded:
            module = build_module(mesh.tensor)
        self.deepspeed, *_ = deepspeed.initialize(
            model=module,
            optimizer=build_optimizer(module.named_parameters(), config.optimizer),
            mpu=mpu,
            config=settings,
        )
        self.device = torch.device(self.deepspeed.device)
        self.state = ZeroState(self.deepspeed, topology, mesh, OPTIMIZERS[config.optimizer.kind])

    def train_step(self, micro_batches: list[Inputs], learning_rate: float) -> tuple[float, float]:
        """Forward and backward over this rank's micro-batches, then one optimizer step.

        The loss is the mean over all valid targets of the step, over ranks and micro-batches: a mean of means would
        weight targets unequally when some are masked. The learning rate of each parameter group is learning_rate
        times its `scale`. Returns the loss and the gradient's norm before clipping, both the same on all ranks.

        Raises TrainingDiverged if either is not finite. DeepSpeed checks only float16 and would continue."""
        for group in self.state.optimizer.param_groups:
            group["lr"] = learning_rate * group["scale"]
        num_targets = max(1.0, self.sum_over_replicas(count_targets(micro_batches)))
        # DeepSpeed divides by the accumulation steps and averages over ranks; the weight undoes both.
        weight = self.mesh.data.size * len(micro_batches) / num_targets
        self.deepspeed.train()
        total = torch.zeros((), device=self.device)  # stays on the device: reading it after every micro-batch would stall a GPU
        for number, inputs in enumerate(micro_batches, start=1):
            loss_sum = self.deepspeed(**inputs)
            self.deepspeed.backward(loss_sum * weight)
            total += loss_sum.detach()
            if number < len(micro_batches):
                self.deepspeed.step()  # counts the micro-batch
        loss = self.sum_over_replicas(float(total)) / num_targets
        if not math.isfinite(loss):
            raise TrainingDiverged(f"the loss is {loss}; the step was not taken")
        if self.state.stage == 0:
            norm = self._clip()
        self.deepspeed.step()
        if self.state.stage:
            norm = float(self.deepspeed.get_global_grad_norm())
        self._check_finite(norm)
        return loss, norm

    def _check_finite(self, norm: float) -> None:
        """Raise TrainingDiverged on all ranks if the step was not finite on one of them.

        Of parameters that every tensor-parallel rank holds, DeepSpeed's norm has those of the first rank only."""
        fault = "" if math.isfinite(norm) and norm >= 0 else f"the gradient norm is {norm}"
        held = [self.state.piece(name, WEIGHT)[1] for name in replicated_over_tensor_axis(self.state, self.mesh)]
        if held and not torch.stack([piece.sum() for piece in held]).isfinite().all():
            fault = fault or "a weight that every tensor-parallel rank holds is not finite"
        if self.sum_over_ranks(bool(fault)):
            faults = exchange(fault, self.topology)
            first = next(rank for rank, text in enumerate(faults) if text)
            where = "" if all(faults) else f" on rank {first}, but not on all"
            raise TrainingDiverged(f"{faults[first]}{where}; the weights in memory are corrupted")

    def check_replicas(self) -> None:
        """Raise TrainingDiverged on all ranks if weights or optimizer state differ where ranks must have the same.
        Collective."""
        if differences := find_differences(self.state, self.topology, self.mesh):
            others = len(differences) - 1
            more = f", and {others} other tensor{'s' * (others > 1)}" if others else ""
            raise TrainingDiverged(
                f"{differences[0]}{more}: replicas take equal steps, so memory or a device is at fault. The weights in memory "
                "are corrupted; check the hosts of these ranks and continue with --resume auto"
            )

    def _clip(self) -> float:
        """Clip the gradients at stage 0, where each replica holds all of them. Returns their norm before clipping."""
        gradients = {parameter: parameter.grad for parameter in self.state.parameters.values() if parameter.grad is not None}
        shared = torch.zeros((), device=self.device)
        divided = torch.zeros((), device=self.device)
        for parameter, gradient in gradients.items():
            (divided if hasattr(parameter, "partition_dim") else shared).add_(gradient.float().square().sum())
        dist.all_reduce(divided, group=self.mesh.tensor.group)
        norm = float((shared + divided).sqrt())
        if self.gradient_clip and norm > self.gradient_clip:
            for gradient in gradients.values():
                gradient.mul_(self.gradient_clip / (norm + 1e-6))  # the same epsilon as at the other stages
        return norm

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Inputs]) -> float:
        """The mean loss over the valid targets of all ranks' batches, of which every rank has the same number."""
        self.deepspeed.eval()
        loss = targets = 0.0
        for inputs in batches:
            loss += float(self.deepspeed(**inputs))
            targets += count_targets([inputs])
        return self.sum_over_replicas(loss) / max(1.0, self.sum_over_replicas(targets))

    def sum_over_replicas(self, value: float) -> float:
        """The sum of a number over data-parallel ranks; the tensor-parallel ranks of a replica must
        have the same number."""
        return self.sum_over_ranks(value) / self.mesh.tensor.size

    def sum_over_ranks(self, value: float) -> float:
        """The sum of a number over all ranks."""
        number = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(number)
        return float(number)


def count_targets(micro_batches: list[Inputs]) -> int:
    """The number of targets of these micro-batches that count in the loss."""
    return int(
        sum((counted(targets).sum() for inputs in micro_batches if (targets := inputs["targets"]) is not None), torch.tensor(0))
    )
