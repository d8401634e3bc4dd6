"""Settings of the model that a position encoding does not support, by the traits that its registry entry claims."""

from megatape.config.limits import Incompatibility, Limit, ValueOf, indivisible
from megatape.config.sections.model import ModelConfig
from megatape.registry import ENCODINGS

# A share of the channels may round to less or more than a whole number of them.
ROUNDING = 1e-6


def _encodings_with_scaling() -> str:
    names = [name for name, entry in ENCODINGS.items() if entry.scalable]
    return f"remove it, or choose one of {', '.join(names)}"


def _in_some_layers(model: ModelConfig) -> bool:
    return model.nope_every is not None and not model.traits.by_layer


def _with_changed_scores(model: ModelConfig) -> bool:
    return model.attention_scale is not None and model.traits.reads_scores


def _indivisible_sizes(model: ModelConfig) -> str | None:
    traits = model.traits
    encoding = f"encoding {model.encoding}"
    hidden_size = [("hidden_size", model.hidden_size)]
    reason = None
    if traits.rotates:
        reason = indivisible([("head_dim", model.head_dim)], 2, f"2: {encoding} rotates pairs of a head's channels")
    if traits.paired_embedding and reason is None:
        reason = indivisible(hidden_size, 2, f"2: the embeddings of {encoding} are pairs of a sine and a cosine")
    if traits.sliced and reason is None:
        heads = model.num_kv_heads
        slices = f"num_kv_heads {heads}: {encoding} divides it into a slice for each key/value head"
        reason = indivisible(hidden_size, heads, slices)
    return reason


def _too_many_positions(model: ModelConfig) -> str | None:
    maximum = model.traits.max_positions
    if maximum is None or model.max_positions <= maximum:
        return None
    return (
        f"max_positions {model.max_positions} exceeds {maximum}, the most that encoding {model.encoding} can represent: lower "
        "it, or choose another encoding"
    )


def _no_layer_without_positions(model: ModelConfig) -> str | None:
    if model.nope_every is None or model.nope_every <= model.num_layers:
        return None
    return (
        f"nope_every {model.nope_every} is more than num_layers {model.num_layers}, so every layer would have positions: "
        "remove it, or lower it"
    )


def _uneven_rotated_channels(model: ModelConfig) -> str | None:
    if model.rotary_fraction == 1:
        return None
    channels = round(model.rotated_channels)
    is_whole = abs(model.rotated_channels - channels) < ROUNDING
    if is_whole and channels > 0 and channels % 2 == 0:
        return None
    return (
        f"rotary_fraction {model.rotary_fraction} of head_dim {model.head_dim} is {model.rotated_channels:g} channels: it must "
        "be an even number of them, which rotate in pairs"
    )


def _single_scaled_frequency(model: ModelConfig) -> str | None:
    is_scaled = model.scaling is not None and model.scaling.kind == "theta"
    if is_scaled and round(model.rotated_channels) == 2:
        return (
            "scaling of kind theta needs a head_dim above 2, of which more than 2 channels rotate: a single frequency is 1, "
            "whatever the base"
        )
    return None


LIMITS: tuple[Limit[ModelConfig], ...] = (
    _indivisible_sizes,
    Incompatibility[ModelConfig](
        setting=ValueOf("nope_every"),
        case=ValueOf("encoding"),
        when=lambda model: _in_some_layers(model) and model.traits.is_built_in,
        because="which has no positions, or adds them to the embedding, which reaches all layers",
        remedy="remove it, or choose an encoding that layers apply, such as rope",
    ),
    Incompatibility[ModelConfig](
        setting=ValueOf("nope_every"),
        case=ValueOf("encoding"),
        when=lambda model: _in_some_layers(model) and not model.traits.is_built_in,
        because="whose registry entry does not set by_layer=True",
        remedy="set it if layers apply the encoding (docs/own_encodings.md), or remove nope_every",
    ),
    Incompatibility[ModelConfig](
        setting=ValueOf("rotary_fraction"),
        case=ValueOf("encoding"),
        when=lambda model: model.rotary_fraction < 1 and not model.traits.rotates,
        because="which rotates no pairs of a head's channels",
        remedy="remove it, or choose one that does, such as rope",
    ),
    Incompatibility[ModelConfig](
        setting=ValueOf("attention_scale"),
        case=ValueOf("encoding"),
        when=lambda model: _with_changed_scores(model) and model.traits.is_built_in,
        because="whose positions are sums of gates on the scores, which it would change",
        remedy="remove it, or choose another encoding",
    ),
    Incompatibility[ModelConfig](
        setting=ValueOf("attention_scale"),
        case=ValueOf("encoding"),
        when=lambda model: _with_changed_scores(model) and not model.traits.is_built_in,
        because="whose registry entry does not set reads_scores=False",
        remedy="set it if the encoding does not depend on the scores (docs/own_encodings.md), or remove attention_scale",
    ),
    Incompatibility[ModelConfig](
        setting="scaling",
        case=ValueOf("encoding"),
        when=lambda model: model.scaling is not None and not model.traits.scalable,
        because=None,
        remedy=_encodings_with_scaling,
    ),
    _too_many_positions,
    _no_layer_without_positions,
    _uneven_rotated_channels,
    _single_scaled_frequency,
)
