"""Training engine: passes, updates and evaluations under DeepSpeed ZeRO."""

import math
from collections.abc import Callable, Iterable, Mapping

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from megatape.distributed.mesh import Axis, Mesh
from megatape.distributed.topology import Topology
from megatape.distributed.values.exchange import gather_values
from megatape.optim.optimizer import build_optimizer
from megatape.zero.compiler import lazy_import_dynamo
from megatape.zero.engine_options import EngineOptions
from megatape.zero.evaluation_losses import EvaluationLosses
from megatape.zero.gated_optimizer import GatedOptimizer
from megatape.zero.internals import same_optimizer_at_stages_1_and_2
from megatape.zero.mpu import Mpu
from megatape.zero.nonfinite import NonfiniteWatch
from megatape.zero.partial_gradients import PartialGradients
from megatape.zero.pass_result import GradientSums, PassResult
from megatape.zero.replica_check import ReplicaCheck
from megatape.zero.sharded_module import build_sharded, with_small_bucket
from megatape.zero.stages.build import build_stage
from megatape.zero.state import ZeroState
from megatape.zero.stopwatch import Stopwatch
from megatape.zero.update import Decide, Take, Update
from megatape.zero.update_gate import UpdateGate
from megatape.zero.weight_step import WeightStep

# Keyword arguments for the module's forward pass on one micro-batch, on this rank's device.
Inputs = dict[str, Tensor | None]


class Engine:
    """A module being trained under DeepSpeed ZeRO.

    Args:
        options: Engine options.
        topology: All ranks.
        mesh: Mesh over all ranks.
        build_module: Builds this rank's share of the module on a tensor axis. The forward pass returns the summed loss over
            its targets in float32. Weights are uninitialized until `state.load`.

    Attributes:
        topology, mesh: See Args.
        deepspeed: DeepSpeed's engine.
        device: This rank's device.
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
        gated = GatedOptimizer(inner)
        with same_optimizer_at_stages_1_and_2():
            self.deepspeed, *_ = deepspeed.initialize(
                model=module,
                optimizer=gated,
                mpu=mpu,
                config=with_small_bucket(options.deepspeed, module),
            )
        self.device = torch.device(self.deepspeed.device)
        self._stage = build_stage(self.deepspeed, mesh, options.gradient_clip)
        self.state = ZeroState(self.deepspeed, self._stage, gated, topology, mesh, options.optimizer)
        self._gate = UpdateGate(self._stage, WeightStep(inner, self.state))
        gated.connect(self._gate)
        self._replica_check = ReplicaCheck(self.state)
        self._partial_gradients = PartialGradients(self.state, options.zero.offload_optimizer)
        replicated_weights = [self.state.parameters[name] for name in self._partial_gradients.names]
        self._nonfinite = NonfiniteWatch(replicated_weights, self.device)

    def forward_backward(self, micro_batches: list[Inputs], num_targets: float) -> PassResult:
        """Accumulate the gradient of the mean loss over this rank's micro-batches.

        Args:
            micro_batches: Inputs for this rank's forward passes, at least one.
            num_targets: Valid targets on all data-parallel ranks together. The loss is the mean over them: averaging the mean
                losses of ranks would weight targets unequally when some are masked.
        """
        # DeepSpeed divides by the accumulation steps in its configuration and averages over ranks. The weight undoes both.
        weight = self.mesh["replicate"].size * self.deepspeed.gradient_accumulation_steps() / num_targets
        self.deepspeed.train()
        # Keep the loss on the device: reading it after every micro-batch would stall a GPU.
        loss = torch.zeros((), device=self.device)
        self._nonfinite.reset()
        forward = Stopwatch(self.device)
        for number, inputs in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            # During the batch-size warm-up, steps have fewer micro-batches than DeepSpeed's configuration says.
            self.deepspeed.set_gradient_accumulation_boundary(is_last)
            with forward:
                loss_sum = self.deepspeed(**inputs)
            self.deepspeed.backward(loss_sum * weight)
            loss += loss_sum.detach()
            if not is_last:
                # Only counts the micro-batch.
                self.deepspeed.step()
        self._partial_gradients.sum_parts()
        sums = GradientSums(loss, self._nonfinite.detected, self._stage.local_squared_norm())
        return PassResult(sums, forward)

    def update(
        self,
        learning_rate: float,
        loss: float,
        sums: GradientSums,
        *,
        decide: Decide = lambda norm: Take(),
    ) -> Update:
        """Update the weights, unless a loss or gradient is not finite on any rank, or `decide` skips the update. Collective.

        A skipped update releases the gradients and changes nothing else.

        Args:
            learning_rate: Learning rate, multiplied by each parameter group's `scale`.
            loss: Mean loss over the targets on all ranks.
            sums: Sums over all ranks.
            decide: Decides about a finite update by its gradient norm. Called once.
        """
        for group in self.state.optimizer.param_groups:
            group["lr"] = learning_rate * group["scale"]
        self._gate.open(self._nonfinite_reason(loss, sums), decide)
        self._stage.clip_gradients(sums.squared_norm)
        self.deepspeed.step()
        update = self._gate.close()
        if update.is_applied:
            self.state.flat_state.check_registered(self.state.names_by_kind)
            if self.state.average is not None:
                self.state.average.update()
        return update

    def _nonfinite_reason(self, loss: float, sums: GradientSums) -> str | None:
        """Return the reason for skipping an update already known not to be finite, or None. Collective if there is one."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if sums.num_nonfinite:
            ranks = self._name_ranks(bool(self._nonfinite.detected))
            return f"a gradient that every tensor-parallel rank must have is not finite{ranks}"
        if not math.isfinite(sums.squared_norm):
            is_local = not math.isfinite(float(self._stage.local_squared_norm()))
            ranks = self._name_ranks(is_local)
            return f"the gradient norm is {sums.squared_norm**0.5}{ranks}"
        return None

    def _name_ranks(self, is_at_fault: bool) -> str:
        """Name the first rank at fault, such as " on rank 1, but not on all"; "" if all are or none is. Collective."""
        are_at_fault = gather_values(is_at_fault, self.topology)
        if all(are_at_fault) or not any(are_at_fault):
            return ""
        return f" on rank {are_at_fault.index(True)}, but not on all"

    def check_replicas(self) -> None:
        """Check that replicated weights and optimizer state are equal. Collective.

        Raises:
            TrainingDiverged: Replicas differ. Raised on all ranks.
        """
        self._replica_check.check()

    @torch.no_grad()
    def evaluate(self, batches: Iterable[tuple[str, Inputs]], num_targets: Mapping[str, int]) -> EvaluationLosses:
        """Compute the mean loss over the valid targets in all ranks' batches. Collective.

        Args:
            batches: This rank's batches, each with its group name. Every rank has the same number of batches.
            num_targets: Valid targets in this rank's batches, by group. All ranks list the same groups.
        """
        self.deepspeed.eval()
        totals = torch.zeros(len(num_targets), dtype=torch.float64, device=self.device)
        rows = dict(zip(num_targets, totals, strict=True))
        for group, inputs in batches:
            rows[group] += self.deepspeed(**inputs)
        sums = self.sum_over_ranks(*totals, *num_targets.values())
        losses = sums[: len(rows)]
        targets = sums[len(rows) :]
        # All ranks sharing a sample count its targets. Tensor-parallel ranks have the same loss, the others a part of it.
        num_counts = self.mesh["sample"].size / self.mesh["tensor"].size
        return EvaluationLosses.from_sums(list(num_targets), losses, targets, num_counts)

    def sum_over_ranks(self, *numbers: float | Tensor) -> list[float]:
        """Sum each number over all ranks, in one exchange and waiting for the device once. Collective.

        Args:
            numbers: Numbers, or tensors without dimensions on the device.
        """
        # Float64 represents every count and every float32. Adding a host number passes it to a kernel without copying.
        sums = torch.zeros(len(numbers), dtype=torch.float64, device=self.device)
        for total, number in zip(sums, numbers, strict=True):
            total += number
        dist.all_reduce(sums)
        return sums.tolist()  # type: ignore[no-any-return]  # a list, since `sums` has one dimension
