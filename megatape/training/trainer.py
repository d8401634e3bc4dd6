"""A training run: its model, its data, how far it is, and the loop over its steps."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from megatape.attention.operation import select_backend
from megatape.checkpoint.manager import CheckpointManager
from megatape.checkpoint.reader import CheckpointReader, restore_rng
from megatape.checkpoint.writer import RunPlace
from megatape.config import Config, save_config
from megatape.data.training.loader import Loader
from megatape.data.training.mixture import named
from megatape.data.training.splits import RunData
from megatape.errors import DataError, NotSaved, TrainingDiverged
from megatape.files import retry_transient_errors
from megatape.model.build import build_model
from megatape.model.needs import attention_needs
from megatape.model.trainable import check_trainable
from megatape.model.transformer import Transformer
from megatape.optim.schedules import learning_rate
from megatape.parallel.mesh import Axis, make_mesh
from megatape.registry import CALLBACKS
from megatape.run_folder import RunFolder
from megatape.runtime.exchange import on_all, on_main
from megatape.runtime.lease import Lease
from megatape.runtime.pace import Pace, PhaseKind, unlimited
from megatape.runtime.run_log import RunLog
from megatape.runtime.shared_folder import check_shared
from megatape.runtime.topology import Topology
from megatape.training.backends import updates_by_kernel, working_backends
from megatape.training.callbacks.callback import Callbacks, RunContext
from megatape.training.evaluation import Validation, evaluate, on_device, positions_of, read_validation
from megatape.training.fp8 import working_product
from megatape.training.hardware import peak_memory
from megatape.training.initial_state import initial_state
from megatape.training.interrupt import Interrupt
from megatape.training.prefetch import Prefetcher, StepBatches
from megatape.training.resume import check_continues, repeated_steps, restart, unevaluated_step
from megatape.training.speed import Speed
from megatape.training.spike_policy import Decision, Rollback, SpikePolicy, Take
from megatape.training.state import TrainState
from megatape.training.status import StepStatus
from megatape.training.step import StepMetrics, StepOutput
from megatape.zero.distributed import own_device
from megatape.zero.engine import Engine, Gradients

SKIPPED = "skipped (training.skip_samples)"
BUILT_IN = ("metrics", "position_views", "profile")  # callbacks of every run


@dataclass(frozen=True)
class Start:
    """How a run starts, beside its configuration.

    Attributes:
        resume: "auto" for the newest valid checkpoint of the run's folder (a new run if there is none), a checkpoint folder,
            or None for a new run.
        allow_changes: let a resumed run change what same_run.NEEDS_CONFIRMATION names.
        base: where the base of the checkpoint that the run starts from is now, if not where that says.
        profiled_steps: steps to trace, 0 for none.
    """

    resume: str | None = None
    allow_changes: bool = False
    base: Path | None = None
    profiled_steps: int = 0


class Trainer:
    """A run, ready to continue from `state.step`. Collective over the ranks, like all its methods.

    Args:
        config: of the run.
        data: opened by this rank.
        topology: all ranks.
        lease: of the run's folder, held while the trainer exists.
        start: where the run begins, by default with a new run.
        pace: is told what the run does, for the watch over the ranks.

    Raises:
        UserError, FileNotFoundError: configuration, data and checkpoint do not fit together.
    """

    def __init__(
        self,
        config: Config,
        data: RunData,
        topology: Topology,
        lease: Lease,
        start: Start | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.config, self.data, self.topology, self.lease = config, data, topology, lease
        self.start, self.pace = start or Start(), pace or unlimited()
        self.folder = RunFolder(Path(config.run.directory))
        if self.start.resume is None:
            on_main(lambda: retry_transient_errors(self.folder.check_new), topology)

        self.mesh = make_mesh(topology, {"tensor": config.parallel.tp})
        self.loader = Loader(
            data.train,
            global_batch_size=config.training.global_batch_size,
            micro_batch_size=config.training.micro_batch_size,
            rank=self.mesh["batch"].rank,
            world_size=self.mesh["batch"].size,
            positions=positions_of(config),
            warmup={stage.length: -(-stage.tokens // config.data.sequence_length) for stage in config.data.length_warmup},
        )
        # Model and optimizer, under DeepSpeed.
        device = own_device()
        self.backends = working_backends(config, device, topology)
        self.attention = select_backend(attention_needs(config, device.type)[0], self.backends)
        self.fp8 = working_product(config, device, topology)
        self._updates_by_kernel = updates_by_kernel(config, device, topology, self.backends)
        self.engine = Engine(config, topology, self.mesh, self._build)
        self.prefetcher = Prefetcher(self.loader, self.engine.device)

        # State, and what follows it.
        self.state = TrainState(config.data.sequence_length)
        self.policy = SpikePolicy(config.training)
        self.next_status: StepStatus | None = None  # all-reduced status of the next step; None before the first one
        self._num_skipped = 0  # steps in a row with a fault
        self.log = RunLog(self.folder, lease, topology)
        context = RunContext(
            config=config,
            folder=self.folder,
            topology=topology,
            engine=self.engine,
            log=self.log,
            speed=Speed(config, topology.world_size),
            unigram_entropy=data.train.unigram_entropy,
            profiled_steps=self.start.profiled_steps,
        )
        names = dict.fromkeys((*BUILT_IN, *config.logging.callbacks))
        self.callbacks = Callbacks({name: CALLBACKS[name].load()(context) for name in names}, self.log)
        self.checkpoints = CheckpointManager(
            RunPlace(self.folder, lease, topology),
            config.checkpoint,
            self.engine,
            self.state_dict,
            data.tokenizer.files,
            self.policy.protected,
            self.callbacks,
            self.log,
            self.pace,
        )
        check_shared(self.folder.directory, topology)
        self.origin = self._load()
        on_main(lambda: retry_transient_errors(self._record), topology)

    def train(self) -> bool:
        """Train to training.steps, or until a signal asks to stop (training/interrupt.py); either way a checkpoint is left.

        A checkpoint that cannot be written is tried again at the next interval (checkpoint/manager.py). While the run's folder
        cannot be reached training continues, until another run may have taken it over: then it waits (runtime/lease.py). A
        step whose loss or gradient is not finite is skipped.

        Returns:
            Whether a scheduler stopped the run before its end, so that it should be started again.

        Raises:
            TrainingDiverged: too many steps in a row were skipped, or the validation loss is not finite.
            NotSaved: the last checkpoint could not be written.
            LeaseLost: another run has taken the folder.
            DataError: a rank cannot read its samples; a checkpoint is left.
        """
        with Interrupt() as interrupt, self.callbacks, self._saved_without_data(), self.checkpoints, self.prefetcher:
            stop = self._begin(interrupt)
            is_save_due = False
            while self.state.step < self.config.training.steps and not stop:
                started = time.perf_counter()
                output = self.train_step(interrupt)
                seconds = time.perf_counter() - started
                stop = output.stop_requested
                self._watch_pace(output, seconds)
                self._report_trouble(output)
                if isinstance(output.decision, Rollback) and self._roll_back():
                    continue

                validation = None
                unreadable: DataError | None = None
                if self._is_evaluation_due and (not stop or self._is_last):
                    try:
                        validation = self.evaluate()
                    except DataError as error:
                        unreadable = error  # the step has been made all the same, and is about to be saved
                    else:
                        stop = self._stop_requested(interrupt)  # a signal during an evaluation must not cost another step

                self._report(output, seconds, validation, interrupt)
                if unreadable:
                    raise unreadable
                self._count_skipped(output)

                if self.state.step % self.config.training.replica_check_interval == 0:
                    self.engine.check_replicas()
                self.checkpoints.poll(output.num_saves_ended)
                is_save_due = is_save_due or self.state.step % self.config.checkpoint.interval == 0
                if stop or self._is_last:
                    self.checkpoints.save_last()
                    stop = self._stop_requested(interrupt)
                # While steps are skipped nothing is gained, and weights that make all of them fail must not replace older ones.
                elif is_save_due and not output.skipped:
                    is_save_due = not self.checkpoints.save()
                    stop = self._stop_requested(interrupt)
            return self._end(stop, interrupt)

    def train_step(self, interrupt: Interrupt) -> StepOutput:
        """Make the next step.

        A step that is to be skipped for a spike is computed again: data give the same numbers, a fault of a device does not.
        Raises DataError on all ranks if one cannot read its samples.
        """
        state = self.state
        self.pace.enter(PhaseKind.STEP, f"step {state.step + 1}", self.loader.sequence_length(state.samples))
        with self.pace.waiting("the writing of the profile"):
            self.callbacks.before_step(state.step + 1)
        rate = learning_rate(state.step, self.config.training.steps, self.config.optimizer.learning_rate, self.config.schedule)
        samples = range(state.samples, state.samples + self.config.training.global_batch_size)
        batches, waited = self._wait_for_batches(samples.start)
        if self.next_status is None:  # the first step of this process
            self.next_status, _ = self._exchange_status(samples.start, interrupt)
        expected = self.next_status
        if expected.num_unreadable:
            self._raise_data_error(batches.error)
        self.prefetcher.start(samples.stop)
        num_targets = max(1.0, expected.num_targets / self.mesh["tensor"].size)
        output = StepOutput(state.step + 1, samples, rate, digest=round(expected.digest / self.mesh["tensor"].size))

        if self.policy.skips(samples):
            status, more = self._exchange_status(samples.stop, interrupt)
            output = replace(output, skipped=SKIPPED, is_planned=True)
        else:
            output, status, more = self._compute(output, batches, num_targets, interrupt)
            if output.skipped and output.skipped == output.decision.reason:
                first = output
                output, status, more = self._compute(first, batches, num_targets, interrupt)
                remark = first.remark
                if (output.loss, output.grad_norm) != (first.loss, first.grad_norm):
                    remark += f"; computed again, they are {output.loss:.4g} and {output.grad_norm:.4g}: a transient fault"
                output = replace(output, remark=remark)
            has_fault = bool(output.skipped) and output.skipped != output.decision.reason
            self.policy.observe(output.step, output.loss, output.grad_norm, output.decision, has_fault)
        self.next_status = status
        state.advance(samples, output.digest, updated=not output.skipped)
        return replace(
            output,
            stop_requested=status.num_stop_requests > 0,
            num_saves_ended=status.num_saves_ended,
            local_busy_seconds=output.local_busy_seconds + waited + more,
        )

    def evaluate(self) -> Validation:
        """Loss on the validation splits, and the position view.

        Raises TrainingDiverged if the loss is not finite, so that a run whose steps are all skipped is no success; and
        DataError on all ranks if one cannot read its share.
        """
        self.pace.enter(PhaseKind.EVALUATION, f"the evaluation after step {self.state.step}")
        with self.pace.waiting("the reading of validation data"):
            batches = read_validation(self.config, self.data, self.mesh["batch"])
        if self.engine.sum_over_ranks(bool(batches.error))[0]:
            self._raise_data_error(batches.error)
        validation = evaluate(self.config, self.engine, self.data, batches)
        if not math.isfinite(validation.loss):
            raise TrainingDiverged(
                f"the validation loss after step {self.state.step} is {validation.loss}: the weights have diverged. "
                f"Checkpoints in {self.folder.checkpoints} are from before; lower optimizer.learning_rate or "
                "training.gradient_clip, and continue with --resume auto"
            )
        return validation

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps beside weights and optimizer state."""
        return self.state.state_dict() | {
            "world_size": self.topology.world_size,
            "fingerprints": self.data.fingerprints,
            "attention": self.attention,
            "guard": self.policy.state_dict(),
            "callbacks": self.callbacks.state_dict(),
            "config": self.config.model_dump(),
        }

    # Before the first step.

    def _build(self, axis: Axis) -> Transformer:
        training = self.config.training
        model = build_model(
            self.config.model,
            axis,
            trainable=training.trainable,
            frozen=training.frozen,
            fp8=self.fp8,
            backends=self.backends,
            update_by_kernel=self._updates_by_kernel,
            num_shifted_groups=training.num_shifted_groups,
            activation_checkpointing=training.activation_checkpointing,
            compiler="inductor" if training.compile else None,
        )
        check_trainable(model, training.trainable, training.frozen)
        return model

    def _load(self) -> Path | None:
        """Fill masters and optimizer state: from a checkpoint, whose folder it returns, or with initial weights and zeros."""
        # Ours draw from generators of their own. These, which checkpoints keep, are for encodings and backends of a user's.
        torch.manual_seed(self.config.training.seed + self.topology.rank)
        start, reader, corrupted = self.start, None, list[Path]()
        if start.resume is not None:
            reader, corrupted = self.checkpoints.load(start.resume, start.base)
        if reader is None:
            if start.resume is not None:
                restart(self.folder, self.log, self.topology)
            initial = initial_state(self.config, self.engine.state.parameters, self.topology, self.data.tokenizer, start.base)
            self.engine.state.load(initial.read, step=0)
            self.checkpoints.base = initial.base
            return None
        changed = check_continues(reader, self.config, self.data, self.topology, self.attention, start.allow_changes)
        self._continue(reader)
        self.policy.load_state_dict(reader.state.get("guard", {}))
        self.checkpoints.set_aside(corrupted)
        self.checkpoints.base = reader.base
        self.log.say(f"resumed from {reader.directory}: {reader.samples:,} samples and {reader.tokens:,} tokens seen")
        for line in changed:
            self.log.say(f"changed since then: {line}")
        return reader.directory

    def _continue(self, reader: CheckpointReader) -> None:
        """Be where the run was when it wrote the checkpoint."""
        self.engine.state.load(reader.read, reader.updates)
        self.state.load_state_dict(reader.state)
        self.callbacks.load_state_dict(reader.state.get("callbacks", {}))
        self.checkpoints.saved_step = reader.step
        self.next_status = None
        snapshot = reader.rng_state(self.topology.rank)
        if snapshot is not None:
            restore_rng(snapshot)

    def _record(self) -> None:
        """Leave in the folder what shows that a run trains here."""
        if self.origin:
            self.folder.mark_latest(self.origin)
        # Before config.json, so that config.json alone means that something was removed.
        self.folder.metrics.touch()
        save_config(self.config, self.folder.config)

    def _begin(self, interrupt: Interrupt) -> bool:
        """Tell where the run begins, and evaluate what a stop kept from its evaluation. Returns whether to stop."""
        step, steps, world_size = self.state.step, self.config.training.steps, self.topology.world_size
        self.log.step = step
        if self.topology.is_main:
            parts = [f"{world_size} rank{'s' * (world_size > 1)} on {self.engine.device.type}"]
            parts += [f"from {self.origin}"] if self.origin else []
            parts += filter(None, [repeated_steps(self.folder, self.log, step)])
            self.log.record("resumed" if self.origin else "started", ", ".join(parts))
        self.callbacks.on_start(step)
        if step >= steps:
            self.log.say(f"already at step {step} of training.steps {steps}: nothing to do; raise training.steps to continue")
        stop = self._stop_requested(interrupt)
        if not stop and self._is_evaluation_due:
            metrics = unevaluated_step(self.folder, self.log, step, self.topology)
            if metrics:
                self.callbacks.on_step(replace(metrics, validation=self.evaluate()))
                stop = self._stop_requested(interrupt)
        return stop

    # In a step.

    def _compute(
        self, output: StepOutput, batches: StepBatches, num_targets: float, interrupt: Interrupt
    ) -> tuple[StepOutput, StepStatus, float]:
        """Forward and backward pass and update: the result, what ranks told each other, and seconds of waiting for samples."""
        gradients = self.engine.forward_backward(
            [on_device(batch, self.engine.device) for batch in batches.batches], num_targets
        )
        status, waited = self._exchange_status(output.samples.stop, interrupt, gradients)
        loss = status.loss / self.mesh["tensor"].size / num_targets
        update = self.engine.update(
            output.learning_rate,
            loss,
            status.num_nonfinite,
            status.square,
            skip_reason=partial(self.policy.skip_reason, loss),
        )
        decision: Decision = Take()
        if math.isfinite(loss) and math.isfinite(update.grad_norm):
            decision = self.policy.decide(loss, update.grad_norm)
        made = replace(
            output,
            loss=loss,
            grad_norm=update.grad_norm,
            skipped=update.skipped,
            decision=decision,
            remark=decision.reason,
            local_busy_seconds=gradients.forward.seconds(),
        )
        return made, status, waited

    def _exchange_status(
        self, consumed: int, interrupt: Interrupt, gradients: Gradients | None = None
    ) -> tuple[StepStatus, float]:
        """What all ranks tell each other before the step after `consumed` samples, and of the gradients of the one before it.

        Returns the sum over ranks, and for how many seconds this one waited for its samples. Collective.
        """
        batches, waited = self._wait_for_batches(consumed)
        local = StepStatus(
            loss=gradients.loss if gradients else 0.0,
            num_nonfinite=gradients.num_nonfinite if gradients else 0.0,
            square=gradients.square if gradients else 0.0,
            num_stop_requests=interrupt.requested,
            num_saves_ended=self.checkpoints.has_ended,
            num_unreadable=bool(batches.error),
            num_targets=batches.num_targets,
            digest=batches.digest,
        )
        return local.sum_over_ranks(self.engine), waited

    def _wait_for_batches(self, consumed: int) -> tuple[StepBatches, float]:
        """The batches of the step after `consumed` samples, and for how many seconds this rank waited for them.

        It may have to wait for a file server or a copy.
        """
        with self.pace.waiting(f"the reading of samples {consumed} and after"):
            started = time.perf_counter()
            batches = self.prefetcher.get(consumed)
            return batches, time.perf_counter() - started

    # After a step.

    @property
    def _is_last(self) -> bool:
        return self.state.step == self.config.training.steps

    @property
    def _is_evaluation_due(self) -> bool:
        return self._is_last or self.state.step % self.config.evaluation.interval == 0

    def _stop_requested(self, interrupt: Interrupt) -> bool:
        """Whether a signal reached any rank. Collective, so that all stop at the same step."""
        return self.engine.sum_over_ranks(interrupt.requested)[0] > 0

    def _watch_pace(self, output: StepOutput, seconds: float) -> None:
        """Note how busy this rank was, and report slow ranks."""
        self.pace.record_busy(output.local_busy_seconds / seconds)
        while self.pace.warnings:
            warning = self.pace.warnings.popleft()
            self.log.warning(warning)
            self.log.record("slow rank", warning)

    def _report_trouble(self, output: StepOutput) -> None:
        """Report a spike or a fault, before the step's metrics are written: a rollback may undo the step."""
        if output.remark or (output.skipped and not output.is_planned):
            what = output.remark or output.skipped
            self.log.warning(f"{output.place}: {what}{'; the step is skipped' * bool(output.skipped)}")
        if output.remark:
            self.log.record("spike", f"{output.place}: {output.remark}")

    def _roll_back(self) -> bool:
        """After a spike, go back to the newest valid stable checkpoint. Collective.

        Sets newer ones aside, and skips the samples of the steps that led here.

        Returns whether it did: not if there is no such checkpoint, or the run has only just gone back.
        """
        self.checkpoints.wait()
        reader, step, samples = None, self.state.step, self.state.samples
        if self.policy.may_roll_back(samples):
            with self.pace.waiting("the return to a checkpoint"):
                reader = self.checkpoints.rollback_target(lambda found: self.policy.stable(found, step), self.start.base)
                if reader is not None:
                    self._continue(reader)
                    self.policy.roll_back(reader.state["guard"], range(reader.samples, samples))
                    self.checkpoints.abandon_newer(reader)
        if reader is None:
            self.log.warning("there is no checkpoint to go back to: the run continues without the step")
            return False
        first, last = self.policy.rolled_back[-1]
        self.log.step = self.state.step
        self.callbacks.on_start(self.state.step)
        self.log.record("rewound", f"to {reader.directory}; samples {first} to {last} will be skipped")
        self.log.say(f"went back to {reader.directory}; samples {first} to {last} will be skipped")
        return True

    def _report(self, output: StepOutput, seconds: float, validation: Validation | None, interrupt: Interrupt) -> None:
        """Pass the metrics of a step on, once it is known that the run's folder is still this run's."""
        with self.pace.waiting(f"the metrics of step {output.step}"):
            self.lease.wait(lambda: interrupt.requested, self.log.warning)
            self.log.step = output.step
            self.callbacks.on_step(
                StepMetrics(
                    step=output.step,
                    loss=output.loss,
                    grad_norm=output.grad_norm,
                    lr=output.learning_rate,
                    tokens=self.state.tokens,
                    samples=self.state.samples,
                    seconds=seconds,
                    peak_memory=peak_memory(),
                    validation=validation,
                    corpora=named(self.data.train.order.counts(self.state.samples)),
                    skipped=output.skipped,
                    digest=output.digest,
                )
            )

    def _count_skipped(self, output: StepOutput) -> None:
        """Note a skipped step, once its metrics are written.

        Raises TrainingDiverged when more than training.max_skipped_steps in a row were skipped for their faults.
        """
        if output.skipped:
            self.log.record("skipped", f"{output.place}: {output.skipped}")
        if output.is_planned:
            return
        self._num_skipped = self._num_skipped + 1 if output.skipped else 0
        allowed = self.config.training.max_skipped_steps
        if self._num_skipped > allowed:
            raise TrainingDiverged(
                f"{output.place}: {output.skipped}. {self._num_skipped} step{'s' * (self._num_skipped > 1)} in a row had such "
                f"faults, training.max_skipped_steps allows {allowed}. Checkpoints in {self.folder.checkpoints} are valid; "
                "lower optimizer.learning_rate or training.gradient_clip, lengthen the warm-up, and continue with --resume auto"
            )

    def _end(self, stop: bool, interrupt: Interrupt) -> bool:
        """Save what is not saved, and tell how the run ends. Returns what `train` does."""
        if self.state.step > self.checkpoints.saved_step:
            self.checkpoints.save_last()
        if not stop:
            self.log.record("finished")
            return False
        self.log.say(f"stopped on request after step {self.state.step}; --resume auto continues")
        self.log.record("stopped", "on request")
        return not self._is_last and not self.engine.sum_over_ranks(interrupt.by_user)[0]

    @contextmanager
    def _saved_without_data(self) -> Iterator[None]:
        """Around training: when data cannot be read, the steps since the last checkpoint are saved before the run ends."""
        try:
            yield
        except DataError as error:
            saved = "nothing to save"
            if self.state.step > self.checkpoints.saved_step:
                try:
                    self.checkpoints.save_last()
                except NotSaved as failure:
                    raise NotSaved(f"{error}; {failure}") from None
                saved = f"checkpoint {self.folder.checkpoint(self.checkpoints.saved_step)}"
            raise DataError(f"{error}; {saved}; once the data can be read, --resume auto continues") from None

    def _raise_data_error(self, error: str) -> NoReturn:
        """End the run because a rank cannot read its samples. error: why this one cannot, or ""."""

        def fail() -> None:
            if error:
                raise DataError(error)

        on_all(fail, self.topology, context=f"the data of step {self.state.step + 1} cannot be read: ")
        raise AssertionError("no rank says which samples it cannot read")
