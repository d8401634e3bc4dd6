"""Describes the weights that a run starts from, in a few lines."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from megatape.checkpoint.initial_weights import InitialWeights
from megatape.config import ModelConfig, differences
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from megatape.utils.text.units import plural


def summarize_initial_weights(
    weights: InitialWeights, model: ModelConfig, num_fresh: int, tokenizer: Tokenizer
) -> Iterator[str]:
    """Yield lines about the weights that a run starts from.

    Args:
        weights: Weights to start from.
        model: Model configuration.
        num_fresh: Number of parameters missing in the weights.
        tokenizer: Tokenizer of the data.
    """
    yield f"starting from the weights in {weights.directory}"
    for change in differences(weights.model, model):
        yield f"  model.{change.path}: {change.theirs} -> {change.ours}"
    if num_fresh:
        verb = "start"
        if num_fresh == 1:
            verb = "starts"
        yield f"  {plural(num_fresh, 'tensor')} that the checkpoint lacks {verb} as in a new model"
    if _has_other_tokenizer(weights.directory, tokenizer):
        yield (
            f"warning: the tokenizer of the data ({tokenizer.origin}) encodes text differently from the tokenizer of the "
            f"weights ({weights.directory}): re-tokenize the data with the model's tokenizer, unless you retrain the embeddings"
        )


def _has_other_tokenizer(directory: Path, tokenizer: Tokenizer) -> bool:
    """Whether the folder has a tokenizer that encodes a text differently."""
    try:
        theirs = load_tokenizer(directory)
    except (UserError, OSError):
        return False
    text = Path(__file__).read_text(encoding="utf-8")
    (ids,) = tokenizer.encode_documents([text])
    (expected,) = theirs.encode_documents([text])
    return not np.array_equal(ids, expected)
