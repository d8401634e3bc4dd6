"""The training engine: one optimizer step under DeepSpeed ZeRO."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from megatape.distributed.exchange import gather_values
from megatape.distributed.mesh import Axis, Mesh
from megatape.distributed.topology import Topology
from megatape.optim.gated import GatedOptimizer
from megatape.optim.optimizer import build_optimizer
from megatape.zero.compiler import lazy_import_dynamo
from megatape.zero.engine_options import EngineOptions
from megatape.zero.evaluation_losses import EvaluationLosses
from megatape.zero.internals import gradient_norm, same_optimizer_at_stages_1_and_2, trim_zero3_hooks
from megatape.zero.mpu import Mpu
from megatape.zero.nonfinite import NonfiniteWatch
from megatape.zero.partial_gradients import PartialGradients
from megatape.zero.replica_check import ReplicaCheck
from megatape.zero.sharded_module import build_sharded, with_small_bucket
from megatape.zero.stage0_gradients import Stage0Gradients
from megatape.zero.state import ZeroState
from megatape.zero.stopwatch import Stopwatch
from megatape.zero.update import Decide, PendingUpdate, Take, Update
from megatape.zero.weight_step import WeightStep

# Keyword arguments of the module for one micro-batch, on this rank's device.
Inputs = dict[str, Tensor | None]


@dataclass(frozen=True)
class Gradients:
    """This rank's share of the sums over accumulated gradients that an update needs.

    Attributes:
        loss: Sum of the losses of this rank's targets, nats, on the device.
        num_nonfinite: 1 if a gradient that every tensor-parallel rank holds is not finite here, on the device.
        square: This rank's part of the squared gradient norm at stage 0, where DeepSpeed reports none; 0 at other stages.
        forward: Duration of the forward passes. Read it only after the device has finished them.
    """

    loss: Tensor
    num_nonfinite: Tensor
    square: Tensor | float
    forward: Stopwatch


class Engine:
    """A module under DeepSpeed ZeRO.

    Args:
        options: Options of the engine.
        topology: All ranks.
        mesh: Mesh of the ranks.
        build_module: Builds this rank's share of the module on a tensor axis. The forward pass returns the float32 sum of the
            losses of its targets. Weights are uninitialized until `state.load`.

    Attributes:
        topology: All ranks.
        mesh: Mesh of the ranks.
        deepspeed: DeepSpeed's engine.
        device: Device of this rank.
        state: Master weights and optimizer state.
    """

    def __init__(
        self,
        options: EngineOptions,
        topology: Topology,
        mesh: Mesh,
        build_module: Callable[[Axis], nn.Module],
    ) -> None:
        lazy_import_dynamo()
        self.topology = topology
        self.mesh = mesh
        mpu = Mpu(mesh)
        module = build_sharded(build_module, options.deepspeed, mesh, mpu)
        inner = build_optimizer(module.named_parameters(), options.optimizer)
        gated = GatedOptimizer(inner, self._should_step, self._apply_step)
        with same_optimizer_at_stages_1_and_2():
            self.deepspeed, *_ = deepspeed.initialize(
                model=module,
                optimizer=gated,
                mpu=mpu,
                config=with_small_bucket(options.deepspeed, module),
            )
        if options.zero.stage == 3:
            trim_zero3_hooks(module)

        self.device = torch.device(self.deepspeed.device)
        self.state = ZeroState(self.deepspeed, gated, topology, mesh, options.optimizer)
        self._weight_step = WeightStep(inner, self.state)
        self._stage0_gradients: Stage0Gradients | None = None
        if options.zero.stage == 0:
            parameters = self.state.parameters.values()
            self._stage0_gradients = Stage0Gradients(parameters, mesh, self.device, options.gradient_clip)
        self._replica_check = ReplicaCheck(self.state)
        self._partial_gradients = PartialGradients(self.state, options.zero.offload_optimizer)
        replicated_weights = [self.state.parameters[name] for name in self._partial_gradients.names]
        self._nonfinite = NonfiniteWatch(replicated_weights, self.device)
        self._pending: PendingUpdate | None = None

    def forward_backward(self, micro_batches: list[Inputs], num_targets: float) -> Gradients:
        """Accumulate the gradient of the mean loss over this rank's micro-batches.

        Args:
            micro_batches: Inputs of this rank's forward passes, at least one.
            num_targets: Number of targets of all data-parallel ranks that count in the loss, which is the mean over them. A
                mean of means would weight targets unequally when some are masked.
        """
        # DeepSpeed divides by the accumulation steps of its configuration and averages over ranks. The weight undoes both.
        weight = self.mesh["replicate"].size * self.deepspeed.gradient_accumulation_steps() / num_targets
        self.deepspeed.train()
        # The loss stays on the device: reading it after every micro-batch would stall a GPU.
        loss = torch.zeros((), device=self.device)
        self._nonfinite.reset()
        forward = Stopwatch(self.device)
        for number, inputs in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            # Steps of the batch-size warm-up have fewer micro-batches than DeepSpeed's configuration says.
            self.deepspeed.set_gradient_accumulation_boundary(is_last)
            with forward:
                loss_sum = self.deepspeed(**inputs)
            self.deepspeed.backward(loss_sum * weight)
            loss += loss_sum.detach()
            if not is_last:
                self.deepspeed.step()  # Counts the micro-batch.
        self._partial_gradients.sum_parts()
        square: Tensor | float = 0.0
        if self._stage0_gradients is not None:
            square = self._stage0_gradients.local_square()
        return Gradients(loss, self._nonfinite.found, square, forward)

    def update(
        self,
        learning_rate: float,
        loss: float,
        num_nonfinite: float,
        square: float,
        *,
        decide: Decide = lambda norm: Take(),
    ) -> Update:
        """Take the optimizer's step, unless loss or gradient are not finite on any rank, or `decide` is against it.

        Collective. A skipped update releases the gradients, and changes nothing else.

        Args:
            learning_rate: Learning rate, multiplied by the `scale` of each parameter group.
            loss: Mean loss over the targets of all ranks.
            num_nonfinite: Sum over all ranks of the same field of `Gradients`.
            square: Sum over all ranks of the same field of `Gradients`.
            decide: Decides about a finite update by its gradient norm. Called once.
        """
        for group in self.state.optimizer.param_groups:
            group["lr"] = learning_rate * group["scale"]
        pending = PendingUpdate(self._describe_fault(loss, num_nonfinite), decide)
        self._pending = pending
        if self._stage0_gradients is not None:
            self._clip_at_stage0(self._stage0_gradients, square**0.5, pending)
        self.deepspeed.step()
        update = pending.result
        if update is None:
            # DeepSpeed found a norm that is not finite, and did not call the optimizer.
            update = pending.resolve(math.nan)
        self._pending = None
        if update.is_applied:
            self.state.check_kept()
            if self.state.average is not None:
                self.state.average.update()
        return update

    def _describe_fault(self, loss: float, num_nonfinite: float) -> str | None:
        """Return a description of a loss or replicated gradient that is not finite, or None. Collective if there is one."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if num_nonfinite:
            ranks = self._name_ranks(bool(self._nonfinite.found))
            return f"a gradient that every tensor-parallel rank must have is not finite{ranks}"
        return None

    def _clip_at_stage0(self, gradients: Stage0Gradients, norm: float, pending: PendingUpdate) -> None:
        """Resolve an update at stage 0, and clip its gradients. Collective if the norm is not finite.

        Args:
            gradients: Gradients of this rank.
            norm: Norm of the gradients of all ranks.
            pending: The update.
        """
        if pending.fault is None and not math.isfinite(norm):
            ranks = self._name_ranks(not math.isfinite(float(gradients.local_square())))
            pending.fault = f"the gradient norm is {norm}{ranks}"
        pending.resolve(norm)
        gradients.clip(norm)

    def _should_step(self) -> bool:
        """Whether to apply the current update. GatedOptimizer calls this after DeepSpeed has clipped the gradient."""
        pending = self._pending
        assert pending is not None, "an update outside `update`"
        update = pending.result
        if update is None:
            norm = gradient_norm(self.deepspeed.optimizer)
            if norm < 0:
                # DeepSpeed found that the norm is not finite.
                norm = math.nan
            update = pending.resolve(norm)
        return update.is_applied

    def _apply_step(self) -> None:
        """Change the weights. GatedOptimizer calls this if the current update is applied."""
        self._weight_step.apply()

    def _name_ranks(self, at_fault: bool) -> str:
        """Name the first rank at fault, such as " on rank 1, but not on all"; "" if all are or none is. Collective."""
        ranks = gather_values(at_fault, self.topology)
        if all(ranks) or not any(ranks):
            return ""
        return f" on rank {ranks.index(True)}, but not on all"

    def check_replicas(self) -> None:
        """Check that replicas of weights and optimizer state are equal. Collective.

        Raises:
            TrainingDiverged: Replicas differ. Raised on all ranks.
        """
        self._replica_check.check()

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
        # All ranks of a sample count its targets. Tensor-parallel ranks have the same loss, the others a part of it.
        num_counts = self.mesh["sample"].size / self.mesh["tensor"].size
        return EvaluationLosses.from_sums(list(num_targets), losses, targets, num_counts)

    def sum_over_ranks(self, *numbers: float | Tensor) -> list[float]:
        """Return the sum of each number over all ranks, in one exchange for which this rank waits once. Collective.

        Args:
            numbers: Numbers, or tensors without dimensions on the device.
        """
        # Float64 represents every count and every float32. Numbers of the host become arguments of a kernel, not copies.
        sums = torch.zeros(len(numbers), dtype=torch.float64, device=self.device)
        for total, number in zip(sums, numbers, strict=True):
            total += number
        dist.all_reduce(sums)
        return sums.tolist()  # type: ignore[no-any-return]  # a list, since `sums` has one dimension
