"""Settings that FP8 products (training.fp8) do not support."""

from megatape.config import Config, TrainingConfig
from megatape.config.limits import Incompatibility, Limit, ValueOf, indivisible

# torch._scaled_mm needs matrix sizes that are multiples of 16.
FP8_MULTIPLE = 16
_SETTING = ValueOf("training.fp8")
_OR_NONE = "or set training.fp8 to none"


def _is_fp8(training: TrainingConfig) -> bool:
    return training.fp8 != "none"


def _has_frozen_weights(training: TrainingConfig) -> bool:
    return training.trainable != ("all",) or bool(training.frozen)


def _sizes_unfit_for_fp8(config: Config) -> str | None:
    if not _is_fp8(config.training):
        return None
    model = config.model
    sizes = [
        ("model.hidden_size", model.hidden_size),
        ("model.num_heads x model.head_dim", model.num_heads * model.head_dim),
        ("model.num_kv_heads x model.head_dim", model.num_kv_heads * model.head_dim),
        ("model.mlp_size", model.mlp_size),
    ]
    reason = f"{FP8_MULTIPLE}, which FP8 products need: change it, or set training.fp8 to none"
    return indivisible(sizes, FP8_MULTIPLE, reason)


def _micro_batches_unfit_for_fp8(config: Config) -> str | None:
    if not _is_fp8(config.training):
        return None
    for setting, length in config.data.lengths:
        tokens = config.training.micro_batch_size * length // config.parallel.sample_replicas
        if tokens % FP8_MULTIPLE:
            return (
                f"{setting} {length}: a rank's micro-batch has {tokens} tokens, which is not a multiple of {FP8_MULTIPLE}, as "
                f"FP8 products need: change it or training.micro_batch_size, {_OR_NONE}"
            )
    return None


LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility[Config](
        setting=_SETTING,
        case=ValueOf("training.precision"),
        when=lambda config: _is_fp8(config.training) and config.training.precision != "bfloat16",
        because=None,
        remedy=f"choose bfloat16, {_OR_NONE}",
    ),
    Incompatibility[Config](
        setting=_SETTING,
        case="zero.stage 3",
        when=lambda config: _is_fp8(config.training) and config.zero.stage == 3,
        because="which frees the weights that FP8 products keep for the backward pass",
        remedy=f"choose 2, {_OR_NONE}",
    ),
    Incompatibility[Config](
        setting=_SETTING,
        case=ValueOf("parallel.tp"),
        when=lambda config: _is_fp8(config.training) and config.parallel.tp > 1,
        because="whose ranks would each scale their own part of a matrix",
        remedy=f"choose 1, {_OR_NONE}",
    ),
    Incompatibility[Config](
        setting=_SETTING,
        case="model.lora",
        when=lambda config: _is_fp8(config.training) and config.model.lora is not None,
        because="whose weights are frozen",
        remedy=f"remove it, {_OR_NONE}",
    ),
    Incompatibility[Config](
        setting=_SETTING,
        case="training.chunk_tokens",
        when=lambda config: _is_fp8(config.training) and config.training.chunk_tokens is not None,
        because="since it would scale each chunk apart",
        remedy=f"remove it, {_OR_NONE}",
    ),
    Incompatibility[Config](
        setting=_SETTING,
        case="frozen weights",
        when=lambda config: _is_fp8(config.training) and _has_frozen_weights(config.training),
        because="whose gradients it would compute",
        remedy=f'set training.trainable to ["all"] and training.frozen to [], {_OR_NONE}',
    ),
    _sizes_unfit_for_fp8,
    _micro_batches_unfit_for_fp8,
)
