"""Models in folders of transformers: architecture and weights."""

from pathlib import Path
from typing import NamedTuple

from megatape.hf.architecture import Architecture, read_architecture
from megatape.hf.weights.folder_weights import FolderWeights, find_weights


class PretrainedModel(NamedTuple):
    """Model in a folder of transformers, of which only config.json and the headers of the weights are read.

    Attributes:
        architecture: Architecture of the model.
        weights: Weights of the model.
    """

    architecture: Architecture
    weights: FolderWeights


def read_pretrained(folder: Path) -> PretrainedModel:
    """Read the architecture of a model, and find its weights.

    Args:
        folder: Folder of the model.

    Raises:
        FileNotFoundError: A file is missing.
        UserError: A setting or a tensor is not supported, or they do not fit each other.
    """
    architecture = read_architecture(folder)
    weights = find_weights(folder, architecture.model, architecture.family)
    return PretrainedModel(architecture, weights)
