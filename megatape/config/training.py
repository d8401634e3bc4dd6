"""The sections that define an optimizer step: training, optimizer, schedule."""

from collections import ChainMap
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from megatape.config.batches import BatchSizes
from megatape.config.kinds import Registered
from megatape.config.section import (
    Compared,
    Confirmed,
    Fixed,
    FixedSamples,
    Free,
    JsonList,
    PathText,
    Section,
    check_growing,
)
from megatape.errors import ConfigError
from megatape.registry import AUTO, BACKENDS, LEGACY_SCHEDULES, OPTIMIZERS, SCHEDULES, Entry

_AUTO_ENTRY = {AUTO: Entry("", "the first that supports the model and works")}

OptimizerName = Annotated[str, AfterValidator(Registered(OPTIMIZERS))]
BackendName = Annotated[str, AfterValidator(Registered(ChainMap(BACKENDS, _AUTO_ENTRY)))]
ScheduleName = Annotated[str, AfterValidator(Registered(SCHEDULES, LEGACY_SCHEDULES))]

ActivationCheckpointing = Literal["none", "selective", "full", "offload"]
Fp8Recipe = Literal["none", "tensorwise", "rowwise", "rowwise_with_gw_hp"]  # torchao's names


def _check_order(samples: tuple[int, int]) -> tuple[int, int]:
    first, last = samples
    if first > last:
        raise ConfigError(f"{list(samples)} is empty: give the first and the last sample")
    return samples


SampleRange = Annotated[tuple[NonNegativeInt, NonNegativeInt], Field(strict=False), AfterValidator(_check_order)]


def _upgrade_checkpointing(value: Any) -> Any:
    """Return the name of a mode. Earlier versions wrote true and false."""
    if value is True:
        return "full"
    if value is False:
        return "none"
    return value


class BatchConfig(Section):
    """A stage of the batch-size warm-up.

    Attributes:
        tokens: tokens trained on when the stage ends; the step that reaches them is its last
        samples: samples per optimizer step, over all ranks
    """

    tokens: Compared[PositiveInt]
    samples: Compared[PositiveInt]


class TrainingConfig(Section):
    """Batch sizes, precision and length of the run.

    Attributes:
        steps: optimizer steps
        global_batch_size: samples per optimizer step, over all ranks; a multiple of micro_batch_size
            times the data-parallel ranks
        batch_warmup: fewer samples per step at the beginning: `samples` per step, until the run has
            seen `tokens` (docs/train.md)
        micro_batch_size: samples per forward and backward pass on one rank; a larger one is often
            faster and needs more memory; results differ by rounding only
        seed: seed of everything random
        precision: precision of the forward and backward pass; bfloat16 is faster on GPUs and needs
            less memory; master weights and optimizer state are float32
        fp8: FP8 products with the weights of attention and MLP in training, by torchao's recipe:
            tensorwise has one scale per matrix, rowwise one per row or column, and
            rowwise_with_gw_hp computes weight gradients in bfloat16; needs precision bfloat16,
            zero.stage 1 or 2, one tensor-parallel rank, megatape[fp8] and GPUs with compute
            capability 8.9 or higher, or a CPU, which emulates it (docs/train.md)
        z_loss: z of the z-loss, such as 1e-4: it adds z (log sum exp(logits))^2 to the loss of every
            target, keeping the sum of exponentials near 1; reported losses are the cross entropy
            alone
        gradient_clip: maximum gradient norm; 0 disables clipping
        init_from: folder of an import, an export or a checkpoint whose weights the run starts with
            at step 0, instead of random ones (docs/import.md); a resumed run continues from its own
        attention: attention backend; auto selects the first that supports encoding, device, head
            size, precision and masks, and passes a test when the run starts (docs/model.md)
        num_shifted_groups: groups of tokens in a sample for shifted sparse attention (LongLoRA,
            which uses 4; `rope` only): while training, a token attends to its own group, and half
            of the heads shift the groups by half a group. Default: dense attention, as always when
            evaluating and exporting
        trainable: trainable weights: groups (all, position, embeddings, norms, adapters) and
            patterns of parameter names (blocks.0.*); all others are frozen
        frozen: groups and patterns within `trainable` to freeze, such as *.position.gain
        replica_check_interval: steps between checks that replicas of weights and optimizer state
            are bit-identical; every checkpoint checks them, too
        max_skipped_steps: maximum number of consecutive steps skipped for a spike, or for a loss or
            gradients that are not finite; one more ends the run (docs/faults.md)
        on_spike: what to do about a loss or gradient spike: log (keep the step), skip (drop it),
            rewind (restore the last stable checkpoint and skip the samples of the last 64 steps;
            docs/faults.md)
        skip_samples: ranges [first, last] of samples, counted as in metrics.jsonl: steps with one
            of them are skipped
        activation_checkpointing: activations to recompute in the backward pass, saving memory:
            selective, cheap ones (norms, the product of the MLP's gate); full, all but each block's
            input; offload, the same with the inputs in host memory. Earlier versions wrote false
            and true for none and full
        chunk_tokens: tokens of a sample that a rank computes at a time in MLP and position update,
            recomputing them in the backward pass: only activations of these tokens are in memory
            (docs/fit_memory.md). Default: all tokens
        compile: fuse norms, MLP and position update of every block by torch.compile; needs a C++
            compiler, zero.stage 2 or lower, one tensor-parallel rank and no model.lora
    """

    steps: Compared[PositiveInt] = Field(le=10**9)
    global_batch_size: Compared[PositiveInt] = Field(le=10**9)
    batch_warmup: Compared[JsonList[BatchConfig]] = ()
    micro_batch_size: Free[PositiveInt] = Field(le=10**9)
    seed: FixedSamples[int] = Field(1234, ge=0, le=2**63 - 1)
    precision: Confirmed[Literal["float32", "bfloat16"]] = "float32"
    fp8: Confirmed[Fp8Recipe] = "none"
    z_loss: Compared[float] = Field(0.0, ge=0)
    gradient_clip: Compared[float] = Field(1.0, ge=0)
    init_from: Compared[PathText | None] = Field(None, min_length=1)
    attention: Free[BackendName] = AUTO
    num_shifted_groups: Compared[int | None] = Field(None, ge=2)
    trainable: Fixed[JsonList[str]] = Field(("all",), min_length=1)
    frozen: Fixed[JsonList[str]] = ()
    replica_check_interval: Free[PositiveInt] = 100
    max_skipped_steps: Free[int] = Field(10, ge=0)
    on_spike: Compared[Literal["log", "skip", "rewind"]] = "log"
    skip_samples: Compared[JsonList[SampleRange]] = ()
    activation_checkpointing: Annotated[Free[ActivationCheckpointing], BeforeValidator(_upgrade_checkpointing)] = "none"
    chunk_tokens: Free[PositiveInt | None] = None
    compile: Free[bool] = False

    @model_validator(mode="after")
    def _check_batches(self) -> Self:
        check_growing("batch_warmup", self.batch_warmup)
        if self.batch_warmup:
            last = self.batch_warmup[-1].samples
            if last >= self.global_batch_size:
                raise ConfigError(
                    f"batch_warmup ends with {last} samples: give fewer than global_batch_size {self.global_batch_size}"
                )
        return self

    def batch_sizes(self, sequence_length: int) -> BatchSizes:
        """Return the samples of each step. sequence_length: Tokens per sample."""
        stages = []
        for stage in self.batch_warmup:
            end = -(-stage.tokens // sequence_length)
            stages.append((stage.samples, end))
        return BatchSizes(self.global_batch_size, tuple(stages))

    @property
    def recomputes_blocks(self) -> bool:
        """Whether the backward pass recomputes blocks from their inputs."""
        return self.activation_checkpointing in ("full", "offload")

    @property
    def arithmetic(self) -> str:
        """Precision of the computation, for messages."""
        if self.fp8 == "none":
            return self.precision
        return f"{self.precision}, FP8 {self.fp8}"


class OptimizerConfig(Section):
    """The optimizer, with the keys that every kind has.

    Norms, gains and biases are not decayed; attention gains learn L times faster.

    Attributes:
        kind: optimizer
        learning_rate: peak learning rate
        weight_decay: decoupled weight decay, scaled by the learning rate
        ema_decay: decay of an exponential moving average of the trained weights, such as 0.999: it
            is kept in float32 beside the master weights, evaluated and saved with them, and
            exported by `megatape export --weights ema` (docs/train.md); default: no average
    """

    kind: Fixed[OptimizerName] = "adamw"
    learning_rate: Compared[float] = Field(gt=0)
    weight_decay: Compared[float] = Field(0.01, ge=0)
    ema_decay: Compared[float | None] = Field(None, gt=0, lt=1)

    def is_whole(self, role: str) -> bool:
        """Whether the optimizer updates weights with this role (nn/parameters.py) as whole matrices."""
        return role == "matrix"


class ScheduleConfig(Section):
    """Learning-rate schedule: linear warm-up from 0, then a decay.

    Give each length as a fraction of all steps, `NAME_fraction`, or in tokens, `NAME_tokens`.

    Attributes:
        kind: decay after the warm-up
        warmup_fraction: warm-up, as a fraction of all steps
        warmup_tokens: warm-up in tokens, instead of warmup_fraction
        final_fraction: learning rate at the end of the decay, as a fraction of the peak
    """

    kind: Compared[ScheduleName] = "linear"
    warmup_fraction: Compared[float] = Field(0.02, ge=0, lt=1)
    warmup_tokens: Compared[PositiveInt | None] = None
    final_fraction: Compared[float] = Field(0.0, ge=0, le=1)

    @property
    def lengths(self) -> dict[str, int | None]:
        """Lengths in tokens by name; None if given as a fraction."""
        fields = type(self).model_fields
        lengths = {}
        for field in fields:
            name = field.removesuffix("_tokens")
            if name != field and f"{name}_fraction" in fields:
                lengths[name] = getattr(self, field)
        return lengths

    def in_fractions(self, tokens: int) -> Self:
        """Return the same schedule with all lengths as fractions of the run's `tokens`."""
        fractions = {}
        for name, length in self.lengths.items():
            if length is not None:
                fractions[f"{name}_fraction"] = length / tokens
        return self.model_copy(update=fractions)

    def with_warmup(self, fraction: float) -> Self:
        """Return the same schedule with another warm-up, as a fraction of all steps."""
        return self.model_copy(update={"warmup_fraction": fraction})
