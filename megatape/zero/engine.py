"""Training engine: passes, updates and evaluations under DeepSpeed ZeRO."""

import math
from collections.abc import Callable, Iterable, Mapping

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from megatape.distributed.mesh import Axis, Mesh
from megatape.distributed.topology import Topology, name_ranks
from megatape.distributed.values.exchange import gather_values
from megatape.optim.optimizer import build_optimizer
from megatape.zero.engine_options import EngineOptions
from megatape.zero.passes.computation_check import ComputationCheck
from megatape.zero.passes.evaluation_losses import EvaluationLosses
from megatape.zero.passes.nonfinite import NonfiniteDetector
from megatape.zero.passes.partial_gradients import PartialGradients
from megatape.zero.passes.pass_result import GradientSums, PassResult
from megatape.zero.passes.recorded_passes import Inputs
from megatape.zero.passes.replays import Recording, Replays
from megatape.zero.passes.stopwatch import Stopwatch
from megatape.zero.setup.internals import same_optimizer_at_stages_1_and_2
from megatape.zero.setup.mpu import Mpu
from megatape.zero.setup.sharded_module import build_sharded, with_small_bucket
from megatape.zero.stages.build import build_stage
from megatape.zero.state.memory_check import MemoryCheck
from megatape.zero.state.replica_check import ReplicaCheck
from megatape.zero.state.zero_state import ZeroState
from megatape.zero.update.decision import Apply, Decide, Update
from megatape.zero.update.gate import UpdateGate
from megatape.zero.update.gated_optimizer import GatedOptimizer
from megatape.zero.update.weight_step import WeightStep


class Engine:
    """A module being trained under DeepSpeed ZeRO.

    Args:
        options: Engine options.
        topology: All ranks.
        mesh: Mesh over all ranks.
        build_module: Builds this rank's share of the module on a tensor axis. The forward pass returns the summed loss over
            its targets in float32. Weights are uninitialized until `state.load`.
        recording: How to record the passes of a micro-batch, to replay them from then on. None to run them each time.

    Attributes:
        topology, mesh: See Args.
        deepspeed_engine: DeepSpeed's engine.
        device: This rank's device.
        state: Master weights and optimizer state.
        replays: Replays of recorded passes.
    """

    def __init__(
        self,
        options: EngineOptions,
        topology: Topology,
        mesh: Mesh,
        build_module: Callable[[Axis], nn.Module],
        recording: Recording | None = None,
    ) -> None:
        self.topology = topology
        self.mesh = mesh
        mpu = Mpu(mesh)
        module = build_sharded(build_module, options.deepspeed_config, mesh, mpu)
        inner = build_optimizer(module.named_parameters(), options.optimizer)
        gated = GatedOptimizer(inner)
        with same_optimizer_at_stages_1_and_2():
            self.deepspeed_engine, *_ = deepspeed.initialize(
                model=module,
                optimizer=gated,
                mpu=mpu,
                config=with_small_bucket(options.deepspeed_config, module),
            )
        self.device = torch.device(self.deepspeed_engine.device)
        self.replays = Replays(module, recording, topology)
        self._stage = build_stage(self.deepspeed_engine, mesh, options.gradient_clip)
        self.state = ZeroState(self.deepspeed_engine, self._stage, gated, topology, mesh, options.optimizer)
        self._weight_step = WeightStep(inner, self.state)
        self._gate = UpdateGate(self._stage, self._weight_step)
        gated.connect(self._gate)
        self._replica_check = ReplicaCheck(self.state)
        self._memory_check = MemoryCheck(self.state, options.memory_check_interval)
        self._computation_check = ComputationCheck(self.deepspeed_engine, topology, mesh)
        self._partial_gradients = PartialGradients(self.state, options.zero.offload_optimizer)
        replicated_weights = [self.state.parameters[name] for name in self._partial_gradients.names]
        self._nonfinite = NonfiniteDetector(replicated_weights, self.device)

    def forward_backward(self, micro_batches: list[Inputs], num_targets: float) -> PassResult:
        """Accumulate the gradient of the mean loss over this rank's micro-batches.

        Args:
            micro_batches: Inputs for this rank's forward passes, at least one.
            num_targets: Valid targets on all data-parallel ranks together. The loss is the mean over them: averaging the mean
                losses of ranks would weight targets unequally when some are masked.
        """
        # DeepSpeed divides by the accumulation steps in its configuration and averages over ranks. The weight undoes both.
        weight = self.mesh["replicate"].size * self.deepspeed_engine.gradient_accumulation_steps() / num_targets
        self.deepspeed_engine.train()
        # Keep the loss on the device: reading it after every micro-batch would stall a GPU.
        loss = torch.zeros((), device=self.device)
        self._nonfinite.reset()
        forward_stopwatch = Stopwatch(self.device)
        for number, inputs in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            # During the batch-size warm-up, steps have fewer micro-batches than DeepSpeed's configuration says.
            self.deepspeed_engine.set_gradient_accumulation_boundary(is_last)
            with forward_stopwatch, self.replays.replacing_forward():
                loss_sum = self.deepspeed_engine(**inputs)
            self.deepspeed_engine.backward(loss_sum * weight)
            loss += loss_sum.detach()
            if not is_last:
                # Before the last micro-batch, DeepSpeed's step only counts it.
                self.deepspeed_engine.step()
        self._partial_gradients.sum_parts()
        sums = GradientSums(
            loss=loss,
            num_nonfinite=self._nonfinite.detected,
            squared_norm=self._stage.local_squared_norm(),
            num_changed=self._memory_check.num_changed(),
        )
        return PassResult(sums, forward_stopwatch)

    def update(
        self,
        learning_rate: float,
        loss: float,
        sums: GradientSums,
        *,
        decide: Decide = lambda norm: Apply(),
    ) -> Update:
        """Update the weights, unless a loss or gradient is not finite on any rank, or `decide` skips the update. Collective.

        A skipped update releases the gradients and changes nothing else.

        Args:
            learning_rate: Learning rate, multiplied by each parameter group's `scale`.
            loss: Mean loss over the targets on all ranks.
            sums: Sums over all ranks.
            decide: Decides about a finite update by its gradient norm. Called once.

        Raises:
            TrainingDiverged: Weights or optimizer state have changed since the last update. Raised on all ranks.
        """
        if sums.num_changed:
            self._memory_check.fail()
        self._weight_step.set_learning_rate(learning_rate)
        self._gate.open(self._nonfinite_reason(loss, sums), decide)
        self._stage.clip_gradients(sums.squared_norm)
        self.deepspeed_engine.step()
        update = self._gate.close()
        if update.is_applied:
            self.state.finish_update()
        self._memory_check.after_update()
        return update

    def _nonfinite_reason(self, loss: float, sums: GradientSums) -> str | None:
        """Return the reason for skipping an update already known not to be finite, or None. Collective if there is one."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if sums.num_nonfinite:
            ranks = self._describe_ranks_at_fault(bool(self._nonfinite.detected))
            return f"a gradient that every tensor-parallel rank must have is not finite{ranks}"
        if not math.isfinite(sums.squared_norm):
            is_local = not math.isfinite(float(self._stage.local_squared_norm()))
            ranks = self._describe_ranks_at_fault(is_local)
            return f"the gradient norm is {sums.squared_norm**0.5}{ranks}"
        return None

    def _describe_ranks_at_fault(self, is_at_fault: bool) -> str:
        """Name the ranks at fault, such as " on ranks 1, 3, but not on all"; "" if all are or none is. Collective."""
        are_at_fault = gather_values(is_at_fault, self.topology)
        if all(are_at_fault) or not any(are_at_fault):
            return ""
        ranks = [rank for rank, at_fault in enumerate(are_at_fault) if at_fault]
        return f" on {name_ranks(ranks)}, but not on all"

    def check_computation(self, inputs: Inputs) -> None:
        """Check that all replicas compute the same numbers from the same samples. Collective.

        Args:
            inputs: Keyword arguments for the module's forward pass on a micro-batch. Those of the first replica are used.

        Raises:
            TrainingDiverged: Results differ. Raised on all ranks.
        """
        self._computation_check.check(inputs)

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
        self.deepspeed_engine.eval()
        totals = torch.zeros(len(num_targets), dtype=torch.float64, device=self.device)
        rows = dict(zip(num_targets, totals, strict=True))
        for group, inputs in batches:
            rows[group] += self.deepspeed_engine(**inputs)
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
