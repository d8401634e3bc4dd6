"""Limits of model.layers, and of mixing encodings by it or by model.nope_every."""

from megatape.config.layers.layer_mixing import main_encoding, mixing_error
from megatape.config.limits import Limit
from megatape.config.sections.model import ModelConfig
from megatape.errors.suggestions import choose_one
from megatape.registry import ENCODINGS


def _layers_written_twice(model: ModelConfig) -> str | None:
    if model.layers is None:
        return None
    for name in ("nope_every", "sliding_window"):
        value = getattr(model, name)
        if value is not None:
            return f"{name} {value} says the same as layers {model.layers}: remove {name}, and write it into layers"
    return None


def _unknown_encoding_of_layer(model: ModelConfig) -> str | None:
    for name in model.pattern.encodings:
        if name not in ENCODINGS:
            return f"layers {model.layers} has an encoding {name!r}: {choose_one(name, ENCODINGS)}"
    return None


def _indivisible_layers(model: ModelConfig) -> str | None:
    if model.layers is None:
        return None
    period = len(model.pattern.kinds)
    if model.num_layers % period == 0:
        return None
    return (
        f"layers {model.layers} is a pattern of {period} layers, and num_layers {model.num_layers} is not a multiple: change "
        "one of them"
    )


def _unmixable_encodings(model: ModelConfig) -> str | None:
    if model.layers is None:
        return None
    return mixing_error(model.pattern)


def _other_main_encoding(model: ModelConfig) -> str | None:
    if model.layers is None:
        return None
    main = main_encoding(model.pattern)
    if model.encoding == main:
        return None
    return f"layers {model.layers} makes the positions of encoding {main}, and encoding is {model.encoding}: set it to {main}"


def _updated_state_without_reader(model: ModelConfig) -> str | None:
    """Return the error about a mixture with one layer of an encoding that updates its state for its next layer, or None."""
    encodings = [kind.encoding for kind in model.layer_kinds]
    if len(set(encodings)) == 1 or not model.traits.updates_state:
        return None
    if encodings.count(model.encoding) > 1:
        return None
    setting = f"layers {model.layers}"
    if model.layers is None:
        setting = f"nope_every {model.nope_every}"
    return (
        f"{setting} has a single layer with encoding {model.encoding} among num_layers {model.num_layers}, so no layer reads "
        "the position state that it would update: give the encoding two layers or more, or choose one that does not update its "
        "state, such as rope"
    )


def _window_beyond_positions(model: ModelConfig) -> str | None:
    if model.layers is None:
        return None
    for window in model.pattern.windows:
        if window is not None and window > model.max_positions:
            return (
                f"layers {model.layers} has a window of {window}, longer than max_positions {model.max_positions}: it hides no "
                "token, so write full, or a shorter window"
            )
    return None


LIMITS: tuple[Limit[ModelConfig], ...] = (
    _layers_written_twice,
    _unknown_encoding_of_layer,
    _indivisible_layers,
    _unmixable_encodings,
    _other_main_encoding,
    _updated_state_without_reader,
    _window_beyond_positions,
)
