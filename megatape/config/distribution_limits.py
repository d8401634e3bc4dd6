"""Settings that ZeRO, and ranks dividing samples or the model, do not support."""

from megatape.config.config import Config
from megatape.config.distribution import ParallelConfig
from megatape.config.limits import Incompatibility, Limit, MultipleOf
from megatape.config.model import ModelConfig
from megatape.registry import ENCODINGS

ZERO_LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility(
        setting="training.precision bfloat16",
        case="zero.stage 0",
        when=lambda config: config.training.precision == "bfloat16" and config.zero.stage == 0,
        because="which keeps no float32 master weights",
        remedy="use stage 1, 2 or 3, or float32",
    ),
    Incompatibility(
        setting="zero.hpz_ranks {zero.hpz_ranks}",
        case="parallel.tp {parallel.tp}",
        when=lambda config: config.zero.hpz_ranks > 1 and config.parallel.tp > 1,
        because="which divides the weights of a node",
        remedy="set parallel.tp to 1, or zero.hpz_ranks to 1",
    ),
)


def _heads(model: ModelConfig) -> list[tuple[str, int]]:
    return [("model.num_heads", model.num_heads), ("model.num_kv_heads", model.num_kv_heads)]


def _sequence_reason(parallel: ParallelConfig) -> str:
    ranks = parallel.tp * parallel.sp
    return (
        f"parallel.tp {parallel.tp} x parallel.sp {parallel.sp} = {ranks}: each of these ranks has an equal share of a "
        "sample's tokens and, in attention, of the heads; lower parallel.sp"
    )


def _context_reason(parallel: ParallelConfig) -> str:
    parts = parallel.parts_of_chunk
    return (
        f"parallel.cp {parallel.cp} x {parts} = {parallel.cp * parts}: each of these ranks has two equal chunks of a sample, "
        f"which parallel.tp {parallel.tp} x parallel.sp {parallel.sp} ranks divide; change the length, or lower parallel.cp"
    )


TENSOR_LIMITS: tuple[Limit[Config], ...] = (
    MultipleOf(
        sizes=lambda config: [
            *_heads(config.model),
            ("model.mlp_size", config.model.mlp_size),
            *config.data.lengths,
        ],
        divisor=lambda config: config.parallel.tp,
        reason=lambda config: f"parallel.tp {config.parallel.tp}: every tensor-parallel rank holds an equal share",
        when=lambda config: True,
    ),
)

SEQUENCE_LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility(
        setting="parallel.sp {parallel.sp}",
        case="encoding {model.encoding}",
        when=lambda config: config.parallel.sp > 1 and not ENCODINGS[config.model.encoding].divides_heads,
        because="whose registry entry lacks divides_heads",
        remedy="let its per-head weights follow the ranks (docs/own_encodings.md), or set parallel.sp to 1 and use parallel.tp",
    ),
    MultipleOf(
        sizes=lambda config: [*_heads(config.model), *config.data.lengths],
        divisor=lambda config: config.parallel.tp * config.parallel.sp,
        reason=lambda config: _sequence_reason(config.parallel),
        when=lambda config: config.parallel.sp > 1,
    ),
)

CONTEXT_LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility(
        setting="parallel.cp {parallel.cp}",
        case="encoding {model.encoding}",
        when=lambda config: config.parallel.cp > 1 and bool(ENCODINGS[config.model.encoding].whole_samples),
        because="because {model.traits.whole_samples}",
        remedy="choose one that rotates each token on its own, such as tape or rope, or set parallel.cp to 1 and divide "
        "samples by parallel.sp",
    ),
    Incompatibility(
        setting="parallel.cp {parallel.cp}",
        case="training.num_shifted_groups {training.num_shifted_groups}",
        when=lambda config: config.parallel.cp > 1 and config.training.num_shifted_groups is not None,
        because="whose groups lie on several ranks",
        remedy="remove it, or set parallel.cp to 1 and divide samples by parallel.sp",
    ),
    Incompatibility(
        setting="parallel.cp {parallel.cp}",
        case="model.attention_scale {model.attention_scale}",
        when=lambda config: config.parallel.cp > 1 and config.model.attention_scale is not None,
        because="which counts the keys of a whole sample",
        remedy="remove it, or set parallel.cp to 1 and divide samples by parallel.sp",
    ),
    MultipleOf(
        sizes=lambda config: config.data.lengths,
        divisor=lambda config: config.parallel.cp * config.parallel.parts_of_chunk,
        reason=lambda config: _context_reason(config.parallel),
        when=lambda config: config.parallel.cp > 1,
    ),
)
