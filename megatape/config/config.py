"""The whole configuration, its sections that distribute a run over ranks, and the checks that span sections."""

from collections.abc import Iterable, Mapping
from math import lcm, prod
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, SerializeAsAny, ValidationInfo, model_validator

from megatape.config.data import DataConfig
from megatape.config.model import ModelConfig
from megatape.config.run import CheckpointConfig, EvaluationConfig, ExportConfig, LoggingConfig, RunConfig, families_with
from megatape.config.section import ByKind, Free, Section, is_recorded
from megatape.config.training import BatchSizes, OptimizerConfig, ScheduleConfig, TrainingConfig
from megatape.errors import ConfigError
from megatape.registry import ENCODINGS, LEGACY_SCHEDULES, OPTIMIZERS, SCHEDULES
from megatape.utils.units import plural

OPTIMIZER_KINDS = ByKind(OPTIMIZERS, "adamw", OptimizerConfig)
SCHEDULE_KINDS = ByKind(SCHEDULES, "linear", ScheduleConfig, LEGACY_SCHEDULES)
FP8_MULTIPLE = 16  # all sizes of the matrices that torch._scaled_mm multiplies are multiples of it


class ZeroConfig(Section):
    """How DeepSpeed ZeRO shards the training state over the data-parallel ranks.

    Attributes:
        stage: sharded state: 0 nothing, 1 the optimizer state, 2 also the gradients, 3 also the
            weights
        offload_optimizer: keep master weights and optimizer state in host memory, and run the
            optimizer there
        offload_parameters: keep the weights' shards in host memory (stage 3)
        overlap: reduce gradients beside the backward pass (stages 1 to 3)
        bucket_size: most elements in one gradient reduction or gather; stage 3 gathers this many
            elements ahead of use, or the matrices of one block if these are more
        sub_group_size: elements that the stage 3 optimizer updates at a time
        hpz_ranks: ranks, those of a node, that together keep a second copy of the weights (stage 3,
            parallel.tp 1): only the first gather of a weight in a step crosses nodes; 1: no copy
    """

    stage: Free[Literal[0, 1, 2, 3]] = 3
    offload_optimizer: Free[bool] = False
    offload_parameters: Free[bool] = False
    overlap: Free[bool] = True
    bucket_size: Free[PositiveInt] = 50_000_000
    sub_group_size: Free[PositiveInt] = 1_000_000_000
    hpz_ranks: Free[PositiveInt] = 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        for setting, is_used, stages in (
            ("offload_optimizer", self.offload_optimizer, "1, 2 or 3"),
            ("offload_parameters", self.offload_parameters, "3"),
            (f"hpz_ranks {self.hpz_ranks}", self.hpz_ranks > 1, "3"),
        ):
            if is_used and str(self.stage) not in stages:
                raise ConfigError(f"{setting} needs stage {stages}; stage is {self.stage}")
        return self


class ParallelConfig(Section):
    """How many ranks share one copy of the model, or one sample. Copies divide the data.

    Attributes:
        tp: T, tensor-parallel ranks: each holds 1/T of the heads, of the MLP, of the vocabulary,
            and of the tokens of both residual streams
        sp: S, sequence-parallel ranks: each holds 1/S of a sample's tokens, and in attention all
            tokens of 1/S of the heads
        cp: C, context-parallel ranks: each holds 1/C of a sample's tokens, in attention too, where
            keys and values pass around a ring of ranks
    """

    tp: Free[PositiveInt] = 1
    sp: Free[PositiveInt] = 1
    cp: Free[PositiveInt] = 1

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of the axes of the mesh that divide samples."""
        return {"context": self.cp, "sequence": self.sp, "tensor": self.tp}

    @property
    def sample_ranks(self) -> int:
        """Ranks that divide the tokens of the same samples."""
        return prod(self.axes.values())

    @property
    def sample_replicas(self) -> int:
        """How many replicas of the model these ranks have together."""
        return self.sp * self.cp


class ClusterConfig(Section):
    """The machines the settings are meant for. Only the planner (docs/planning.md) reads this section.

    Attributes:
        nodes: number of machines
        gpus_per_node: GPUs per machine
        gpu: GPU type: a name that `megatape plan --help` lists, or a JSON file
        host_gib: GiB of host memory per machine, which offloading must fit
    """

    nodes: Free[PositiveInt] = Field(le=100_000)
    gpus_per_node: Free[PositiveInt] = Field(le=1_024)
    gpu: Free[str] = Field(min_length=1)
    host_gib: Free[PositiveFloat | None] = None

    @property
    def world_size(self) -> int:
        """Number of GPUs, each with one rank."""
        return self.nodes * self.gpus_per_node


class Config(Section):
    """The whole file. `docs/config.md` is made from these descriptions."""

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
        length = self.data.sequence_length
        limit = self.model.max_positions
        window = self.model.sliding_window
        if length > limit:
            raise ConfigError(
                f"data.sequence_length {length} is longer than model.max_positions {limit}: shorten the samples, or raise "
                "max_positions"
            )
        if window is not None and length > window:
            raise ConfigError(
                f"data.sequence_length {length} is longer than model.sliding_window {window}: shorten the samples"
            )
        if self.training.precision == "bfloat16" and self.zero.stage == 0:
            raise ConfigError(
                "training.precision bfloat16 with zero.stage 0, which keeps no float32 master weights: use stage 1, 2 or 3, or "
                "float32"
            )
        if self.model.lora is not None and "all" in self.training.trainable:
            raise ConfigError(
                'training.trainable ["all"] trains every weight beside the adapters of model.lora: give what to train, such as '
                '["adapters"] or ["adapters", "norms", "embeddings"], or remove model.lora'
            )
        if self.training.chunk_tokens is not None and self.model.lora is not None and self.model.lora.dropout:
            raise ConfigError(
                f"training.chunk_tokens {self.training.chunk_tokens} is not for model.lora.dropout {self.model.lora.dropout}, "
                "whose zeros depend on the place of a token: set dropout to 0, or remove chunk_tokens"
            )
        family = self.export.family
        possible = families_with(self.model)
        if window is not None and not possible:
            raise ConfigError(
                f"model.sliding_window {window} is for models that are exported as Mistral, which has no encoding "
                f"{self.model.encoding}, biases of attention, qk_norm, logit_softcap or other switches: set it to null"
            )
        if family is not None and family not in possible:
            raise ConfigError(
                f"export.family {family} has no model with {self.model.parts} in this shape: remove it"
                + (f", or choose one of {', '.join(possible)}" if possible else "")
            )
        sizes = {name: getattr(self.model, name) for name in ("num_heads", "num_kv_heads", "mlp_size")}
        _check_multiples(
            [*((f"model.{name}", size) for name, size in sizes.items()), *self.data.lengths],
            self.parallel.tp,
            f"parallel.tp {self.parallel.tp}: every tensor-parallel rank holds an equal share",
        )
        if self.zero.hpz_ranks > 1:
            cases = {f"parallel.tp {self.parallel.tp}, which divides the weights of a node: set it to 1": self.parallel.tp > 1}
            _check_unfit(f"zero.hpz_ranks {self.zero.hpz_ranks}", cases, "set zero.hpz_ranks to 1")
        self._check_sequence_ranks()
        self._check_context_ranks()
        self._check_schedule()
        self._check_groups()
        self._check_compile()
        self._check_fp8()
        return self

    def _check_sequence_ranks(self) -> None:
        model = self.model
        parallel = self.parallel
        if parallel.sp == 1:
            return
        if not ENCODINGS[model.encoding].divides_heads:
            raise ConfigError(
                f"parallel.sp {parallel.sp} is not for encoding {model.encoding}, whose registry entry lacks divides_heads: "
                "let its per-head weights follow the ranks (docs/own_encodings.md), or set it to 1 and use parallel.tp"
            )
        heads = [(f"model.{name}", getattr(model, name)) for name in ("num_heads", "num_kv_heads")]
        _check_multiples(
            [*heads, *self.data.lengths],
            parallel.tp * parallel.sp,
            f"parallel.tp {parallel.tp} x parallel.sp {parallel.sp} = {parallel.tp * parallel.sp}: each of these ranks has an "
            "equal share of a sample's tokens and, in attention, of the heads; lower parallel.sp",
        )

    def _check_context_ranks(self) -> None:
        parallel = self.parallel
        groups = self.training.num_shifted_groups
        encoding = ENCODINGS[self.model.encoding]
        if parallel.cp == 1:
            return
        cases = {
            f"encoding {self.model.encoding}, because {encoding.whole_samples}: choose one that rotates each token on its own, "
            "such as tape or rope": bool(encoding.whole_samples),
            f"training.num_shifted_groups {groups}, whose groups lie on several ranks: remove it": groups is not None,
            f"model.attention_scale {self.model.attention_scale}, which counts the keys of a whole sample: remove it": (
                self.model.attention_scale is not None
            ),
        }
        _check_unfit(f"parallel.cp {parallel.cp}", cases, "set it to 1 and divide samples by parallel.sp")
        inner = lcm(2, parallel.tp * parallel.sp)
        _check_multiples(
            self.data.lengths,
            parallel.cp * inner,
            f"parallel.cp {parallel.cp} x {inner} = {parallel.cp * inner}: each of these ranks has two equal chunks of a "
            f"sample, which parallel.tp {parallel.tp} x parallel.sp {parallel.sp} ranks divide; change the length, or lower "
            "parallel.cp",
        )

    def _check_schedule(self) -> None:
        schedule = self.schedule.in_fractions(self.tokens)
        lengths = {name: getattr(schedule, f"{name}_fraction") for name in schedule.lengths}
        if sum(lengths.values()) > 1 + 1e-9:  # tokens that fill the run may round to more
            given = {name: f"{name}_fraction {length}" for name, length in lengths.items()}
            given |= {name: f"{name}_tokens {length}" for name, length in self.schedule.lengths.items() if length}
            raise ConfigError(
                f"schedule.{' and '.join(given.values())} are more than the run, which has {self.tokens} tokens in "
                f"training.steps {self.training.steps}: shorten them, or train for more steps"
            )

    def _check_groups(self) -> None:
        groups = self.training.num_shifted_groups
        heads = self.model.num_kv_heads
        if groups is None:
            return
        if self.model.attention_scale is not None:
            raise ConfigError(
                f"training.num_shifted_groups {groups} is not for model.attention_scale {self.model.attention_scale}, which "
                "counts the keys of a whole sample: remove one of them"
            )
        if not ENCODINGS[self.model.encoding].shiftable:
            able = ", ".join(name for name, entry in ENCODINGS.items() if entry.shiftable)
            raise ConfigError(
                f"training.num_shifted_groups {groups} is not for encoding {self.model.encoding}: remove it, or choose {able}"
            )
        _check_multiples(
            self.data.lengths,
            2 * groups,
            f"{2 * groups}: the groups of training.num_shifted_groups {groups} are equal, and half of the heads shift them by "
            "half a group",
        )
        if heads % 2:
            raise ConfigError(
                f"model.num_kv_heads {heads} is odd: training.num_shifted_groups {groups} shifts the groups of half of them; "
                "remove it"
            )

    def _check_compile(self) -> None:
        checkpointing = self.training.activation_checkpointing
        stage = self.zero.stage
        tp = self.parallel.tp
        cases = {
            f"zero.stage {stage}, which gathers weights in hooks of modules: choose stage 2": stage == 3,
            f"parallel.tp {tp}, whose exchanges lie within what is compiled": tp > 1,
            "training.activation_checkpointing selective, since the compiler chooses what compiled blocks keep: choose none or "
            "full": checkpointing == "selective",
            "model.lora, whose dropout has constants of its own in every layer": self.model.lora is not None,
        }
        if self.training.compile:
            _check_unfit("training.compile", cases, "set it to false")

    def _check_fp8(self) -> None:
        model = self.model
        training = self.training
        stage = self.zero.stage
        tp = self.parallel.tp
        if training.fp8 == "none":
            return
        cases = {
            f"training.precision {training.precision}: choose bfloat16": training.precision != "bfloat16",
            "zero.stage 3, which frees the weights that FP8 products keep for the backward pass: choose 2": stage == 3,
            f"parallel.tp {tp}, whose ranks would each scale their own part of a matrix: choose 1": tp > 1,
            "model.lora, whose weights are frozen: remove it": model.lora is not None,
            "training.chunk_tokens, since it would scale each chunk apart: remove it": training.chunk_tokens is not None,
            'frozen weights, whose gradients it would compute: set training.trainable to ["all"] and training.frozen to '
            "[]": training.trainable != ("all",) or bool(training.frozen),
        }
        _check_unfit(f"training.fp8 {training.fp8}", cases, "set training.fp8 to none")
        micro_batches = (training.micro_batch_size * length for _, length in self.data.lengths)
        _check_multiples(
            [
                ("model.hidden_size", model.hidden_size),
                ("model.num_heads x model.head_dim", model.num_heads * model.head_dim),
                ("model.num_kv_heads x model.head_dim", model.num_kv_heads * model.head_dim),
                ("model.mlp_size", model.mlp_size),
                *(("tokens of a micro-batch,", tokens // self.parallel.sample_replicas) for tokens in micro_batches),
            ],
            FP8_MULTIPLE,
            f"{FP8_MULTIPLE}, which FP8 products need: change it, or set training.fp8 to none",
        )

    @property
    def step_tokens(self) -> int:
        """Tokens of an optimizer step after the batch-size warm-up, over all ranks."""
        return self.training.global_batch_size * self.data.sequence_length

    @property
    def batches(self) -> BatchSizes:
        """How many samples each step has."""
        stages = ((stage.samples, -(-stage.tokens // self.data.sequence_length)) for stage in self.training.batch_warmup)
        return BatchSizes(self.training.global_batch_size, tuple(stages))

    @property
    def tokens(self) -> int:
        """Tokens of the run."""
        return self.batches.consumed(self.training.steps) * self.data.sequence_length

    def data_ranks(self, world_size: int) -> int:
        """Number of data-parallel ranks among `world_size` ranks, which train on different samples.

        Raises ConfigError if `world_size` is not a positive multiple of the ranks of a sample.
        """
        parallel = self.parallel
        ranks = self.parallel.sample_ranks
        if world_size < 1 or world_size % ranks:
            others = [name for name in ("sp", "cp") if getattr(parallel, name) > 1]
            more = "".join(f" x parallel.{name} {getattr(parallel, name)}" for name in others) + f" = {ranks}" * bool(others)
            processes = plural(world_size, "process is", "processes are")
            raise ConfigError(
                f"{processes} not a multiple of parallel.tp {parallel.tp}{more}: start a multiple of it, or "
                f"change {' or '.join(f'parallel.{name}' for name in ('tp', *others))}"
            )
        hpz = self.zero.hpz_ranks
        _check_multiples([("the number of processes", world_size)], hpz, f"zero.hpz_ranks {hpz}: change one of them")
        return world_size // ranks

    def replicas(self, world_size: int) -> int:
        """Number of ranks that train the same weights, over which ZeRO divides its state: all but tensor-parallel ones."""
        return self.data_ranks(world_size) * self.parallel.sample_replicas

    def accumulation(self, world_size: int) -> int:
        """Gradient accumulation: micro-batches per step on each data-parallel rank when `world_size` ranks run.

        After the batch-size warm-up. Raises ConfigError with the equation if the ranks or a batch do not divide evenly.
        """
        micro = self.training.micro_batch_size
        data_ranks = self.data_ranks(world_size)
        batches = [("global_batch_size", self.training.global_batch_size)]
        batches += [("batch_warmup", stage.samples) for stage in self.training.batch_warmup]
        for field, batch in batches:
            if batch % (micro * data_ranks):
                raise ConfigError(
                    f"{field} {batch} = micro_batch_size {micro} x data-parallel ranks {data_ranks} x accumulation "
                    f"{batch / (micro * data_ranks):.4g}: the accumulation must be a whole number; change training.{field} or "
                    "training.micro_batch_size"
                )
        return self.training.global_batch_size // (micro * data_ranks)


def _check_unfit(setting: str, cases: Mapping[str, bool], remedy: str) -> None:
    """Raise ConfigError for the first case in which a setting cannot be used.

    Args:
        setting: Name of the setting.
        cases: Description of each case -> whether it applies.
        remedy: What to do besides.
    """
    for case in (case for case, applies in cases.items() if applies):
        raise ConfigError(f"{setting} is not for {case}, or {remedy}")


def _check_multiples(sizes: Iterable[tuple[str, int]], divisor: int, reason: str) -> None:
    """Raise ConfigError for the first size that is no multiple of the divisor.

    Args:
        sizes: Names and sizes.
        divisor: What divides them.
        reason: Name of the divisor, and why.
    """
    for name, size in sizes:
        if size % divisor:
            raise ConfigError(f"{name} {size} is not a multiple of {reason}")
