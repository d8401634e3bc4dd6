"""The training engine: one optimizer step under DeepSpeed ZeRO."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

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
from megatape.zero.compiler import postpone_compiler
from megatape.zero.mpu import Mpu
from megatape.zero.replicas import find_differences, replicated_over_tensor_axis
from megatape.zero.settings import deepspeed_config
from megatape.zero.state import WEIGHT, ZeroState

Inputs = dict[str, Tensor | None]  # the module's keyword arguments for one micro-batch, on this rank's device


class TrainingDiverged(RuntimeError):
    """The loss or the gradient is not finite, or ranks differ in weights that all of them hold. Raised on all ranks.

    Files already written are not affected."""


NOT_TAKEN = "the step was not taken"


@dataclass(frozen=True)
class Taken:
    """A step that was taken. loss: mean over its targets, nats. grad_norm: before clipping. told: sums over all ranks of what
    each of them told."""

    loss: float
    grad_norm: float
    told: list[float]


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
        # DeepSpeed allocates buckets whole, however little there is to reduce.
        trained = (parameter for parameter in module.parameters() if parameter.requires_grad)
        most = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in trained)
        settings["zero_optimization"]["reduce_bucket_size"] = min(config.zero.bucket_size, most)
        self.deepspeed, *_ = deepspeed.initialize(
            model=module,
            optimizer=build_optimizer(module.named_parameters(), config.optimizer),
            mpu=mpu,
            config=settings,
        )
        self.device = torch.device(self.deepspeed.device)
        self.state = ZeroState(self.deepspeed, topology, mesh, OPTIMIZERS[config.optimizer.kind])
        self._norm: float | None = None  # of the step in progress, as soon as it is known
        self._unsound: Tensor | float = 0.0  # of the last step, see _find_unsound
        if self.state.stage:
            self.state.optimizer.register_step_pre_hook(self._read_norm)

    def train_step(
        self, micro_batches: list[Inputs], num_targets: float, learning_rate: float, tell: Callable[[], Iterable[float]] = tuple
    ) -> Taken:
        """Forward and backward over this rank's micro-batches, then one optimizer step.

        num_targets: those of all replicas that count in the loss, which is the mean over them: a mean of means would weight
        targets unequally when some are masked. The learning rate of each parameter group is learning_rate times its `scale`.
        tell: numbers of this rank, whose sums over ranks travel with the loss: one exchange of a step's numbers, after
        the last backward pass. Loss and norm are the same on all ranks.

        Raises TrainingDiverged if either is not finite, before a weight changes; or if the last step left a
        weight that is not. DeepSpeed checks only float16 and would continue."""
        for group in self.state.optimizer.param_groups:
            group["lr"] = learning_rate * group["scale"]
        num_targets = max(1.0, num_targets)
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
        square = self._own_square() if self.state.stage == 0 else 0.0
        summed, num_unsound, whole_square, *told = self.sum_over_ranks(total, self._unsound, square, *tell())
        if num_unsound:
            self._raise_unsound()
        loss = summed / self.mesh.tensor.size / num_targets
        if not math.isfinite(loss):
            raise TrainingDiverged(f"the loss is {loss}; {NOT_TAKEN}")
        self._norm = None
        if self.state.stage == 0:
            self._norm = self._clip(square, whole_square**0.5)
        self.deepspeed.step()
        if self._norm is None:
            raise TrainingDiverged(f"the gradient norm is not finite; {NOT_TAKEN}")
        self._unsound = self._find_unsound()
        return Taken(loss, self._norm, told)

    def _read_norm(self, *_: object) -> None:
        """Before the optimizer changes a weight: the norm that DeepSpeed has just clipped by, which it waited for itself.

        Stage 3 leaves out a step whose norm is not finite, stages 1 and 2 take it."""
        if self._norm is None:
            norm = float(self.deepspeed.optimizer._global_grad_norm)
            if not math.isfinite(norm) or norm < 0:
                raise TrainingDiverged(f"the gradient norm is not finite; {NOT_TAKEN}")
            self._norm = norm

    def _find_unsound(self) -> Tensor | float:
        """Whether a weight that every tensor-parallel rank holds is not finite on this one: 1 or 0, which nobody waits for.

        Of such parameters DeepSpeed's norm has those of the first rank only."""
        held = [self.state.piece(name, WEIGHT)[1] for name in replicated_over_tensor_axis(self.state, self.mesh)]
        return (~torch.stack([piece.sum() for piece in held]).isfinite()).any().to(self.device) if held else 0.0

    def _raise_unsound(self) -> NoReturn:
        where = self._name_ranks(bool(self._unsound))
        raise TrainingDiverged(
            f"a weight that every tensor-parallel rank holds is not finite{where}, since the last step; the weights in memory "
            "are corrupted"
        )

    def _name_ranks(self, at_fault: bool) -> str:
        """ " on rank 1, but not on all", or "" if it is on all of them. Collective; at least one must be at fault."""
        ranks = exchange(at_fault, self.topology)
        return "" if all(ranks) else f" on rank {ranks.index(True)}, but not on all"

    def check_replicas(self) -> None:
        """Raise TrainingDiverged on all ranks if weights or optimizer state differ where ranks must have the same, or if the
        last step left weights that are not finite. Collective."""
        self._check_last_step()
        if differences := find_differences(self.state, self.topology, self.mesh):
            others = len(differences) - 1
            more = f", and {others} other tensor{'s' * (others > 1)}" if others else ""
            raise TrainingDiverged(
                f"{differences[0]}{more}: replicas take equal steps, so memory or a device is at fault. The weights in memory "
                "are corrupted; check the hosts of these ranks and continue with --resume auto"
            )

    def _check_last_step(self) -> None:
        """What the next step would find out about the last one, now."""
        if self.mesh.tensor.size > 1 and self.sum_over_ranks(self._unsound)[0]:
            self._raise_unsound()

    def _own_square(self) -> Tensor:
        """This rank's part of the gradients' squared norm at stage 0, where each replica holds all of them."""
        shared = torch.zeros((), device=self.device)
        divided = torch.zeros((), device=self.device)
        for parameter in self.state.parameters.values():
            if parameter.grad is not None:
                square = parameter.grad.float().square().sum()
                (divided if hasattr(parameter, "partition_dim") else shared).add_(square)
        return (divided.double() + shared.double() / self.mesh.tensor.size) / self.mesh.data.size

    def _clip(self, own_square: Tensor | float, norm: float) -> float:
        """Clip the gradients at stage 0. Returns their norm before clipping. Raises TrainingDiverged if it is not finite."""
        if not math.isfinite(norm):
            where = self._name_ranks(not math.isfinite(float(own_square)))
            raise TrainingDiverged(f"the gradient norm is {norm}{where}; {NOT_TAKEN}")
        if self.gradient_clip and norm > self.gradient_clip:
            for parameter in self.state.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.gradient_clip / (norm + 1e-6))  # the same epsilon as at the other stages
        return norm

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Inputs], num_targets: int) -> float:
        """The mean loss over the valid targets of all ranks' batches, of which every rank has the same number.

        num_targets: those of this rank's. Raises TrainingDiverged if the last step left weights that are not finite."""
        self._check_last_step()
        self.deepspeed.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for inputs in batches:
            total += self.deepspeed(**inputs)
        loss, targets = self.sum_over_ranks(total, num_targets)
        return loss / max(1.0, targets)

    def sum_over_ranks(self, *numbers: float | Tensor) -> list[float]:
        """The sum of each number over all ranks, in one exchange for which this rank waits once. Tensors are on the device."""
        # Float64 holds every count and every float32. Numbers of the host become arguments of a kernel, not copies.
        sums = torch.zeros(len(numbers), dtype=torch.float64, device=self.device)
        for place, number in zip(sums, numbers, strict=True):
            place += number
        dist.all_reduce(sums)
        return sums.tolist()  # type: ignore[no-any-return]  # a list, since `sums` has one dimension
