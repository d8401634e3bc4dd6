"""Checkpoint features.

A feature is a property that programs must know to read a checkpoint correctly. The manifest lists the checkpoint's features,
and MegaTAPE rejects checkpoints with unknown features. To add a feature, add a member to `Feature`.

Earlier versions had no list. They wrote a format number from 1 to 5, for at most one feature, and reject higher numbers.
"""

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Any

from megatape.errors import CheckpointError

# Format of checkpoints without features, which every version of MegaTAPE reads.
PLAIN_FORMAT = 1
# Format of checkpoints listing their features. The number only keeps earlier versions from reading them.
FEATURES_FORMAT = 6
# From this format on, checkpoints of earlier versions may have a base that the number does not show.
FIRST_FORMAT_WITH_OPTIONAL_BASE = 3


class Feature(StrEnum):
    """Features that this version of MegaTAPE reads and writes."""

    # Frozen weights are stored in another folder (checkpoint/format/frozen_weights.py).
    BASE = "base"
    # The optimizer has taken fewer steps than the run (`updates` in state.json).
    SKIPPED_STEPS = "skipped_steps"
    # The checkpoint has averaged weights besides the trained ones (optimizer.ema_decay).
    EMA = "ema"
    # The weights are an average over several checkpoints, not those of any step.
    AVERAGE = "average"


# Formats of earlier versions -> features that they stand for.
EARLIER_FORMATS: dict[int, frozenset[Feature]] = {
    1: frozenset(),
    2: frozenset({Feature.BASE}),
    3: frozenset({Feature.SKIPPED_STEPS}),
    4: frozenset({Feature.EMA}),
    5: frozenset({Feature.AVERAGE}),
}


def format_of(features: Collection[Feature]) -> int:
    """Return the format number for a checkpoint with these features."""
    if features:
        return FEATURES_FORMAT
    return PLAIN_FORMAT


def earlier_features(version: int, has_base: bool) -> frozenset[Feature]:
    """Return the features that an older checkpoint has without listing them.

    Args:
        version: Format number.
        has_base: Whether the manifest has a base.

    Raises:
        KeyError: Checkpoints of this format list their features.
    """
    features = EARLIER_FORMATS[version]
    if has_base and version >= FIRST_FORMAT_WITH_OPTIONAL_BASE:
        features |= {Feature.BASE}
    return features


def check_supported(path: Path, manifest: dict[str, Any]) -> None:
    """Check that this version of MegaTAPE knows the format and every feature of a checkpoint.

    Entries of a wrong type are ignored: validating the manifest reports them.

    Args:
        path: Manifest file, for messages.
        manifest: Manifest content.

    Raises:
        CheckpointError: The format or a feature is unknown.
    """
    version = manifest.get("format")
    if type(version) is int and not PLAIN_FORMAT <= version <= FEATURES_FORMAT:
        raise CheckpointError(
            f"{path}: checkpoint format {version}, this version of MegaTAPE reads {PLAIN_FORMAT} to {FEATURES_FORMAT}: "
            "use the version that wrote the checkpoint, or a newer one"
        )

    listed = manifest.get("features")
    if not isinstance(listed, list):
        return
    known = list(Feature)
    unknown = [name for name in listed if isinstance(name, str) and name not in known]
    if unknown:
        raise CheckpointError(
            f"{path}: the checkpoint has the feature {', '.join(unknown)}, which this version of MegaTAPE does not know: use "
            "the version that wrote the checkpoint, or a newer one"
        )
