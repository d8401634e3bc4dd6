"""Architectures in transformers that export.family can name, judged by what their registry entries support."""

from megatape.config.sections.model import ModelConfig
from megatape.entries import FamilyEntry
from megatape.registry import FAMILIES


def families_with(model: ModelConfig) -> list[str]:
    """Return the architectures in transformers that have all parts of a model, in registry order."""
    return [name for name, entry in FAMILIES.items() if _has_parts(entry, model)]


def _has_parts(entry: FamilyEntry, model: ModelConfig) -> bool:
    if entry.encodings is not None and not set(model.pattern.encodings) <= {*entry.encodings}:
        return False
    if model.attention_bias not in entry.attention_bias:
        return False
    if model.qk_norm not in entry.qk_norm:
        return False
    if model.normalization not in entry.normalizations:
        return False
    if model.switches and not entry.switches:
        return False
    if not _has_windows(entry, model):
        return False
    has_whole_heads = model.hidden_size % model.num_heads == 0
    return has_whole_heads or not entry.whole_heads


def _has_windows(entry: FamilyEntry, model: ModelConfig) -> bool:
    windows = model.pattern.windows
    if windows == {None} or entry.windows == "any":
        return True
    if entry.windows == "some":
        return len(windows - {None}) == 1
    return entry.windows == "one" and len(windows) == 1
