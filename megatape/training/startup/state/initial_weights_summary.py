"""Describes the weights that a run starts from, in a few lines."""

from collections.abc import Iterator
from pathlib import Path

from megatape.checkpoint.initial_weights import InitialWeights
from megatape.config import ModelConfig, differences
from megatape.data.tokenizers.comparison import tokenizer_difference
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
    difference = _difference(tokenizer, weights.directory)
    if difference is not None:
        yield (
            f"warning: the tokenizer of the data ({tokenizer.origin}) differs from the tokenizer of the weights "
            f"({weights.directory}; {difference}): re-tokenize the data with the model's tokenizer, unless you retrain the "
            "embeddings"
        )


def _difference(tokenizer: Tokenizer, directory: Path) -> str | None:
    """Return how a tokenizer differs from that of a folder, or None if the folder has none that can be read."""
    try:
        theirs = load_tokenizer(directory)
    except (UserError, OSError):
        return None
    return tokenizer_difference(tokenizer, theirs)
