"""Settings that ZeRO, and ranks sharing samples or the model, do not support."""

from megatape.config.config import Config
from megatape.config.limits import Incompatibility, Limit, ValueOf, indivisible
from megatape.config.sections.model import ModelConfig
from megatape.registry import ENCODINGS

ZERO_LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility[Config](
        setting="training.precision bfloat16",
        case="zero.stage 0",
        when=lambda config: config.training.precision == "bfloat16" and config.zero.stage == 0,
        because="which keeps no float32 master weights",
        remedy="use stage 1, 2 or 3, or float32",
    ),
    Incompatibility[Config](
        setting=ValueOf("zero.hpz_ranks"),
        case=ValueOf("parallel.tp"),
        when=lambda config: config.zero.hpz_ranks > 1 and config.parallel.tp > 1,
        because="which shards the weights of a node",
        remedy="set parallel.tp to 1, or zero.hpz_ranks to 1",
    ),
)


def _heads(model: ModelConfig) -> list[tuple[str, int]]:
    return [("model.num_heads", model.num_heads), ("model.num_kv_heads", model.num_kv_heads)]


def _indivisible_by_tensor_ranks(config: Config) -> str | None:
    sizes = [*_heads(config.model), ("model.mlp_size", config.model.mlp_size), *config.data.lengths]
    ranks = config.parallel.tp
    return indivisible(sizes, ranks, f"parallel.tp {ranks}: every tensor-parallel rank holds an equal share")


def _indivisible_by_sequence_ranks(config: Config) -> str | None:
    parallel = config.parallel
    if parallel.sp == 1:
        return None
    sizes = [*_heads(config.model), *config.data.lengths]
    ranks = parallel.tp * parallel.sp
    reason = (
        f"parallel.tp {parallel.tp} x parallel.sp {parallel.sp} = {ranks}: each of these ranks has an equal share of a "
        "sample's tokens and, in attention, of the heads; lower parallel.sp"
    )
    return indivisible(sizes, ranks, reason)


def _indivisible_by_context_ranks(config: Config) -> str | None:
    parallel = config.parallel
    if parallel.cp == 1:
        return None
    parts = parallel.parts_of_chunk
    divisor = parallel.cp * parts
    reason = (
        f"parallel.cp {parallel.cp} x {parts} = {divisor}: each of these ranks has two equal chunks of a sample, which "
        f"parallel.tp {parallel.tp} x parallel.sp {parallel.sp} ranks split; change the length, or lower parallel.cp"
    )
    return indivisible(config.data.lengths, divisor, reason)


TENSOR_LIMITS: tuple[Limit[Config], ...] = (_indivisible_by_tensor_ranks,)

SEQUENCE_LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility[Config](
        setting=ValueOf("parallel.sp"),
        case=ValueOf("model.encoding", "encoding"),
        when=lambda config: config.parallel.sp > 1 and not ENCODINGS[config.model.encoding].divides_heads,
        because="whose registry entry lacks divides_heads",
        remedy="let its per-head weights follow the ranks (docs/own_encodings.md), or set parallel.sp to 1 and use parallel.tp",
    ),
    _indivisible_by_sequence_ranks,
)

CONTEXT_LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility[Config](
        setting=ValueOf("parallel.cp"),
        case=ValueOf("model.encoding", "encoding"),
        when=lambda config: config.parallel.cp > 1 and bool(ENCODINGS[config.model.encoding].whole_samples),
        because=ValueOf("model.traits.whole_samples", "because"),
        remedy="choose one that rotates each token on its own, such as tape or rope, or set parallel.cp to 1 and split "
        "samples by parallel.sp",
    ),
    Incompatibility[Config](
        setting=ValueOf("parallel.cp"),
        case=ValueOf("training.num_shifted_groups"),
        when=lambda config: config.parallel.cp > 1 and config.training.num_shifted_groups is not None,
        because="whose groups lie on several ranks",
        remedy="remove it, or set parallel.cp to 1 and split samples by parallel.sp",
    ),
    Incompatibility[Config](
        setting=ValueOf("parallel.cp"),
        case=ValueOf("model.attention_scale"),
        when=lambda config: config.parallel.cp > 1 and config.model.attention_scale is not None,
        because="which counts the keys of a whole sample",
        remedy="remove it, or set parallel.cp to 1 and split samples by parallel.sp",
    ),
    _indivisible_by_context_ranks,
)
