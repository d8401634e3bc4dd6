"""The training section: batch sizes, precision, checks, memory savings and length of a run."""

from collections import ChainMap
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

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
from megatape.config.sections.batches import MAX_STEP_SAMPLES, BatchSizes
from megatape.errors import ConfigError
from megatape.registry import AUTO, BACKENDS, Entry
from megatape.utils.values.rounding import divide_up

_AUTO_ENTRY = {AUTO: Entry("", "the first that supports the model and works")}

BackendName = Annotated[str, AfterValidator(Registered(ChainMap(BACKENDS, _AUTO_ENTRY)))]

ActivationCheckpointing = Literal["none", "selective", "full", "offload"]
Fp8Recipe = Literal["none", "tensorwise", "rowwise", "rowwise_with_gw_hp"]  # torchao's names


def recomputes_blocks(activation_checkpointing: ActivationCheckpointing) -> bool:
    """Whether the backward pass recomputes blocks from their inputs."""
    return activation_checkpointing in ("full", "offload")


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


def _upgrade_spike_reaction(value: Any) -> Any:
    """Return the present name of a reaction. Version 0.1 called rolling back "rewind"."""
    if value == "rewind":
        return "roll_back"
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
        deterministic: use only attention backends that give the same gradients for the same inputs,
            bit for bit, so that a step on the same ranks can be repeated exactly; may be slower
            (docs/kernels.md)
        num_shifted_groups: groups of tokens in a sample for shifted sparse attention (LongLoRA,
            which uses 4; `rope` only): while training, a token attends to its own group, and half
            of the heads shift the groups by half a group. Default: dense attention, as always when
            evaluating and exporting
        trainable: trainable weights: groups (all, position, embeddings, norms, adapters) and
            patterns of parameter names (blocks.0.*); all others are frozen
        frozen: groups and patterns within `trainable` to freeze, such as *.position.gain
        replica_check_interval: steps between checks that replicas of weights and optimizer state
            are bit-identical; every checkpoint checks them, too
        memory_check_interval: steps between checks that nothing changes a rank's weights and
            optimizer state between two updates; 1 checks each step, 0 never (docs/faults.md)
        computation_check_interval: steps between checks that all replicas compute the same numbers
            from the same samples, for one more micro-batch; on a GPU only with deterministic; 0
            never (docs/faults.md)
        max_skipped_steps: maximum number of consecutive steps skipped for a spike, or for a loss or
            gradients that are not finite; one more ends the run (docs/faults.md)
        on_spike: what to do about a loss or gradient spike: log (keep the step), skip (drop it),
            roll_back (restore the last stable checkpoint and skip the samples of the last 64 steps;
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
        compile: compile every block by torch.compile, which fuses all between matrix products and
            attention; needs a C++ compiler, and does not support model.lora, selective
            checkpointing, or chunk_tokens on tensor-parallel ranks
        cuda_graphs: record forward and backward pass of the first micro-batch as CUDA graphs, and
            replay them from then on, so that a GPU does not wait for the host to launch kernels:
            true, or auto for doing so where nothing speaks against it (docs/train.md); steps
            compute the same bits
    """

    steps: Compared[PositiveInt] = Field(le=10**9)
    global_batch_size: Compared[PositiveInt] = Field(le=MAX_STEP_SAMPLES)
    batch_warmup: Compared[JsonList[BatchConfig]] = ()
    micro_batch_size: Free[PositiveInt] = Field(le=10**9)
    seed: FixedSamples[int] = Field(1234, ge=0, le=2**63 - 1)
    precision: Confirmed[Literal["float32", "bfloat16"]] = "float32"
    fp8: Confirmed[Fp8Recipe] = "none"
    z_loss: Compared[float] = Field(0.0, ge=0)
    gradient_clip: Compared[float] = Field(1.0, ge=0)
    init_from: Compared[PathText | None] = Field(None, min_length=1)
    attention: Free[BackendName] = AUTO
    deterministic: Free[bool] = False
    num_shifted_groups: Compared[int | None] = Field(None, ge=2)
    trainable: Fixed[JsonList[str]] = Field(("all",), min_length=1)
    frozen: Fixed[JsonList[str]] = ()
    replica_check_interval: Free[PositiveInt] = 100
    memory_check_interval: Free[int] = Field(100, ge=0)
    computation_check_interval: Free[int] = Field(100, ge=0)
    max_skipped_steps: Free[int] = Field(10, ge=0)
    on_spike: Annotated[Compared[Literal["log", "skip", "roll_back"]], BeforeValidator(_upgrade_spike_reaction)] = "log"
    skip_samples: Compared[JsonList[SampleRange]] = ()
    activation_checkpointing: Annotated[Free[ActivationCheckpointing], BeforeValidator(_upgrade_checkpointing)] = "none"
    chunk_tokens: Free[PositiveInt | None] = None
    compile: Free[bool] = False
    cuda_graphs: Free[Literal["auto", True, False]] = False

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
            end = divide_up(stage.tokens, sequence_length)
            stages.append((stage.samples, end))
        return BatchSizes(self.global_batch_size, tuple(stages))

    @property
    def arithmetic(self) -> str:
        """Precision of the computation, for messages."""
        if self.fp8 == "none":
            return self.precision
        return f"{self.precision}, FP8 {self.fp8}"
