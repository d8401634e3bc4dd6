"""The JSON configuration: every section, its fields with unit, default and meaning, and all checks.

One file describes a run completely. It is strict: a key that is unknown or a value of another type is an error that names
its path, its value and what is allowed. Values left out get the defaults below; the resolved configuration, with nothing
left to a default, is saved with the run.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    model_validator,
)

from megatape.registry import ENCODINGS, Entry

IGNORE_INDEX = -100  # a target that takes no part in the loss: the loader writes it, the loss leaves it out


# Settings of DeepSpeed that one might look for here, and why they are not offered.
WITHHELD = {
    "zero_hpz_partition_size": "with tensor ranks DeepSpeed silently trains a wrong model",
    "mesh_param": "below stage 3 DeepSpeed silently trains a wrong model; parallel.tp divides the sequence",
    "sequence_parallel_size": "below stage 3 DeepSpeed silently trains a wrong model; parallel.tp divides the sequence",
    "fp16": "overflowing steps would be skipped; training.precision is float32 or bfloat16",
    "train_batch_size": "it follows from training.global_batch_size",
    "gradient_accumulation_steps": "it follows from training.global_batch_size, training.micro_batch_size and the number of ranks",
}


class Section(BaseModel):
    """Base of all sections: immutable, strictly typed, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    def _default(self, name: str, value: Any) -> None:
        """Fill in a field that defaults to a function of others (sections are frozen for everybody else)."""
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Registered:
    """Validator of a key whose values are the names of a registry (megatape/registry.py)."""

    entries: Mapping[str, Entry]

    def __call__(self, name: str) -> str:
        if name not in self.entries:
            raise ValueError(f"choose one of {', '.join(self.entries)}")
        return name


EncodingName = Annotated[str, AfterValidator(Registered(ENCODINGS))]


class ScalingConfig(Section):
    """Change of the rotary frequencies for a context that is `factor` times longer, for `rope` and `tape`."""

    kind: Literal["linear", "theta", "yarn"] = Field(
        description="linear divides positions by the factor, theta raises the base (NTK-aware), yarn treats each frequency by its wavelength"
    )
    factor: float = Field(gt=1, description="how many times longer the context becomes")
    original_length: int | None = Field(None, gt=0, description="longest sequence before the change; yarn only, which needs it")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "yarn" and self.original_length is None:
            raise ValueError("scaling of kind yarn needs original_length, the longest sequence before the change")
        if self.kind != "yarn" and self.original_length is not None:
            raise ValueError(
                f"original_length {self.original_length} has no meaning for scaling of kind {self.kind}: remove it"
            )
        return self


class ModelConfig(Section):
    """Shape of the transformer and its position encoding."""

    encoding: EncodingName = Field("tape", description="position encoding (docs/model.md)")
    scaling: ScalingConfig | None = Field(None, description="change of the rotary frequencies, `rope` and `tape` only (below)")
    num_layers: PositiveInt = Field(description="blocks")
    hidden_size: PositiveInt = Field(description="C, width of the hidden state")
    num_heads: PositiveInt = Field(description="H, query heads")
    num_kv_heads: PositiveInt = Field(
        default=cast(int, None), description="L, key/value heads, which are also TAPE's position channels; default num_heads"
    )
    head_dim: PositiveInt = Field(
        default=cast(int, None), description="R, size of a head; even where heads are rotated; default hidden_size / num_heads"
    )
    mlp_size: PositiveInt = Field(description="inner width of the SwiGLU feed-forward")
    vocab_size: PositiveInt = Field(description="token ids; at least that of the tokenizer that made the shards")
    position_size: PositiveInt = Field(
        default=cast(int, None),
        description="I, inner width of TAPE's feed-forward position update, unused by the others; default 4 L",
    )
    max_positions: PositiveInt = Field(
        description="longest sequence the model is meant for; training offsets and `randpe` positions are drawn from 0 .. 2 max_positions"
    )
    rotary_base: float = Field(10000.0, gt=1, description="base of the rotary frequencies")
    norm_eps: float = Field(1e-5, gt=0, description="added to the mean square in RMSNorm")
    init_std: float = Field(0.02, gt=0, description="standard deviation of initial weights")
    tie_embeddings: bool = Field(False, description="use the embedding matrix as the output head too")

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._default("num_kv_heads", self.num_heads)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}: every key/value head "
                "serves the same number of query heads"
            )
        if self.head_dim is None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}: give head_dim, or change one of them"
            )
        self._default("head_dim", self.hidden_size // self.num_heads)
        encoding = ENCODINGS[self.encoding]
        if self.head_dim % 2 and encoding.rotates:
            raise ValueError(
                f"head_dim {self.head_dim} is odd: with encoding {self.encoding} a head is made of planes, each with a cosine and a sine"
            )
        if self.hidden_size % 2 and encoding.paired_embedding:
            raise ValueError(
                f"hidden_size {self.hidden_size} is odd: embeddings of encoding {self.encoding} are pairs of a sine and a cosine"
            )
        if encoding.max_positions is not None and self.max_positions > encoding.max_positions:
            raise ValueError(
                f"max_positions {self.max_positions} is beyond {encoding.max_positions}, the most that encoding {self.encoding} can "
                "represent: lower it, or choose another encoding"
            )
        if self.scaling is not None and not encoding.scalable:
            scalable = ", ".join(name for name, entry in ENCODINGS.items() if entry.scalable)
            raise ValueError(
                f"encoding {self.encoding} has no frequencies to scale: remove scaling, or choose one of {scalable}"
            )
        if self.scaling is not None and self.scaling.kind == "theta" and self.head_dim == 2:
            raise ValueError(
                "scaling of kind theta needs a head_dim above 2: a single plane has the frequency 1 for every base"
            )
        self._default("position_size", 4 * self.num_kv_heads)
        return self


class DataConfig(Section):
    """What is read, and how it is cut into samples."""

    path: str = Field(min_length=1, description="folder that data_prep/prepare_corpus.py wrote (it holds index.json)")
    cache: str = Field(
        "",
        description="folder on each node's own disk: shards are copied there once a node and read from there; empty: read in place",
    )
    sequence_length: PositiveInt = Field(description="N, tokens of a sample")
    samples: Literal["packed", "documents"] = Field(
        "packed",
        description="packed cuts the stream of documents every N tokens; documents gives each a sample of its own, filled up",
    )
    prompt_end: str | None = Field(
        None,
        min_length=1,
        description="text of one token, such as `=`: only what follows it in a document is a target, by default all of it is; samples `documents` only",
    )
    mask_documents: bool = Field(
        False, description="attention and positions stop at document borders, and no target crosses one"
    )
    random_offset: bool = Field(
        True,
        description="add a random offset of 0 .. 2 max_positions to a training sample's positions (`rope` and the `tape` family)",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.samples == "documents" and self.mask_documents:
            raise ValueError(
                "mask_documents true has no meaning with samples documents, where no sample holds two: remove it, or set samples to "
                "packed"
            )
        if self.samples == "packed" and self.prompt_end is not None:
            raise ValueError(
                f"prompt_end {self.prompt_end!r} needs samples documents, where every sample begins with a prompt; samples is packed: "
                "change it, or remove prompt_end"
            )
        return self


class TrainingConfig(Section):
    """Batches, precision and length of the run."""

    steps: PositiveInt = Field(description="optimizer steps")
    global_batch_size: PositiveInt = Field(description="samples of one optimizer step, over all ranks")
    micro_batch_size: PositiveInt = Field(description="samples of one forward and backward pass on one rank")
    seed: int = Field(1234, ge=0, description="everything random derives from it")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of weights and activations in compute; master weights and moments are float32 in both"
    )
    gradient_clip: float = Field(1.0, ge=0, description="largest norm of the gradient; 0 turns clipping off")
    activation_checkpointing: bool = Field(False, description="keep only each block's input and compute the rest again")


class OptimizerConfig(Section):
    """AdamW. Norms, gains and biases are not decayed; attention gains learn L times faster (see optim/adamw.py)."""

    learning_rate: float = Field(gt=0, description="peak of the schedule")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay of the second moment")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.01, ge=0, description="share of a matrix that a step at learning rate 1 would take away")


class ScheduleConfig(Section):
    """Learning rate over the steps: linear warm-up from 0, then one of three courses."""

    kind: Literal["linear", "cosine", "constant"] = Field("linear", description="course after the warm-up")
    warmup_fraction: float = Field(0.02, ge=0, lt=1, description="share of all steps")
    final_fraction: float = Field(0.0, ge=0, le=1, description="share of the peak reached at the last step (linear and cosine)")


class ZeroConfig(Section):
    """How DeepSpeed ZeRO spreads the training state over the data-parallel ranks."""

    stage: Literal[0, 1, 2, 3] = Field(3, description="0 nothing, 1 optimizer state, 2 and gradients, 3 and weights")
    offload_optimizer: bool = Field(False, description="keep masters and moments, and step, in host memory")
    offload_parameters: bool = Field(False, description="keep the weights' partitions in host memory (stage 3)")
    bucket_size: PositiveInt = Field(50_000_000, description="elements that one gradient reduction or gather moves at most")
    sub_group_size: PositiveInt = Field(1_000_000_000, description="elements that the stage 3 optimizer steps at a time")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.offload_optimizer and self.stage == 0:
            raise ValueError("offload_optimizer needs stage 1, 2 or 3; the stage is 0")
        if self.offload_parameters and self.stage != 3:
            raise ValueError(f"offload_parameters needs stage 3; the stage is {self.stage}")
        return self


class ParallelConfig(Section):
    """How ranks divide the model; all others divide the data."""

    tp: PositiveInt = Field(
        1, description="T, tensor ranks: each holds 1/T of the heads, of the MLP, of the vocabulary and of both streams' tokens"
    )


class EvaluationConfig(Section):
    """Loss on the validation split while training."""

    interval: PositiveInt = Field(500, description="steps between evaluations; the last step is always evaluated")
    samples: PositiveInt = Field(256, description="validation samples of one evaluation, over all ranks")


class CheckpointConfig(Section):
    """When checkpoints are written and how many stay."""

    interval: PositiveInt = Field(1000, description="steps between checkpoints; the last step always writes one")
    keep: PositiveInt = Field(3, description="newest checkpoints that are kept")


class LoggingConfig(Section):
    """How often the console, metrics.jsonl and TensorBoard hear of the run."""

    interval: PositiveInt = Field(10, description="steps between console and TensorBoard entries; metrics.jsonl has every step")


class RunConfig(Section):
    """Where everything that the run writes goes."""

    directory: str = Field(
        min_length=1, description="config.json, metrics.jsonl, tensorboard/ and checkpoints/ are written here"
    )


class ClusterConfig(Section):
    """The machines that the settings are meant for. The planner (docs/planning.md) reads it; training takes the ranks it is given."""

    nodes: PositiveInt = Field(description="machines")
    gpus_per_node: PositiveInt = Field(description="GPUs of each")
    gpu: str = Field(min_length=1, description="what they are: a name that `launch/plan.py --help` lists, or a JSON file")

    @property
    def world_size(self) -> int:
        """GPUs in all, each with one rank."""
        return self.nodes * self.gpus_per_node


class Config(Section):
    """The whole file. `docs/config.md` is made from these descriptions."""

    run: RunConfig
    model: ModelConfig
    data: DataConfig
    training: TrainingConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()
    zero: ZeroConfig = ZeroConfig()
    parallel: ParallelConfig = ParallelConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    cluster: ClusterConfig | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        length, limit = self.data.sequence_length, self.model.max_positions
        if length > limit:
            raise ValueError(
                f"data.sequence_length {length} is longer than model.max_positions {limit}: shorten the samples or raise max_positions"
            )
        if self.training.precision == "bfloat16" and self.zero.stage < 2:
            raise ValueError(
                f"training.precision bfloat16 with zero.stage {self.zero.stage}: stage 0 has no float32 master weights, stage 1 sums "
                "gradients in bfloat16; use stage 2 or 3, or float32"
            )
        for path, value in (
            ("model.num_heads", self.model.num_heads),
            ("model.num_kv_heads", self.model.num_kv_heads),
            ("model.mlp_size", self.model.mlp_size),
            ("data.sequence_length", length),
        ):
            if value % self.parallel.tp:
                raise ValueError(
                    f"{path} {value} is not a multiple of parallel.tp {self.parallel.tp}: each tensor rank holds an equal share"
                )
        return self

    def data_ranks(self, world_size: int) -> int:
        """Data-parallel ranks among `world_size` ranks. Raises ValueError if they do not form whole groups of tensor ranks."""
        if world_size < 1 or world_size % self.parallel.tp:
            raise ValueError(
                f"{world_size} processes do not make whole groups of parallel.tp {self.parallel.tp} tensor ranks: start a multiple of "
                "it, or change parallel.tp"
            )
        return world_size // self.parallel.tp

    def accumulation(self, world_size: int) -> int:
        """Micro-batches of one step on each data-parallel rank when `world_size` ranks run.

        Raises ValueError with the equation when the ranks or the global batch do not divide."""
        batch, micro, data_ranks = self.training.global_batch_size, self.training.micro_batch_size, self.data_ranks(world_size)
        if batch % (micro * data_ranks):
            raise ValueError(
                f"global_batch_size {batch} = micro_batch_size {micro} x data-parallel ranks {data_ranks} x accumulation "
                f"{batch / (micro * data_ranks):.4g}: the accumulation must be a whole number; change training.global_batch_size or "
                "training.micro_batch_size"
            )
        return batch // (micro * data_ranks)


def load_config(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Read a JSON configuration and apply `section.key=value` overrides.

    A value is read as JSON and, if it is none, taken as text. Raises FileNotFoundError or ValueError with what, where, which
    value and what is allowed."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no configuration at {path}: give a JSON file such as configs/tape_tiny.json")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_no_key_twice)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: a configuration is a JSON object of sections, not {type(raw).__name__}")
    for item in overrides or []:
        _override(raw, item)
    return parse_config(raw, str(path))


def parse_config(raw: dict[str, Any], origin: str) -> Config:
    """Check a plain dictionary; `origin` names it in errors. Raises ValueError that lists every fault."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        faults = "\n".join(f"  {_explain(dict(fault))}" for fault in error.errors())
        raise ValueError(f"{origin}:\n{faults}") from None


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)} stands twice in one section")
    return found


def _override(raw: dict[str, Any], item: str) -> None:
    key, separator, text = item.partition("=")
    *sections, field = key.split(".")
    if not (separator and sections and all(sections) and field):
        raise ValueError(f"--set {item!r}: write section.key=value, for example --set training.steps=100")
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = text
    target = raw
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise ValueError(f"--set {item!r}: {section} is {target!r} in the file, not a section")
    target[field] = value


def _explain(fault: dict[str, Any]) -> str:
    """One line for one pydantic fault: path, value, what is allowed."""
    path = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        if reason := WITHHELD.get(str(fault["loc"][-1])):
            return f"{path}: not offered: {reason}"
        allowed = _fields(fault["loc"][:-1])
        close = difflib.get_close_matches(str(fault["loc"][-1]), allowed, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        return f"{path}: unknown key; {hint}allowed: {', '.join(allowed)}"
    if fault["type"] == "missing":
        return f"{path}: missing; it has no default"
    message = fault["msg"].removeprefix("Value error, ")
    value = "" if isinstance(fault["input"], dict) else f" is {json.dumps(fault['input'], default=str)}:"
    return f"{path}{value} {message}" if path else message


def _fields(location: tuple[Any, ...]) -> list[str]:
    """Names of the keys that the section at `location` knows."""
    section: type[BaseModel] = Config
    for part in location:
        (section,) = sections_in(section.model_fields[part].annotation)
    return list(section.model_fields)


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a field may hold: itself, or what stands beside None."""
    return [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type) and issubclass(kind, BaseModel)]
