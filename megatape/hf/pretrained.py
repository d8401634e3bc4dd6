"""Opens transformers models: architecture and weights."""

from pathlib import Path
from typing import NamedTuple

from megatape.hf.architecture import Architecture, read_architecture
from megatape.hf.weights.folder_weights import FolderWeights, find_weights


class PretrainedModel(NamedTuple):
    """Model in a transformers folder. Weights are read when they are used."""

    architecture: Architecture
    weights: FolderWeights


def read_pretrained(folder: Path) -> PretrainedModel:
    """Read config.json and the headers of the weights in a transformers folder.

    Raises:
        FileNotFoundError: A file is missing.
        UserError: A setting or tensor is not supported, or they contradict each other.
    """
    architecture = read_architecture(folder)
    weights = find_weights(folder, architecture.model, architecture.family)
    return PretrainedModel(architecture, weights)
