"""A training run: its model, its data, how far it is, and the loop over its steps."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from megatape.accounting.traffic import spanning_warning
from megatape.attention.attend import select_backend
from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.manager import CheckpointManager
from megatape.checkpoint.reader import CheckpointReader, restore_rng
from megatape.checkpoint.selection import find_checkpoint
from megatape.config import Config, save_config
from megatape.data.training.mixture import RunData, named
from megatape.distributed.exchange import on_all
from megatape.distributed.mesh import make_mesh
from megatape.distributed.topology import Topology
from megatape.errors import DataError, NotSaved, TrainingDiverged
from megatape.model.smoke_test import attention_needs
from megatape.optim.schedules import step_learning_rate
from megatape.registry import CALLBACKS
from megatape.reliability.lease import Lease
from megatape.reliability.pace import Pace, PhaseKind
from megatape.reliability.run_log import RunLog
from megatape.reliability.shared_folder import check_shared
from megatape.reliability.signals import STOPPING, handled
from megatape.run_folder import RunFolder
from megatape.training.build import build_engine, build_loader
from megatape.training.callbacks.callback import Callbacks, RunContext
from megatape.training.evaluation import Validation, evaluate, on_device, read_validation
from megatape.training.hardware import Speed, device_name, peak_memory
from megatape.training.interrupt import Interrupt
from megatape.training.prefetch import Prefetcher, StepBatches
from megatape.training.spike_policy import Rollback, SpikePolicy
from megatape.training.start import check_continues, export_warning, initial_state, recorded_steps, restart, unevaluated_step
from megatape.training.step import StepMetrics, StepOutput, StepStatus, TrainState
from megatape.utils.masking import mask_values
from megatape.utils.software import package_version, typed_command, versions
from megatape.utils.units import plural
from megatape.zero.engine import Gradients

SKIPPED = "skipped (training.skip_samples)"
NO_TARGETS = "its samples have no targets"
BUILT_IN = ("metrics", "position_views", "profile")  # callbacks of every run


@dataclass(frozen=True)
class Start:
    """How a run starts, beside its configuration.

    Attributes:
        resume: "auto" for the newest valid checkpoint of the run's folder (a new run if there is none), a checkpoint folder,
            or None for a new run.
        allow_changes: let a resumed run change settings that must be confirmed (`confirmed` in docs/config.md).
        base: where the base of the checkpoint that the run starts from is now, if not where that says.
        profile: steps to trace, 0 for none.
    """

    resume: str | None = None
    allow_changes: bool = False
    base: Path | None = None
    profile: int = 0


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
        self.config = config
        self.data = data
        self.topology = topology
        self.start = start or Start()
        self.pace = pace or Pace()
        self.folder = RunFolder(Path(config.run.directory))
        self.log = RunLog(self.folder, lease, topology)
        self.environment = RunEnvironment(self.folder, lease, topology, self.log, self.pace, self.start.base)
        if self.start.resume is None:
            self.environment.on_main(self.folder.check_new)

        self.mesh = make_mesh(topology, config.parallel.axes)
        self.loader = build_loader(config, data, self.mesh["batch"])
        self.engine, self.backends = build_engine(config, topology, self.mesh)
        self.attention = select_backend(attention_needs(config, self.engine.device.type)[0], self.backends)
        self.prefetcher = Prefetcher(self.loader, self.engine.device)

        # State, and what follows it.
        self.interrupt = Interrupt()
        self.state = TrainState(config.data.sequence_length)
        self.policy = SpikePolicy(config.training, config.batches)
        self.next_status: StepStatus | None = None  # all-reduced status of the next step; None before the first one
        self.num_steps = 0  # Steps made by this process, including those that a rollback discards
        self._num_skipped = 0  # steps in a row, without those of a plan
        self.speed = Speed(config, topology.world_size)
        context = RunContext(
            config=config,
            folder=self.folder,
            topology=topology,
            engine=self.engine,
            log=self.log,
            speed=self.speed,
            unigram_entropy=data.train.unigram_entropy,
            profiled_steps=self.start.profile,
        )
        names = dict.fromkeys((*BUILT_IN, *config.logging.callbacks))
        self.callbacks = Callbacks({name: CALLBACKS[name].load()(context) for name in names}, self.log)
        self.checkpoints = CheckpointManager(
            self.environment,
            config.checkpoint,
            self.engine,
            self.state_dict,
            data.tokenizer.files,
            self.policy.protected,
            self.callbacks,
        )
        check_shared(self.folder.directory, topology)
        self.origin = self._load()
        self.environment.on_main(self._record)

    def train(self, ends_process: bool = False) -> bool:
        """Train to training.steps, or until a signal asks to stop (training/interrupt.py); either way a checkpoint is left.

        A checkpoint that cannot be written is tried again at the next interval (checkpoint/manager.py). While the run's folder
        cannot be reached training continues, until another run may have taken it over: then it waits (reliability/lease.py). A
        step whose loss or gradient is not finite is skipped.

        Args:
            ends_process: Whether the process ends after training. It then ignores further signals.

        Returns:
            Whether a scheduler stopped the run before its end, so that it should be started again.

        Raises:
            TrainingDiverged: too many steps in a row were skipped, or the validation loss is not finite.
            NotSaved: the last checkpoint could not be written.
            LeaseLost: another run has taken the folder.
            DataError: a rank cannot read its samples; a checkpoint is left.
        """
        signals = handled(self.interrupt.request, *STOPPING, ends_process=ends_process)
        with signals, self.callbacks, self._saved_without_data(), self.checkpoints, self.prefetcher:
            stop = self._begin()
            is_save_due = False
            while self.state.step < self.config.training.steps and not stop:
                started = time.perf_counter()
                waited = self.prefetcher.waited
                output = self.train_step()
                seconds = time.perf_counter() - started
                stop = output.status.num_stop_requests > 0
                self._watch_pace((output.forward_seconds + self.prefetcher.waited - waited) / seconds)
                self._report_trouble(output)
                if isinstance(output.decision, Rollback) and self._roll_back():
                    is_save_due = False  # the run is at a checkpoint
                    continue

                validation = None
                if self._is_evaluation_due and (not stop or self._is_last):
                    try:
                        validation = self.evaluate()
                    except DataError:
                        self._report(output, seconds)  # the step has been made all the same, and is about to be saved
                        raise
                    stop = self._stop_requested()  # a signal during an evaluation must not cost another step
                self._report(output, seconds, validation)
                self._count_skipped(output)

                if self.state.step % self.config.training.replica_check_interval == 0:
                    self.engine.check_replicas()
                self.checkpoints.poll(output.status.num_saves_ended)
                is_save_due = is_save_due or self.state.step % self.config.checkpoint.interval == 0
                if stop or self._is_last:
                    self.checkpoints.close()
                    stop = self._stop_requested()
                # While steps are skipped nothing is gained, and weights that make all of them fail must not replace older ones.
                elif is_save_due and not output.skipped:
                    is_save_due = not self.checkpoints.save()
                    stop = self._stop_requested()
            return self._end(stop)

    def train_step(self) -> StepOutput:
        """Make the next step.

        A step that is to be skipped for a spike is computed again: data give the same numbers, a fault of a device does not.
        Raises DataError on all ranks if one cannot read its samples.
        """
        state = self.state
        self.pace.enter(PhaseKind.STEP, f"step {state.step + 1}", self.loader.sequence_length(state.samples))
        with self.pace.waiting("the writing of the profile"):
            self.callbacks.before_step(state.step + 1)
        samples = range(state.samples, state.samples + self.loader.batches.after(state.samples))
        batches = self._read(samples.start)
        expected = self.next_status or self._exchange_status(samples.start)  # for the first step of this process
        self._check_readable(expected.num_unreadable, batches.error)
        self.prefetcher.start(samples.stop)

        readers = self.mesh["sample"].size  # of each sample, all of which count it
        rate = step_learning_rate(self.config, state.step)
        output = StepOutput(state.step + 1, samples, rate, round(expected.digest / readers))
        if self.policy.skips(samples):
            output = replace(output, skipped=SKIPPED, is_planned=True, status=self._exchange_status(samples.stop))
        elif not expected.num_targets:
            output = replace(output, skipped=NO_TARGETS, status=self._exchange_status(samples.stop))
        else:
            num_targets = expected.num_targets / readers
            output = self._compute(output, batches, num_targets)
            if output.skipped and not output.fault:  # for a spike
                remark = output.remark
                before = (output.loss, output.grad_norm)
                output = self._compute(output, batches, num_targets)
                if (output.loss, output.grad_norm) != before:
                    remark += f"; computed again, they are {output.loss:.4g} and {output.grad_norm:.4g}: a transient fault"
                output = replace(output, remark=remark)
            self.policy.observe(output.step, output.loss, output.grad_norm, output.decision, bool(output.fault))
        self.next_status = output.status
        state.advance(samples, output.digest, updated=not output.skipped)
        self.num_steps += 1
        return output

    def evaluate(self) -> Validation:
        """Loss on the validation splits, and the position view.

        Raises TrainingDiverged if the loss is not finite, so that a run whose steps are all skipped is no success; and
        DataError on all ranks if one cannot read its share, or if no sample has a target.
        """
        self.pace.enter(PhaseKind.EVALUATION, f"the evaluation after step {self.state.step}")
        with self.pace.waiting("the reading of validation data"):
            batches = read_validation(self.config, self.data, self.mesh["batch"], self.state.selection)
        self._check_readable(self.engine.sum_over_ranks(bool(batches.error))[0], batches.error)
        validation = evaluate(self.config, self.engine, self.data, batches)
        if validation is None:
            raise DataError(
                f"the evaluation after step {self.state.step}: the {self.config.evaluation.samples:,} validation samples of a "
                "corpus have no targets: raise evaluation.samples, or prepare other validation data"
            )
        if not math.isfinite(validation.loss):
            raise TrainingDiverged(
                f"the validation loss after step {self.state.step} is {validation.loss}: the weights have diverged. "
                f"{self._remedy}"
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
            "config": mask_values(self.config.model_dump()),
        }

    # Before the first step.

    def _load(self) -> Path | None:
        """Fill masters and optimizer state: from a checkpoint, whose folder it returns, or with initial weights and zeros."""
        # Ours draw from generators of their own. These, which checkpoints keep, are for encodings and backends of a user's.
        torch.manual_seed(self.config.training.seed + self.topology.rank)
        if self.start.resume is not None:
            reader = find_checkpoint(self.start.resume, self.environment, self._check_continues)
            if reader is not None:
                self._restore(reader)
                self.policy.load_state_dict(reader.state.get("guard", {}))
                return reader.directory
            restart(self.environment)
        parameters = self.engine.state.parameters
        self.checkpoints.load(initial_state(self.config, parameters, self.environment, self.data.tokenizer))
        return None

    def _check_continues(self, reader: CheckpointReader) -> None:
        check_continues(reader, self.config, self.data, self.attention, self.start.allow_changes, self.environment)

    def _restore(self, reader: CheckpointReader) -> None:
        """Return to where the run was when it wrote the checkpoint."""
        self.checkpoints.load(reader)
        self.state.load_state_dict(reader.state)
        self.callbacks.load_state_dict(reader.state.get("callbacks", {}))
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
        if not self.origin or self.state.step < self.config.training.steps:  # else nothing is trained with it
            save_config(self.config, self.folder.config)

    def _begin(self) -> bool:
        """Report where the run begins, and evaluate what a stop kept from its evaluation. Returns whether to stop."""
        step = self.state.step
        steps = self.config.training.steps
        world_size = self.topology.world_size
        self.log.step = step
        if self.topology.is_main:
            for warning in (spanning_warning(self.config, world_size, self.topology.local_size), export_warning(self.config)):
                if warning:
                    self.log.warning(warning)
            parts = [f"{plural(world_size, 'rank')} on {self.engine.device.type}"]
            parts += [f"from {self.origin}"] if self.origin else []
            last = max(recorded_steps(self.environment), default=0)
            parts += [f"steps {step + 1} to {last} are made again"] if last > step else []
            self.log.record("resumed" if self.origin else "started", ", ".join(parts), environment=self._environment())
        self.callbacks.on_start(step)
        if step >= steps:
            self.log.say(f"already at step {step} of training.steps {steps}: nothing to do; raise training.steps to continue")
        stop = self._stop_requested()
        if not stop and self._is_evaluation_due and (metrics := unevaluated_step(self.environment, step)):
            self.callbacks.on_step(replace(metrics, validation=self.evaluate()))
            stop = self._stop_requested()
        return stop

    def _environment(self) -> dict[str, Any]:
        """What this process runs on and how it was started, for readers of the run's record."""
        return {
            "megatape": package_version(),
            "python/torch/deepspeed": versions(),
            "command": typed_command(),
            "ranks": self.topology.world_size,
            "hosts": -(-self.topology.world_size // self.topology.local_size),
            "device": device_name(),
            "attention": self.attention,
            "sample_flops": self.speed.sample_flops,
        }

    # In a step.

    def _compute(self, step: StepOutput, batches: StepBatches, num_targets: float) -> StepOutput:
        """Forward and backward pass, and the update."""
        inputs = [on_device(batch, self.engine.device) for batch in batches.batches]
        gradients = self.engine.forward_backward(inputs, num_targets)
        status = self._exchange_status(step.samples.stop, gradients)
        loss = status.loss / self.mesh["tensor"].size / num_targets
        decide = partial(self.policy.decide, loss)
        update = self.engine.update(step.learning_rate, loss, status.num_nonfinite, status.square, decide=decide)
        return replace(
            step,
            loss=loss,
            grad_norm=update.grad_norm,
            fault=update.fault,
            skipped=update.skipped,
            decision=update.decision,
            remark=update.decision.reason,
            status=status,
            forward_seconds=gradients.forward.seconds(),
        )

    def _exchange_status(self, consumed: int, gradients: Gradients | None = None) -> StepStatus:
        """The sum over ranks of what they know before the step after `consumed` samples, and of their gradients. Collective.

        Args:
            consumed: samples before the step.
            gradients: of the step before it.
        """
        batches = self._read(consumed)
        local = StepStatus(
            loss=gradients.loss if gradients else 0.0,
            num_nonfinite=gradients.num_nonfinite if gradients else 0.0,
            square=gradients.square if gradients else 0.0,
            num_stop_requests=self.interrupt.requested,
            num_saves_ended=self.checkpoints.has_ended,
            num_unreadable=bool(batches.error),
            num_targets=batches.num_targets,
            digest=batches.digest,
        )
        return StepStatus(*self.engine.sum_over_ranks(*local))

    def _read(self, consumed: int) -> StepBatches:
        """The batches of the step after `consumed` samples, which may have to wait for a file server or a copy."""
        with self.pace.waiting(f"the reading of samples {consumed} and after"):
            return self.prefetcher.get(consumed)

    def _check_readable(self, num_unreadable: float, error: str) -> None:
        """Raise DataError on all ranks if one cannot read its samples.

        Args:
            num_unreadable: ranks that cannot.
            error: why this rank cannot, or "".
        """

        def fail() -> None:
            if error:
                raise DataError(error)

        if num_unreadable:
            on_all(fail, self.topology, context=f"the data of step {self.state.step + 1} cannot be read: ")

    # After a step.

    @property
    def _is_last(self) -> bool:
        return self.state.step == self.config.training.steps

    @property
    def _is_evaluation_due(self) -> bool:
        return self._is_last or self.state.step % self.config.evaluation.interval == 0

    def _stop_requested(self) -> bool:
        """Whether a signal reached any rank. Collective, so that all stop at the same step."""
        return self.engine.sum_over_ranks(self.interrupt.requested)[0] > 0

    def _watch_pace(self, busy_share: float) -> None:
        """Note the share of the step's time in which this rank waited for no other, and report slow ranks."""
        self.pace.record_busy(busy_share)
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
        """After a spike, return to the newest valid stable checkpoint, and skip the samples of the steps since. Collective.

        Returns whether it did: not if there is no such checkpoint, or the run has only just gone back.
        """
        reader = None
        samples = self.state.samples
        refusal = "the run has only just gone back"
        if self.policy.may_roll_back(samples):
            refusal = "there is no checkpoint to go back to"
            reader = self.checkpoints.roll_back(partial(self.policy.stable, step=self.state.step))
            if reader is not None:
                with self.pace.waiting("the return to a checkpoint"):
                    self._restore(reader)
                self.policy.roll_back(reader.state.get("guard", {}), range(reader.samples, samples))
        if reader is None:
            self.log.warning(f"{refusal}: the run continues without the step")
            return False
        first, last = self.policy.rolled_back[-1]
        detail = f"to {reader.directory}; samples {first} to {last} will be skipped"
        self.log.step = self.state.step
        self.callbacks.on_start(self.state.step)
        self.log.record("rollback", detail)
        self.log.say(f"rolled back {detail}")
        return True

    def _report(self, output: StepOutput, seconds: float, validation: Validation | None = None) -> None:
        """Pass the metrics of a step on, once it is known that the run's folder is still this run's."""
        with self.pace.waiting(f"the metrics of step {output.step}"):
            self.environment.lease.wait(lambda: self.interrupt.requested, self.log.warning)
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

        Raises TrainingDiverged when more than training.max_skipped_steps in a row were skipped, but for those of a plan; and
        DataError if the last of them has no targets.
        """
        if output.skipped:
            self.log.record("skipped", f"{output.place}: {output.skipped}")
        if output.is_planned:
            return
        self._num_skipped = self._num_skipped + 1 if output.skipped else 0
        allowed = self.config.training.max_skipped_steps
        if self._num_skipped > allowed:
            skipped = plural(self._num_skipped, "skipped step")
            fault = (
                f"{output.place}: {output.skipped}. That makes {skipped} in a row, training.max_skipped_steps allows {allowed}"
            )
            if output.skipped == NO_TARGETS:
                raise DataError(f"{fault}. Train on data whose samples have targets: check data.samples and data.prompt_end")
            raise TrainingDiverged(f"{fault}. {self._remedy}")

    @property
    def _remedy(self) -> str:
        """What to do when the weights have diverged."""
        changes = "lower optimizer.learning_rate or training.gradient_clip, or lengthen the warm-up"
        if not self.checkpoints.saved_step:
            return f"There is no checkpoint from before: {changes}, check model.init_std, and start again"
        return f"Checkpoints in {self.folder.checkpoints} are from before: {changes}, and continue with --resume auto"

    # At the end.

    @contextmanager
    def _saved_without_data(self) -> Iterator[None]:
        """Around training: when data cannot be read, the steps since the last checkpoint are saved before the run ends."""
        try:
            yield
        except DataError as error:
            saved = "nothing to save"
            if self.state.step > self.checkpoints.saved_step:
                try:
                    saved = f"checkpoint {self.checkpoints.close()}"
                except NotSaved as failure:
                    raise NotSaved(f"{error}; {failure}") from None
            raise DataError(f"{error}; {saved}; once the data can be read, --resume auto continues") from None

    def _end(self, stop: bool) -> bool:
        """Save what is not saved, and report how the run ends. Returns what `train` does."""
        if self.state.step > self.checkpoints.saved_step:
            self.checkpoints.close()
        if not stop:
            self.log.record("finished")
            return False
        self.log.say(f"stopped on request after step {self.state.step}; --resume auto continues")
        self.log.record("stopped", "on request")
        return not self._is_last and not self.engine.sum_over_ranks(self.interrupt.by_user)[0]
