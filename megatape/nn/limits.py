"""Settings that FP8 products (training.fp8) do not support."""

from megatape.config import Config, DataConfig, ModelConfig, TrainingConfig
from megatape.config.limits import Incompatibility, Limit, MultipleOf

# torch._scaled_mm needs matrix sizes that are multiples of 16.
FP8_MULTIPLE = 16
_SETTING = "training.fp8 {training.fp8}"
_OR_NONE = "or set training.fp8 to none"


def _is_fp8(training: TrainingConfig) -> bool:
    return training.fp8 != "none"


def _has_frozen_weights(training: TrainingConfig) -> bool:
    return training.trainable != ("all",) or bool(training.frozen)


def _matrix_sizes(model: ModelConfig) -> list[tuple[str, int]]:
    return [
        ("model.hidden_size", model.hidden_size),
        ("model.num_heads x model.head_dim", model.num_heads * model.head_dim),
        ("model.num_kv_heads x model.head_dim", model.num_kv_heads * model.head_dim),
        ("model.mlp_size", model.mlp_size),
    ]


def _token_counts(data: DataConfig, micro_batch_size: int, replicas: int) -> list[tuple[str, int]]:
    """Return the number of tokens that a replica computes at a time, for each phase of the run."""
    return [("tokens of a micro-batch,", micro_batch_size * length // replicas) for _, length in data.lengths]


LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility(
        setting=_SETTING,
        case="training.precision {training.precision}",
        when=lambda config: _is_fp8(config.training) and config.training.precision != "bfloat16",
        because="",
        remedy=f"choose bfloat16, {_OR_NONE}",
    ),
    Incompatibility(
        setting=_SETTING,
        case="zero.stage 3",
        when=lambda config: _is_fp8(config.training) and config.zero.stage == 3,
        because="which frees the weights that FP8 products keep for the backward pass",
        remedy=f"choose 2, {_OR_NONE}",
    ),
    Incompatibility(
        setting=_SETTING,
        case="parallel.tp {parallel.tp}",
        when=lambda config: _is_fp8(config.training) and config.parallel.tp > 1,
        because="whose ranks would each scale their own part of a matrix",
        remedy=f"choose 1, {_OR_NONE}",
    ),
    Incompatibility(
        setting=_SETTING,
        case="model.lora",
        when=lambda config: _is_fp8(config.training) and config.model.lora is not None,
        because="whose weights are frozen",
        remedy=f"remove it, {_OR_NONE}",
    ),
    Incompatibility(
        setting=_SETTING,
        case="training.chunk_tokens",
        when=lambda config: _is_fp8(config.training) and config.training.chunk_tokens is not None,
        because="since it would scale each chunk apart",
        remedy=f"remove it, {_OR_NONE}",
    ),
    Incompatibility(
        setting=_SETTING,
        case="frozen weights",
        when=lambda config: _is_fp8(config.training) and _has_frozen_weights(config.training),
        because="whose gradients it would compute",
        remedy=f'set training.trainable to ["all"] and training.frozen to [], {_OR_NONE}',
    ),
    MultipleOf(
        sizes=lambda config: [
            *_matrix_sizes(config.model),
            *_token_counts(config.data, config.training.micro_batch_size, config.parallel.sample_replicas),
        ],
        divisor=lambda config: FP8_MULTIPLE,
        reason=lambda config: f"{FP8_MULTIPLE}, which FP8 products need: change it, or set training.fp8 to none",
        when=lambda config: _is_fp8(config.training),
    ),
)
