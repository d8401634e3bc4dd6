"""The training engine: one optimizer step under DeepSpeed ZeRO."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

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
from megatape.zero.hooks import quicken_hooks
from megatape.zero.mpu import Mpu
from megatape.zero.replicas import find_differences, replicated_over_tensor_axis
from megatape.zero.settings import deepspeed_config
from megatape.zero.state import ZeroState
from megatape.zero.stopwatch import Stopwatch

Inputs = dict[str, Tensor | None]  # the module's keyword arguments for one micro-batch, on this rank's device


# Asked before a step is taken: its loss, and its gradient's norm before clipping -> why it must be left out, or "". Both are
# the same on all ranks, and so must be the answer.
Judge = Callable[[float, float], str]


class TrainingDiverged(RuntimeError):
    """Weights or losses are not finite for good, or ranks differ in weights that all of them hold. Raised on all ranks.

    Files already written are not affected."""


@dataclass(frozen=True)
class StepResult:
    """A step, which was taken unless `fault` says why it was left out: then weights and optimizer state are as before, bit for
    bit. loss: mean over its targets, nats. grad_norm: before clipping, NaN if it is not finite. told: sums over all ranks of
    what each of them told. forward: seconds of this rank's forward passes, on its device."""

    loss: float
    grad_norm: float
    fault: str
    told: list[float]
    forward: float = 0.0


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
        if config.zero.stage == 3:
            quicken_hooks(module)
        self.device = torch.device(self.deepspeed.device)
        self.state = ZeroState(self.deepspeed, topology, mesh, OPTIMIZERS[config.optimizer.kind])
        self._unsound = torch.zeros((), dtype=torch.bool, device=self.device)  # see _watch_replicated
        self._decision: tuple[float, str] | None = None  # norm and fault of the step in progress, as soon as they are known
        self._decide: Callable[[float], tuple[float, str]] = lambda norm: (norm, "")
        self._watch_replicated()
        self._guard_updates()

    def train_step(
        self,
        micro_batches: list[Inputs],
        num_targets: float,
        learning_rate: float,
        tell: Callable[[], Iterable[float]] = tuple,
        judge: Judge = lambda loss, grad_norm: "",
    ) -> StepResult:
        """Forward and backward over this rank's micro-batches, then one optimizer step, unless loss or gradient are not finite
        on any rank, or `judge` objects.

        num_targets: those of all replicas that count in the loss, which is the mean over them: a mean of means would weight
        targets unequally when some are masked. The learning rate of each parameter group is learning_rate times its `scale`.
        tell: numbers of this rank, whose sums over ranks travel with the loss: one exchange of a step's numbers, after
        the last backward pass. Loss and norm are the same on all ranks."""
        for group in self.state.optimizer.param_groups:
            group["lr"] = learning_rate * group["scale"]
        num_targets = max(1.0, num_targets)
        # DeepSpeed divides by the accumulation steps and averages over ranks; the weight undoes both.
        weight = self.mesh.data.size * len(micro_batches) / num_targets
        self.deepspeed.train()
        total = torch.zeros((), device=self.device)  # stays on the device: reading it after every micro-batch would stall a GPU
        self._unsound.zero_()
        forward = Stopwatch(self.device)
        for number, inputs in enumerate(micro_batches, start=1):
            with forward:
                loss_sum = self.deepspeed(**inputs)
            self.deepspeed.backward(loss_sum * weight)
            total += loss_sum.detach()
            if number < len(micro_batches):
                self.deepspeed.step()  # counts the micro-batch
        square = self._own_square() if self.state.stage == 0 else 0.0
        summed, num_unsound, whole_square, *told = self.sum_over_ranks(total, self._unsound, square, *tell())
        loss = summed / self.mesh.tensor.size / num_targets
        fault = ""
        if not math.isfinite(loss):
            fault = f"the loss is {loss}"
        elif num_unsound:
            fault = f"a gradient that every tensor-parallel rank must have is not finite{self._name_ranks(bool(self._unsound))}"
        self._decision = None
        self._decide = lambda norm: (norm, fault or _fault_of(norm) or judge(loss, norm))
        if self.state.stage == 0:
            norm = whole_square**0.5
            if not fault and not math.isfinite(norm):
                fault = f"the gradient norm is {norm}{self._name_ranks(not math.isfinite(float(square)))}"
            self._decision = self._decide(norm)
            self._clip(norm)
        # Also for a step that is left out: it releases the gradients, and only the optimizer's update is missing.
        self.deepspeed.step()
        if self._decision is None:  # DeepSpeed found a norm that is not finite, and called no optimizer
            self._decision = self._decide(math.nan)
        grad_norm, fault = self._decision
        return StepResult(loss, grad_norm, fault, told, forward.seconds())

    def _guard_updates(self) -> None:
        """Let the optimizer change weights only when the step is to be taken.

        DeepSpeed calls it once for each group of parameters, when the gradient is reduced and clipped. Of a norm that is not
        finite it tells some of its optimizers, by precision and stage; the others would take the step."""
        update: Callable[..., Any] = self.state.optimizer.step

        def guarded(*arguments: Any, **options: Any) -> Any:
            if self._decision is None:
                norm = float(self.deepspeed.optimizer._global_grad_norm)  # DeepSpeed has waited for it to clip by it
                self._decision = self._decide(norm if norm >= 0 else math.nan)
            return None if self._decision[1] else update(*arguments, **options)

        self.state.optimizer.step = guarded  # type: ignore[method-assign]

    def _watch_replicated(self) -> None:
        """Note gradients that are not finite among those that every tensor-parallel rank has: DeepSpeed's norm has those of the
        first such rank only, and its faults are shared with the others by their sum of losses."""

        def note(gradient: Tensor) -> None:
            self._unsound.logical_or_(~gradient.isfinite().all())

        for name in replicated_over_tensor_axis(self.state, self.mesh):
            if (parameter := self.state.parameters[name]).requires_grad:
                parameter.register_hook(note)

    def _name_ranks(self, at_fault: bool) -> str:
        """ " on rank 1, but not on all", or "" if it is on all of them or none knows. Collective."""
        ranks = exchange(at_fault, self.topology)
        return "" if all(ranks) or not any(ranks) else f" on rank {ranks.index(True)}, but not on all"

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

    def _own_square(self) -> Tensor:
        """This rank's part of the gradients' squared norm at stage 0, where each replica holds all of them."""
        shared = torch.zeros((), device=self.device)
        divided = torch.zeros((), device=self.device)
        for parameter in self.state.parameters.values():
            if parameter.grad is not None:
                square = parameter.grad.float().square().sum()
                (divided if hasattr(parameter, "partition_dim") else shared).add_(square)
        return (divided.double() + shared.double() / self.mesh.tensor.size) / self.mesh.data.size

    def _clip(self, norm: float) -> None:
        """Clip the gradients at stage 0 by their norm."""
        if self.gradient_clip and norm > self.gradient_clip:
            for parameter in self.state.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.gradient_clip / (norm + 1e-6))  # the same epsilon as at the other stages

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Inputs], num_targets: int) -> float:
        """The mean loss over the valid targets of all ranks' batches, of which every rank has the same number.

        num_targets: those of this rank's."""
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


def _fault_of(norm: float) -> str:
    return "" if math.isfinite(norm) else "the gradient norm is not finite"
