"""How far a run is, and what is known of one step: the sums over ranks, its result, and its metrics."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from megatape.data.training.selection import EARLIER_SELECTION, NEW_SELECTION, Selection
from megatape.training.evaluation import Validation
from megatape.training.spike_policy import Decision, Take

NUMBERS = ("step", "loss", "grad_norm", "lr", "tokens", "samples", "digest", "seconds", "peak_memory")  # of each step

Scalar = Any  # a number, or a tensor without dimensions on the engine's device


@dataclass
class TrainState:
    """Counts of a run, beside weights and optimizer state.

    Attributes:
        sequence_length: tokens of a sample.
        step: steps that were made, skipped ones included.
        samples: samples of these steps, over all ranks.
        updates: steps that changed the weights, which the optimizer counts.
        last_step: first and last sample of the last step, and their digest.
        selection: selection of the evaluations' samples. A run keeps the one that it began with, so that its whole curve is of
            the same samples.
    """

    sequence_length: int
    step: int = 0
    samples: int = 0
    updates: int = 0
    last_step: dict[str, int] = field(default_factory=dict)
    selection: Selection = NEW_SELECTION

    @property
    def tokens(self) -> int:
        """Tokens of the samples seen so far."""
        return self.samples * self.sequence_length

    def advance(self, samples: range, digest: int, updated: bool) -> None:
        """Count a step that saw these samples."""
        self.last_step = {"first": samples[0], "last": samples[-1], "digest": digest}
        self.step = self.step + 1
        self.samples = samples.stop
        self.updates = self.updates + updated

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        names = ("step", "updates", "samples", "tokens", "last_step")
        return {name: getattr(self, name) for name in names} | {"validation_selection": self.selection}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what a checkpoint kept."""
        self.step = state["step"]
        self.samples = state["samples"]
        self.updates = state["updates"]
        self.last_step = state.get("last_step", {})  # earlier versions kept none
        self.selection = state.get("validation_selection", EARLIER_SELECTION)


class StepStatus(NamedTuple):
    """Numbers of one rank, or their sums over all ranks, which a step exchanges in one all-reduce.

    Attributes:
        loss: sum of the losses of the step's targets, nats.
        num_nonfinite: ranks with a gradient that is not finite among those that tensor-parallel ranks share.
        square: squared norm of the gradient at ZeRO stage 0.
        num_stop_requests: ranks that were asked to stop.
        num_saves_ended: ranks whose share of the save in flight is written.
        num_unreadable: ranks that cannot read their samples of the next step.
        num_targets: targets of the next step that count in the loss; every rank of a sample counts them.
        digest: of the samples of the next step (order.samples_digest), likewise.
    """

    loss: Scalar = 0.0
    num_nonfinite: Scalar = 0.0
    square: Scalar = 0.0
    num_stop_requests: Scalar = 0.0
    num_saves_ended: Scalar = 0.0
    num_unreadable: Scalar = 0.0
    num_targets: Scalar = 0.0
    digest: Scalar = 0.0


@dataclass(frozen=True)
class StepOutput:
    """Result of one optimizer step.

    Attributes:
        step: its number, from 1.
        samples: which it saw: how many came before each.
        learning_rate: scheduled rate, before the scale of each parameter group.
        digest: of the samples (order.samples_digest).
        loss: mean over its targets, nats; NaN if it was not computed.
        grad_norm: before clipping; NaN if it is not finite.
        fault: what is not finite, or "".
        skipped: why weights and optimizer state are as before, bit for bit, or "": the fault, the spike policy, or by plan.
        is_planned: it was skipped without being computed.
        decision: of the spike policy.
        remark: what is unusual about it, or "".
        status: sums over all ranks after it.
        forward_seconds: of this rank's forward passes, which wait for no other rank at ZeRO stages 0 to 2, unless ranks divide
            samples.
    """

    step: int
    samples: range
    learning_rate: float
    digest: int
    loss: float = math.nan
    grad_norm: float = math.nan
    fault: str = ""
    skipped: str = ""
    is_planned: bool = False
    decision: Decision = field(default_factory=Take)
    remark: str = ""
    status: StepStatus = field(default_factory=StepStatus)
    forward_seconds: float = 0.0

    @property
    def place(self) -> str:
        """Which step this is, for messages."""
        return f"step {self.step} (learning rate {self.learning_rate:.2e}, samples {self.samples[0]} to {self.samples[-1]})"


@dataclass(frozen=True)
class StepMetrics:
    """What a run reports about a step.

    Attributes:
        step: its number, from 1.
        loss: mean over its targets, nats.
        grad_norm: before clipping.
        lr: scheduled learning rate.
        tokens, samples: since the beginning of the run, those of skipped steps included.
        seconds: duration of this step.
        peak_memory: most bytes that the main rank's process has used, see hardware.peak_memory.
        validation: None where the step was not evaluated.
        corpora: samples of each corpus of a mixture.
        skipped: why the step was skipped, or "".
        digest: of its samples (order.samples_digest).
    """

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    samples: int
    seconds: float
    peak_memory: int
    validation: Validation | None
    corpora: dict[str, int] = field(default_factory=dict)
    skipped: str = ""
    digest: int = 0

    def values(self) -> dict[str, float]:
        """Numbers for a sink that draws curves, by name."""
        values = {
            "loss/train": self.loss,
            "gradient norm": self.grad_norm,
            "learning rate": self.lr,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "memory/peak GiB": self.peak_memory / 2**30,
        }
        if self.validation:
            values["loss/validation"] = self.validation.loss
            if self.validation.ema_loss is not None:
                values["loss/validation of the EMA"] = self.validation.ema_loss
            values |= {f"loss/validation of {name}": loss for name, loss in self.validation.parts.items()}
        return values

    def record(self) -> dict[str, Any]:
        """The line of metrics.jsonl. Numbers that are not finite are null."""
        numbers = {name: getattr(self, name) for name in NUMBERS}
        record: dict[str, Any] = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
        if self.corpora:
            record["corpora"] = self.corpora
        if self.validation:
            record["validation_loss"] = self.validation.loss
            if self.validation.ema_loss is not None:
                record["ema_validation_loss"] = self.validation.ema_loss
            if self.validation.parts:
                record["validation_losses"] = self.validation.parts
            record["validation_selection"] = self.validation.selection
        if self.skipped:
            record["skipped"] = self.skipped
        return record

    @classmethod
    def parse(cls, record: dict[str, Any]) -> Self:
        """The metrics in a line of metrics.jsonl, without a validation. Raises KeyError if an earlier version wrote it."""
        numbers: dict[str, Any] = {name: math.nan if record[name] is None else record[name] for name in NUMBERS}
        return cls(**numbers, validation=None, corpora=record.get("corpora", {}), skipped=record.get("skipped", ""))
