"""Perplexity on the validation split, for studies measuring their runs."""

from pathlib import Path
from statistics import fmean

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.data.training.selection import NEW_SELECTION, Selection, select_samples
from megatape.lab.perplexity import perplexity
from megatape.lab.tasks.engine.model import EvaluationModel
from megatape.lab.tasks.perplexity.losses import window_losses
from megatape.lab.tasks.perplexity.windows import Window, batched, cut_windows

# Maximum text length in tokens.
MAX_TOKENS = 2**15


def evaluate_perplexity(
    model: EvaluationModel, data: Path, length: int, longest: int, selection: Selection = NEW_SELECTION
) -> float:
    """Compute the perplexity on the validation split, in disjoint windows.

    Every length has the same text: up to 32,768 tokens, packed as in training into sequences of `longest` tokens. Every window
    starts without context.

    Args:
        model: Model to evaluate.
        data: Data directory.
        length: Window length in tokens.
        longest: Sequence length in tokens, a multiple of `length`.
        selection: Rule for selecting sequences from the split.

    Returns:
        Exponential of the mean loss per token (nats).

    Raises:
        UserError: The split is shorter than `longest`.
    """
    means = []
    for batch in batched(validation_windows(data, length, longest, selection)):
        for losses in window_losses(model, batch):
            means.append(float(losses.mean()))
    return perplexity(fmean(means))


def validation_windows(data: Path, length: int, longest: int, selection: Selection) -> list[Window]:
    """Cut sequences of the validation split into disjoint windows. Arguments and errors as in `evaluate_perplexity`."""
    dataset = TokenDataset(StoredSplit(data, "validation"), longest)
    num_sequences = max(1, MAX_TOKENS // longest)
    windows: list[Window] = []
    for sequence in select_samples(dataset.num_samples, num_sequences, selection):
        windows += cut_windows(dataset.tokens(sequence), "disjoint", length, longest)
    return windows
