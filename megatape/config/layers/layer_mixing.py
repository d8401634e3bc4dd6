"""Compatibility of the position encodings in model.layers, judged by the traits in their registry entries."""

from collections.abc import Mapping

from megatape.config.layers.layer_pattern import NO_ENCODING, LayerPattern
from megatape.entries import EncodingEntry
from megatape.registry import ENCODINGS


def main_encoding(pattern: LayerPattern) -> str:
    """Return the encoding that makes the position state and the position ids of a model with this pattern.

    This is the one that updates the state, else the first one with a state, else the first one with positions.
    """
    known = _entries(pattern)
    for name, entry in known.items():
        if entry.updates_state:
            return name
    for name, entry in known.items():
        if entry.layer_state:
            return name
    for name in pattern.encodings:
        if name != NO_ENCODING:
            return name
    return NO_ENCODING


def mixing_error(pattern: LayerPattern) -> str | None:
    """Return the error about encodings that cannot be mixed, or None. All must be in the registry."""
    if len(pattern.encodings) == 1:
        return None
    entries = _entries(pattern)
    for name, entry in entries.items():
        if not entry.by_layer:
            return (
                f"layers {pattern}: encoding {name} does not belong to single layers{_claim(entry, 'by_layer=True')}: "
                "remove it from the pattern"
            )
    if len(entries) == 1:
        return None
    for name, entry in entries.items():
        if entry.layer_state is None:
            return (
                f"layers {pattern}: encoding {name} mixes with {NO_ENCODING} only"
                f"{_claim(entry, 'layer_state')}: remove the other encodings"
            )
    with_state = [name for name, entry in entries.items() if entry.layer_state]
    for name in with_state[1:]:
        first = with_state[0]
        if entries[name].layer_state != entries[first].layer_state:
            return (
                f"layers {pattern}: encodings {first} and {name} do not mix, because they have different position states: "
                f"choose one of them, with {NO_ENCODING} or a bias such as alibi or fox in the other layers"
            )
    updating = [name for name, entry in entries.items() if entry.updates_state]
    if len(updating) > 1:
        return (
            f"layers {pattern}: encodings {updating[0]} and {updating[1]} both update the position state: choose one of them, "
            "with rope or nope in the other layers"
        )
    return None


def _entries(pattern: LayerPattern) -> Mapping[str, EncodingEntry]:
    """Return the entries of encodings that have positions. Recorded configurations may name unknown ones."""
    names = [name for name in pattern.encodings if name != NO_ENCODING]
    return {name: ENCODINGS[name] for name in names if name in ENCODINGS}


def _claim(entry: EncodingEntry, trait: str) -> str:
    """Return the remark that an encoding from outside the package does not claim a trait."""
    if entry.is_built_in:
        return ""
    return f", because its registry entry does not set {trait}"
