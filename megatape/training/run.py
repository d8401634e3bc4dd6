"""One run: its data, its engine, how far it is, and where it is kept."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from megatape.attention.operation import select_backend
from megatape.checkpoint.background import Background
from megatape.checkpoint.reader import CheckpointReader, restore_rng, rng_snapshot
from megatape.checkpoint.same_run import changed_settings, check_annealing, check_same_run
from megatape.checkpoint.weights import StoredWeights
from megatape.checkpoint.writer import write_checkpoint
from megatape.config import Config, save_config
from megatape.data.loader import Batch, Loader, evaluation_batches
from megatape.data.positions import Positions
from megatape.data.splits import RunData
from megatape.files import patiently, sync
from megatape.model.build import build_model
from megatape.model.encodings import encoding_of
from megatape.model.needs import attention_needs
from megatape.model.trainable import check_trainable
from megatape.model.transformer import Transformer
from megatape.parallel.mesh import Axis, make_mesh
from megatape.run_folder import RunFolder, named_step
from megatape.runtime.exchange import exchange, on_main
from megatape.runtime.lease import Lease
from megatape.runtime.pace import Pace, unlimited
from megatape.runtime.shared_folder import check_shared
from megatape.runtime.topology import Topology
from megatape.training.backends import updates_by_kernel, working_backends
from megatape.training.evaluation import Validation, view_positions
from megatape.training.feed import Feed, Supply
from megatape.training.fp8 import working_product
from megatape.training.guard import Guard
from megatape.training.ledger import check_order
from megatape.training.resume import newest_valid, open_checkpoint, set_aside
from megatape.training.start import first_state
from megatape.zero.distributed import own_device
from megatape.zero.engine import Engine, Inputs, StepResult, TrainingDiverged
from megatape.zero.snapshot import Snapshot
from megatape.zero.state import ZeroState

LEFT_OUT = "its samples are left out"


@dataclass(frozen=True)
class MadeStep:
    """A step of a run.

    step                    its number, from 1
    samples                 which it saw: how many came before each
    loss, grad_norm, fault  as in StepResult
    planned                 it was left out without being computed
    remark                  what is unusual about it, or ""
    digest                  of its samples (order.samples_digest)
    stop                    whether any rank was asked to stop
    own                     seconds in which this rank read samples or made forward passes, which at ZeRO stages 0 to 2 without
                            tensor parallelism wait for no other rank"""

    step: int
    samples: range
    loss: float
    grad_norm: float
    fault: str
    planned: bool
    remark: str
    digest: int
    stop: bool
    own: float


class DataUnreadable(ValueError):
    """A rank could not read its samples: a shard is missing, was changed, or its file system is away. Raised on all ranks."""


class Run:
    """Everything that training needs, ready to continue from `step`. Collective over the ranks, like all its methods.

    lease: of the run's folder, held while the run exists. resume: "auto" for the newest valid checkpoint of the run's folder (a
    new run if there is none), a checkpoint folder, or None for a new run. allow_changes: let a resumed run change what
    same_run.ASKED names. base: where the base of the checkpoint that the run starts from is now, if not where that says. pace:
    is told what the run does. Raises ValueError or FileNotFoundError if configuration, data and checkpoint do not fit
    together."""

    def __init__(
        self,
        config: Config,
        data: RunData,
        topology: Topology,
        lease: Lease,
        resume: str | None,
        allow_changes: bool = False,
        base: Path | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.config, self.data, self.topology, self.lease = config, data, topology, lease
        self.pace = pace or unlimited()
        self.folder = RunFolder(Path(config.run.directory))
        if resume is None:
            on_main(lambda: patiently(self.folder.check_new), topology)
        self.mesh = make_mesh(topology, config.parallel.tp)
        self._loader = Loader(
            data.train,
            seed=config.training.seed,
            global_batch_size=config.training.global_batch_size,
            micro_batch_size=config.training.micro_batch_size,
            rank=self.mesh.data.rank,
            world_size=self.mesh.data.size,
            positions=self._positions,
            warmup={stage.length: -(-stage.tokens // config.data.sequence_length) for stage in config.data.length_warmup},
        )
        device = own_device()
        self.backends = working_backends(config, device, topology)
        self.attention = select_backend(attention_needs(config, device.type)[0], self.backends)
        self.fp8 = working_product(config, device, topology)
        self._updates_by_kernel = updates_by_kernel(config, device, topology, self.backends)
        self.engine = Engine(config, topology, self.mesh, self._build)
        self.feed = Feed(self._loader, self.engine.device)
        # What all ranks know of the next step once they have told each other: the sums of their outlooks.
        self.agreed: list[float] | None = None
        self._waited = 0.0  # seconds for samples, in this step
        self.step = self.samples = self.saved = 0  # saved: step of the last checkpoint
        self.updates = 0  # steps that were taken, which the optimizer counts: some may have been left out
        self.last_step: dict[str, int] = {}  # its samples and their digest
        self.guard = Guard(config.training)
        self._calm: Path | None = None  # a checkpoint that calm steps have followed, which is not yet recorded
        self.background = Background() if config.checkpoint.background else None
        self.save_ended = False  # the one in flight on all ranks, as they told each other in the last step
        self._base_given = base
        self.origin: Path | None = None  # the checkpoint that the run continues from
        check_shared(self.folder.directory, topology)
        self.base = self._start(resume, allow_changes, base)
        on_main(lambda: patiently(self._record), topology)

    @property
    def tokens(self) -> int:
        """Tokens of the samples seen so far."""
        return self.samples * self.config.data.sequence_length

    @property
    def sequence_length(self) -> int:
        """That of the next step."""
        return self._loader.sequence_length(self.samples)

    def train_step(self, learning_rate: float, requested: Callable[[], bool]) -> MadeStep:
        """Make the next step. requested: whether something asks this rank to stop.

        A step that is to be left out for a spike is computed again: data give the same numbers, a fault of a device does not.
        Raises DataUnreadable on all ranks if one cannot read its samples."""
        self._waited = 0.0
        after = self.samples + self.config.training.global_batch_size
        if self.agreed is None:  # the first step of this process
            self.agreed = self.engine.sum_over_ranks(*self._outlook(self.samples))
        num_unreadable, num_targets = self.agreed[0], self.agreed[1] / self.mesh.tensor.size
        digest = round(self.agreed[2] / self.mesh.tensor.size)
        supply = self._supply(self.samples)
        if num_unreadable:
            self._give_up(supply.fault)
        self.feed.prepare(after)

        def tell() -> list[float]:
            return [requested(), bool(self.background and self.background.has_ended()), *self._outlook(after)]

        def compute() -> StepResult:
            self.guard.spike = ""
            inputs = [self._inputs(batch) for batch in supply.batches]
            return self.engine.train_step(inputs, num_targets, learning_rate, tell, self.guard.judge)

        remark = ""
        samples = range(self.samples, after)
        if planned := self.guard.leaves_out(samples):
            result = StepResult(math.nan, math.nan, LEFT_OUT, self.engine.sum_over_ranks(*tell()))
        else:
            result = compute()
            remark = self.guard.spike
            if result.fault and result.fault == remark:
                again = compute()
                if (again.loss, again.grad_norm) != (result.loss, result.grad_norm):
                    remark += f"; computed again, they are {again.loss:.4g} and {again.grad_norm:.4g}: a transient fault"
                result = again
            self._calm = self.guard.made(self.step + 1, result.loss, result.grad_norm, result.fault) or self._calm
        if not self.saving:  # which may be about to remove this one, having looked which one to spare
            self._mark_calm()
        num_requests, num_ended, *self.agreed = result.told
        self.save_ended = num_ended == self.topology.world_size
        own = self._waited + result.forward
        self.last_step = {"first": samples[0], "last": samples[-1], "digest": digest}
        self.step, self.samples = self.step + 1, after
        self.updates += not result.fault
        return MadeStep(
            self.step,
            samples,
            result.loss,
            result.grad_norm,
            result.fault,
            planned,
            remark,
            digest,
            stop=num_requests > 0,
            own=own,
        )

    def rewind(self) -> Path | None:
        """After a spike: go back to the newest checkpoint that calm steps followed, and leave out the samples of the steps that
        led here. Collective. Returns the checkpoint; None, and does nothing, if there is none. No save is in flight."""
        self._mark_calm()
        name = on_main(lambda: patiently(lambda: found.name if (found := self.folder.read_calm()) else None), self.topology)
        if name is None:
            return None
        checkpoint = self.folder.checkpoints / name
        with self.pace.waiting(f"the return to {name}"):
            reader = open_checkpoint(checkpoint, self.topology, self._base_given)
            samples = range(reader.samples, self.samples)
            self._continue(reader)
        self.guard.went_back(reader.state["guard"], samples)
        return checkpoint

    def _outlook(self, consumed: int) -> list[float]:
        """What the other ranks must know before the step after `consumed` samples: whether this one cannot read its samples,
        how many targets they have, and which they are."""
        supply = self._supply(consumed)
        return [bool(supply.fault), supply.num_targets, supply.digest]

    def _supply(self, consumed: int) -> Supply:
        """The samples of the step after `consumed`, for which this rank may have to wait for a file server or a copy."""
        with self.pace.waiting(f"the reading of samples {consumed} and after"):
            started = time.perf_counter()
            supply = self.feed.supply(consumed)
            self._waited += time.perf_counter() - started
        return supply

    def evaluate(self) -> Validation:
        """Loss on the first samples of each validation split, and the position view of the very first one.

        Raises TrainingDiverged if the loss is not finite, so that a run whose steps are all left out is no success; and
        DataUnreadable on all ranks if one cannot read its share, which is why that is read before any of it is used."""
        seed = self.config.training.seed
        batch_size, samples, axis = self.config.training.micro_batch_size, self.config.evaluation.samples, self.mesh.data
        batches: dict[str, list[Batch]] = {}
        viewed: list[Batch] = []
        fault = ""
        try:
            with self.pace.waiting("the reading of validation data"):
                for name, data in self.data.validation.items():
                    viewed = viewed or list(evaluation_batches(data, 1, 1, 0, 1, self._positions, seed))
                    found = evaluation_batches(data, batch_size, samples, axis.rank, axis.size, self._positions, seed)
                    batches[name] = list(found)
        except (ValueError, OSError) as error:
            fault = str(error)
        if self.engine.sum_over_ranks(bool(fault))[0]:
            self._give_up(fault)
        losses = {
            name: self.engine.evaluate((self._inputs(batch) for batch in found), sum(batch.num_targets for batch in found))
            for name, found in batches.items()
        }
        loss = sum(self.data.shares[name] * found for name, found in losses.items())
        if not math.isfinite(loss):
            raise TrainingDiverged(
                f"the validation loss after step {self.step} is {loss}: the weights have diverged. Checkpoints in "
                f"{self.folder.checkpoints} are from before; lower optimizer.learning_rate or training.gradient_clip, and "
                "continue with --resume auto"
            )
        carries = encoding_of(self.config.model).carries_state
        views = view_positions(self.engine, self._inputs(viewed[0]), self.data.tokenizer.decode) if carries else None
        return Validation(loss, views, losses if self.config.data.mixture else {})

    @contextmanager
    def saved_without_data(self) -> Iterator[None]:
        """Around training: when data cannot be read, the steps since the last checkpoint are saved before the run ends."""
        try:
            yield
        except DataUnreadable as error:
            self.pace.enter("save", f"the save after step {self.step}")
            try:
                saved = f"checkpoint {self.save()}" if self.step > self.saved else "nothing to save"
            except OSError as failure:
                saved = str(failure)
            raise DataUnreadable(f"{error}; {saved}; once the data can be read, --resume auto continues") from None

    def _give_up(self, fault: str) -> NoReturn:
        """End the run because a rank cannot read its samples. fault: why this one cannot, or ""."""
        told = dict.fromkeys(text for text in exchange(fault, self.topology) if text)  # what all ranks see is told once
        raise DataUnreadable(f"the data of step {self.step + 1} cannot be read: {'; '.join(told)}")

    @property
    def saving(self) -> bool:
        """Whether a save was begun and not yet finished. The same on all ranks."""
        return self.background is not None and self.background.in_flight

    def save(self) -> Path:
        """Write a checkpoint of the present step and return its folder. No save is in flight. Raises TrainingDiverged if the
        ranks' replicas differ."""
        self.engine.check_replicas()
        return self._saved(self._writing(self.engine.state)())

    def begin_save(self) -> None:
        """Copy the present step, and begin to write a checkpoint of it in the background. Raises as `save` does."""
        assert self.background is not None
        self.engine.check_replicas()
        self.background.snapshot.take(self.engine.state, self.base.tensors if self.base else ())
        self.background.start(self._writing(self.background.snapshot))

    def finish_save(self) -> Path:
        """Wait for the save in flight and return its folder. Raises what `save` would have raised."""
        assert self.background is not None
        self.save_ended = False
        return self._saved(self.background.finish())

    def _saved(self, checkpoint: Path) -> Path:
        self.guard.saved(checkpoint)
        self.saved = named_step(checkpoint)
        return checkpoint

    def _writing(self, source: ZeroState | Snapshot) -> Callable[[], Path]:
        """What writes a checkpoint of the present step, also when later ones have been made.

        metrics.jsonl is on disk first: after a power failure no checkpoint may lack the metrics of its steps."""
        if self.topology.is_main:
            with suppress(OSError):  # before the first step there is no file, and a disk that refuses it has caused a warning
                sync(self.folder.metrics)
        step, rng = self.step, rng_snapshot()
        state = {
            "step": self.step,
            "updates": self.updates,
            "samples": self.samples,
            "tokens": self.tokens,
            "world_size": self.topology.world_size,
            "fingerprints": self.data.fingerprints,
            "attention": self.attention,
            "guard": self.guard.state(),
            "last_step": self.last_step,
            "config": self.config.model_dump(),
        }
        return lambda: write_checkpoint(
            self.folder,
            self.lease,
            step,
            source,
            rng,
            self.topology,
            state,
            self.data.tokenizer.files,
            self.config.checkpoint.keep,
            self.base,
            spared=self.folder.read_calm,
        )

    def _mark_calm(self) -> None:
        """Record the checkpoint that calm steps have followed, if there is a new one."""
        if self._calm and self.topology.is_main:
            with suppress(OSError):  # then an older one remains the one to go back to
                self.folder.mark_calm(self._calm)
        self._calm = None

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

    def _start(self, resume: str | None, allow_changes: bool, base: Path | None) -> StoredWeights | None:
        """Fill masters and optimizer state: from a checkpoint, or with initial weights and zeros.

        Returns the frozen weights that checkpoints leave out."""
        # Ours draw from generators of their own. These, which checkpoints keep, are for encodings and backends of a user's.
        torch.manual_seed(self.config.training.seed + self.topology.rank)
        reader: CheckpointReader | None = None
        corrupted: list[Path] = []
        if resume == "auto":
            reader, corrupted = newest_valid(self.folder, self.topology, base)
            if reader is None:
                self._restart()
        elif resume is not None:
            reader = open_checkpoint(Path(resume), self.topology, base)
            newer = [path for path in self.folder.list_checkpoints() if named_step(path) > reader.step]
            if newer:
                raise ValueError(
                    f"run.directory {self.folder.directory} holds checkpoints newer than {reader.directory} (up to "
                    f"{newer[0].name}), which resuming there would mix with its own: choose another run.directory, or remove "
                    "them"
                )
        if reader is None:
            first = first_state(self.config, self.engine.state.parameters, self.topology, self.data.tokenizer, base)
            self.engine.state.load(first.read, step=0)
            return first.base
        check_same_run(reader.directory, reader.config, reader.state["fingerprints"], self.config, self.data.fingerprints)
        on_main(lambda: check_order(reader.directory, reader.state, self.data.train, self.config.training.seed), self.topology)
        check_annealing(reader.directory, reader.config, self.config, reader.tokens)
        changed = changed_settings(reader.directory, reader.config, self.config, allow_changes)
        self._continue(reader)
        self.guard.saved(reader.directory)
        self.origin = reader.directory
        on_main(lambda: patiently(lambda: set_aside(corrupted)), self.topology)
        if self.topology.is_main:
            print(f"resumed from {reader.directory}: {reader.samples:,} samples and {reader.tokens:,} tokens seen", flush=True)
            before = reader.state.get("attention", self.attention)  # older checkpoints do not tell
            if before != self.attention:
                changed.append(f"attention by {before} -> {self.attention}, which rounds differently")
            for line in changed:
                print(f"changed since then: {line}", flush=True)
        return reader.base

    def _continue(self, reader: CheckpointReader) -> None:
        """Be where the run was when it wrote the checkpoint."""
        self.engine.state.load(reader.read, reader.updates)
        self.step, self.samples, self.saved, self.updates = reader.step, reader.samples, reader.step, reader.updates
        self.guard.load(reader.state.get("guard", {}))
        self.last_step = reader.state.get("last_step", {})
        self.agreed = None
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

    def _restart(self) -> None:
        """Start from step 0 under --resume auto, which is right only if no checkpoint can have been lost."""

        def restart() -> None:
            if recorded := patiently(self.folder.check_restart):
                print(
                    f"no checkpoint was written before the run ended after step {recorded}: starting again from step 0; its "
                    f"metrics are kept in {self.folder.set_metrics_aside()}",
                    flush=True,
                )

        on_main(restart, self.topology)

    @property
    def _positions(self) -> Positions:
        return encoding_of(self.config.model).positions(self.config.data.random_offset)

    def _inputs(self, batch: Batch) -> Inputs:
        """The batch on this rank's device; the host does not wait until it is there."""
        return batch.mapped(lambda tensor: tensor.to(self.engine.device, non_blocking=True)).tensors()
