"""The whole configuration: its sections, and the checks and numbers that span several of them."""

from typing import Annotated, Self

from pydantic import BeforeValidator, SerializeAsAny, ValidationInfo, model_validator

from megatape.config.kinds import ByKind
from megatape.config.limits import Limit, check_limits, indivisible, load_limits
from megatape.config.section import Free, Section, is_recorded
from megatape.config.sections.batches import BatchSizes
from megatape.config.sections.data import DataConfig
from megatape.config.sections.distribution import ClusterConfig, ParallelConfig, ZeroConfig
from megatape.config.sections.families import families_with
from megatape.config.sections.model import ModelConfig
from megatape.config.sections.optimizer import OptimizerConfig, ScheduleConfig
from megatape.config.sections.run import CheckpointConfig, EvaluationConfig, ExportConfig, LoggingConfig, RunConfig
from megatape.config.sections.training import TrainingConfig
from megatape.errors import ConfigError
from megatape.registry import LEGACY_SCHEDULES, LIMITS, OPTIMIZERS, SCHEDULES
from megatape.utils.text.units import plural

OPTIMIZER_KINDS = ByKind(OPTIMIZERS, "adamw", OptimizerConfig)
SCHEDULE_KINDS = ByKind(SCHEDULES, "linear", ScheduleConfig, LEGACY_SCHEDULES)
ROUNDING = 1e-9  # Lengths in tokens that fill the run may round up to more than all of it.


class Config(Section):
    """The whole configuration. docs/config.md is generated from the docstrings of its sections."""

    run: RunConfig
    model: ModelConfig
    data: DataConfig
    training: TrainingConfig
    optimizer: Annotated[SerializeAsAny[OptimizerConfig], BeforeValidator(OPTIMIZER_KINDS)]
    schedule: Annotated[SerializeAsAny[ScheduleConfig], BeforeValidator(SCHEDULE_KINDS)] = ScheduleConfig()
    zero: ZeroConfig = ZeroConfig()
    parallel: ParallelConfig = ParallelConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    export: ExportConfig = ExportConfig()
    cluster: Free[ClusterConfig | None] = None

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        if is_recorded(info):
            return self
        self._check_family()
        self._check_export_interval()
        for model in (self.model, *self.model.with_other_encodings()):
            check_limits(self.model_copy(update={"model": model}), config_limits())
        self._check_schedule()
        return self

    def _check_family(self) -> None:
        family = self.export.family
        possible = families_with(self.model)
        if family is not None and family not in possible:
            remedy = "remove it"
            if possible:
                remedy = f"remove it, or choose one of {', '.join(possible)}"
            raise ConfigError(f"export.family {family} has no model with {self.model.parts} in this shape: {remedy}")

    def _check_export_interval(self) -> None:
        interval = self.export.interval
        if interval is not None:
            saves = self.checkpoint.interval
            reason = indivisible([("export.interval", interval)], saves, f"checkpoint.interval {saves}: change one of them")
            if reason is not None:
                raise ConfigError(reason)

    def _check_schedule(self) -> None:
        schedule = self.schedule.in_fractions(self.tokens)
        lengths: list[str] = []
        total = 0.0
        for name, tokens in self.schedule.lengths.items():
            fraction = getattr(schedule, f"{name}_fraction")
            total += fraction
            if tokens is None:
                lengths.append(f"{name}_fraction {fraction}")
            else:
                lengths.append(f"{name}_tokens {tokens}")
        if total > 1 + ROUNDING:
            raise ConfigError(
                f"schedule.{' and '.join(lengths)} are more than the run, which has {self.tokens} tokens in training.steps "
                f"{self.training.steps}: shorten them, or train for more steps"
            )

    @property
    def step_tokens(self) -> int:
        """Tokens per optimizer step after the batch-size warm-up, over all ranks."""
        return self.training.global_batch_size * self.data.sequence_length

    @property
    def batches(self) -> BatchSizes:
        """Samples per step, with the batch-size warm-up."""
        return self.training.batch_sizes(self.data.sequence_length)

    @property
    def tokens(self) -> int:
        """Tokens of the run."""
        return self.batches.consumed(self.training.steps) * self.data.sequence_length

    def num_data_ranks(self, world_size: int) -> int:
        """Return the number of data-parallel ranks, which train on different samples.

        Raises:
            ConfigError: `world_size` is not a positive multiple of the ranks sharing a sample.
        """
        ranks = self.parallel.sample_ranks
        if world_size < 1 or world_size % ranks:
            processes = plural(world_size, "process is", "processes are")
            sizes = self.parallel.named_sizes()
            product = " x ".join(f"{setting} {size}" for setting, size in sizes.items())
            if len(sizes) > 1:
                product = f"{product} = {ranks}"
            raise ConfigError(
                f"{processes} not a multiple of {product}: start a multiple of it, or change {' or '.join(sizes)}"
            )
        hpz = self.zero.hpz_ranks
        reason = indivisible([("the number of processes", world_size)], hpz, f"zero.hpz_ranks {hpz}: change one of them")
        if reason is not None:
            raise ConfigError(reason)
        return world_size // ranks

    def num_replicas(self, world_size: int) -> int:
        """Return the number of ranks training the same weights, across which ZeRO shards its state: all but tensor ranks."""
        return self.num_data_ranks(world_size) * self.parallel.sample_replicas

    def check_divides(self, world_size: int) -> None:
        """Check that this number of ranks can share the samples and the batches. Raises as `num_micro_batches`."""
        self.num_micro_batches(world_size)

    def num_micro_batches(self, world_size: int) -> int:
        """Return the micro-batches per step on each data-parallel rank, after the batch-size warm-up.

        Raises:
            ConfigError: The ranks or a batch do not divide evenly. The message has the equation.
        """
        micro = self.training.micro_batch_size
        data_ranks = self.num_data_ranks(world_size)
        batches = [("global_batch_size", self.training.global_batch_size)]
        for stage in self.training.batch_warmup:
            batches.append(("batch_warmup", stage.samples))
        samples = micro * data_ranks
        for setting, batch in batches:
            if batch % samples:
                raise ConfigError(
                    f"{setting} {batch} = micro_batch_size {micro} x data-parallel ranks {data_ranks} x accumulation "
                    f"{batch / samples:.4g}: the accumulation must be a whole number; change training.{setting} or "
                    "training.micro_batch_size"
                )
        return self.training.global_batch_size // samples


def config_limits() -> tuple[Limit[Config], ...]:
    """Return the limits of the whole configuration, in the order of checking. Those of the model section are separate."""
    return load_limits(LIMITS)
