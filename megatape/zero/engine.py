"""The training engine: one optimizer step under DeepSpeed ZeRO."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from megatape.config import Config
from megatape.distributed.exchange import exchange
from megatape.distributed.mesh import Axis, Mesh
from megatape.distributed.topology import Topology
from megatape.errors import TrainingDiverged
from megatape.nn.parameters import settings
from megatape.optim.gated import GatedOptimizer
from megatape.optim.matrices import MatrixOptimizer
from megatape.optim.optimizer import build_optimizer
from megatape.utils.units import plural
from megatape.zero.compiler import lazy_import_dynamo
from megatape.zero.deepspeed_config import deepspeed_config
from megatape.zero.internals import gradient_norm, local_numel, same_optimizer_at_stages_1_and_2, trim_zero3_hooks
from megatape.zero.matrices import WholeMatrices
from megatape.zero.mpu import Mpu
from megatape.zero.replicas import find_differences
from megatape.zero.replicated import ReplicatedGradients
from megatape.zero.state import WEIGHT, ZeroState
from megatape.zero.stopwatch import Stopwatch

Inputs = dict[str, Tensor | None]  # the module's keyword arguments for one micro-batch, on this rank's device


@dataclass(frozen=True)
class Gradients:
    """Accumulated gradients of a step: this rank's part of what an update must know of all ranks.

    Attributes:
        loss: sum of the losses of this rank's targets, nats, on the device.
        num_nonfinite: 1 if a gradient that every tensor-parallel rank holds is not finite here, on the device.
        square: this rank's part of the squared gradient norm at stage 0, where DeepSpeed reports none; else 0.
        forward: duration of the forward passes, to be read once the device has finished them.
    """

    loss: Tensor
    num_nonfinite: Tensor
    square: Tensor | float
    forward: Stopwatch


@dataclass(frozen=True)
class EvaluationLosses:
    """Losses of an evaluation, in nats per target.

    Attributes:
        mean: Mean loss over the targets of all batches; NaN if there are none.
        groups: Mean loss of each group of batches, without groups that have no targets.
    """

    mean: float
    groups: dict[str, float]


@dataclass
class Update:
    """One update of the weights, which takes place unless `skipped` gives a reason.

    Attributes:
        fault: what is not finite, or ""; a reason to skip it.
        skip_reason: reason to skip it for this gradient norm, or "". The same on all ranks.
        grad_norm: before clipping; NaN if it is not finite.
        skipped: why weights and optimizer state stay as they were, bit for bit, or "".
        is_decided: whether grad_norm and skipped are known.
    """

    fault: str
    skip_reason: Callable[[float], str]
    grad_norm: float = math.nan
    skipped: str = ""
    is_decided: bool = False

    def decide(self, norm: float) -> None:
        """Note the gradient norm, and what follows."""
        self.grad_norm = norm
        self.is_decided = True
        if not math.isfinite(norm):
            self.fault = self.fault or "the gradient norm is not finite"
        self.skipped = self.fault or self.skip_reason(norm)


class Engine:
    """A module under DeepSpeed ZeRO.

    build_module: makes this rank's share of the module on the given tensor axis. Its forward pass returns the float32 sum of
        its targets' losses; its weights are uninitialized until `state.load`.
    """

    def __init__(self, config: Config, topology: Topology, mesh: Mesh, build_module: Callable[[Axis], nn.Module]) -> None:
        lazy_import_dynamo()
        self.topology = topology
        self.mesh = mesh
        mpu = Mpu(mesh)
        self.gradient_clip = config.training.gradient_clip
        self._clips = config.zero.stage == 0  # there DeepSpeed clips in float32 without reporting the norm
        ds_config = deepspeed_config(config, topology.world_size)
        # No dtype here: on a CPU zero.Init takes any explicit one, even float32, as bfloat16. From
        # the settings it takes the right one.
        sharded = deepspeed.zero.Init(
            data_parallel_group=mesh["replicate"].group, mpu=mpu, config_dict_or_path=ds_config, enabled=config.zero.stage == 3
        )
        with sharded:
            module = build_module(mesh["tensor"])
        # DeepSpeed allocates buckets whole, however little there is to reduce.
        trained = (parameter for parameter in module.parameters() if parameter.requires_grad)
        most = sum(map(local_numel, trained))
        ds_config["zero_optimization"]["reduce_bucket_size"] = min(config.zero.bucket_size, most)
        inner = build_optimizer(module.named_parameters(), config.optimizer)
        optimizer = GatedOptimizer(inner, self._admits_update, self._apply_bounds)
        with same_optimizer_at_stages_1_and_2():
            self.deepspeed, *_ = deepspeed.initialize(model=module, optimizer=optimizer, mpu=mpu, config=ds_config)
        if config.zero.stage == 3:
            trim_zero3_hooks(module)
        self.device = torch.device(self.deepspeed.device)
        self.state = ZeroState(self.deepspeed, optimizer, topology, mesh, config.optimizer)
        if isinstance(optimizer.inner, MatrixOptimizer):
            optimizer.inner.update_matrices = WholeMatrices(self.state).update
        declared = {name: settings(parameter).bounds for name, parameter in self.state.parameters.items()}
        self._bounds = {name: bounds for name, bounds in declared.items() if bounds}
        self._nonfinite = torch.zeros((), dtype=torch.bool, device=self.device)  # in a replicated gradient of this step
        self._replicas_were_equal = False  # at a check of this process
        self._update: Update | None = None  # in progress
        self._replicated = ReplicatedGradients(self.state, config.zero.offload_optimizer)
        self._watch_replicated()

    def forward_backward(self, micro_batches: list[Inputs], num_targets: float) -> Gradients:
        """Accumulate the gradient of the mean loss over this rank's micro-batches.

        Args:
            micro_batches: inputs of this rank's forward passes, at least one.
            num_targets: targets of all data-parallel ranks that count in the loss, which is the mean over them. A mean of
                means would weight targets unequally when some are masked.
        """
        # DeepSpeed divides by the accumulation steps of its settings and averages over ranks; the weight undoes both.
        weight = self.mesh["replicate"].size * self.deepspeed.gradient_accumulation_steps() / num_targets
        self.deepspeed.train()
        loss = torch.zeros((), device=self.device)  # stays on the device: reading it after every micro-batch would stall a GPU
        self._nonfinite.zero_()
        forward = Stopwatch(self.device)
        for number, inputs in enumerate(micro_batches, start=1):
            # Steps of the batch-size warm-up have fewer micro-batches than the settings say.
            self.deepspeed.set_gradient_accumulation_boundary(number == len(micro_batches))
            with forward:
                loss_sum = self.deepspeed(**inputs)
            self.deepspeed.backward(loss_sum * weight)
            loss += loss_sum.detach()
            if number < len(micro_batches):
                self.deepspeed.step()  # counts the micro-batch
        self._replicated.sum_parts()
        return Gradients(loss, self._nonfinite, self._local_square() if self._clips else 0.0, forward)

    def update(
        self,
        learning_rate: float,
        loss: float,
        num_nonfinite: float,
        square: float,
        *,
        skip_reason: Callable[[float], str] = lambda norm: "",
    ) -> Update:
        """Take the optimizer's step, unless loss or gradient are not finite on any rank, or there is a reason to skip it.

        Collective. A skipped update releases the gradients, and changes nothing else.

        Args:
            learning_rate: multiplied by the `scale` of each parameter group.
            loss: mean over the targets of all ranks.
            num_nonfinite: sum over all ranks of the same field of `Gradients`.
            square: sum over all ranks of the same field of `Gradients`.
            skip_reason: see `Update`.
        """
        for group in self.state.optimizer.param_groups:
            group["lr"] = learning_rate * group["scale"]
        fault = ""
        if not math.isfinite(loss):
            fault = f"the loss is {loss}"
        elif num_nonfinite:
            ranks = self._name_ranks(bool(self._nonfinite))
            fault = f"a gradient that every tensor-parallel rank must have is not finite{ranks}"
        update = self._update = Update(fault, skip_reason)
        if self._clips:
            norm = square**0.5
            if not fault and not math.isfinite(norm):
                update.fault = f"the gradient norm is {norm}{self._name_ranks(not math.isfinite(float(self._local_square())))}"
            update.decide(norm)
            if self.gradient_clip:
                parameters = self.state.parameters.values()
                nn.utils.clip_grads_with_norm_(parameters, self.gradient_clip, torch.tensor(norm, device=self.device))
        self.deepspeed.step()
        if not update.is_decided:  # DeepSpeed found a norm that is not finite, and called no optimizer
            update.decide(math.nan)
        if not update.skipped:
            self.state.check_kept()
            self.state.update_ema()
        return update

    def _admits_update(self) -> bool:
        """Whether the update in progress takes place: asked by the optimizer, once DeepSpeed has clipped the gradient."""
        update = self._update
        assert update is not None, "an update outside `update`"
        if not update.is_decided:
            norm = gradient_norm(self.deepspeed.optimizer)
            update.decide(norm if norm >= 0 else math.nan)
        return not update.skipped

    def _apply_bounds(self) -> None:
        """Clip the master weights that declare bounds."""
        for name, (low, high) in self._bounds.items():
            self.state.piece(name, WEIGHT).values.clamp_(low, high)

    def _watch_replicated(self) -> None:
        """Register hooks that record non-finite gradients of weights replicated on all tensor-parallel ranks.

        The hooks run before the sum over these ranks, which spreads such gradients. So the rank at fault can be named.
        """

        def note(gradient: Tensor) -> None:
            self._nonfinite.logical_or_(~gradient.isfinite().all())

        for name in self._replicated.names:
            self.state.parameters[name].register_hook(note)

    def _name_ranks(self, at_fault: bool) -> str:
        """Name the ranks at fault: " on rank 1, but not on all", or "" if it is on all of them or none knows. Collective."""
        ranks = exchange(at_fault, self.topology)
        return "" if all(ranks) or not any(ranks) else f" on rank {ranks.index(True)}, but not on all"

    def check_replicas(self) -> None:
        """Raise TrainingDiverged on all ranks if weights or optimizer state differ where ranks must have the same.

        Collective. A difference at the first check is rather one of the code: a later one had equal replicas before it.
        """
        if differences := find_differences(self.state):
            others = len(differences) - 1
            more = f", and {plural(others, 'other tensor')}" if others else ""
            cause = "memory or a device is at fault"
            if not self._replicas_were_equal:
                sums = "this first check points to gradients that are not summed over the ranks, as of a module of your own"
                cause = f"{sums}; if the code is sound, {cause}"
            raise TrainingDiverged(
                f"{differences[0]}{more}: replicas take equal steps, so {cause}. The weights in memory "
                "are corrupted; check the hosts of these ranks and continue with --resume auto"
            )
        self._replicas_were_equal = True

    def _local_square(self) -> Tensor:
        """This rank's part of the gradients' squared norm at stage 0, where each replica holds all of them."""
        shared = torch.zeros((), device=self.device)
        divided = torch.zeros((), device=self.device)
        for parameter in self.state.parameters.values():
            if parameter.grad is not None:
                square = parameter.grad.float().square().sum()
                (divided if hasattr(parameter, "partition_dim") else shared).add_(square)
        return (divided.double() + shared.double() / self.mesh["tensor"].size) / self.mesh["replicate"].size

    @torch.no_grad()
    def evaluate(self, batches: Iterable[tuple[str, Inputs]], num_targets: Mapping[str, int]) -> EvaluationLosses:
        """Compute the mean loss over the valid targets of all ranks' batches. Collective.

        Args:
            batches: This rank's batches, each with the name of its group. Every rank has the same number of batches.
            num_targets: Number of valid targets in this rank's batches of each group. All ranks list the same groups.
        """
        self.deepspeed.eval()
        totals = torch.zeros(len(num_targets), dtype=torch.float64, device=self.device)
        rows = dict(zip(num_targets, totals, strict=True))
        for group, inputs in batches:
            rows[group] += self.deepspeed(**inputs)
        sums = self.sum_over_ranks(*totals, *num_targets.values())
        losses = sums[: len(rows)]
        targets = sums[len(rows) :]
        # All ranks of a sample count its targets; tensor-parallel ones have the same loss, the others a part of it.
        counted = self.mesh["sample"].size / self.mesh["tensor"].size
        groups = {}
        for group, loss, count in zip(num_targets, losses, targets, strict=True):
            if count:
                groups[group] = loss * counted / count
        mean = math.nan
        if groups:
            mean = sum(losses) * counted / sum(targets)
        return EvaluationLosses(mean, groups)

    def sum_over_ranks(self, *numbers: float | Tensor) -> list[float]:
        """The sum of each number over all ranks, in one exchange for which this rank waits once. Tensors are on the device."""
        # Float64 holds every count and every float32. Numbers of the host become arguments of a kernel, not copies.
        sums = torch.zeros(len(numbers), dtype=torch.float64, device=self.device)
        for place, number in zip(sums, numbers, strict=True):
            place += number
        dist.all_reduce(sums)
        return sums.tolist()  # type: ignore[no-any-return]  # a list, since `sums` has one dimension
