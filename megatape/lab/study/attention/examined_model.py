"""Models to examine, loaded from checkpoints, each with its text. Shapes as in model/transformer.py, on one rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from megatape.checkpoint.load.reader import CheckpointReader, verified_checkpoint
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.comparison import tokenizer_difference
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.errors import UserError, flag
from megatape.hf.weights.checkpoint_weights import load_model
from megatape.lab.names import real_paths
from megatape.model.transformer import Transformer


@dataclass(frozen=True)
class ExaminedModel:
    """A float32 model on the CPU, with sequences for it.

    Attributes:
        label: Encoding name, with the checkpoint if several models have that encoding.
        source: Description of checkpoint and text.
        model: Model with the checkpoint's weights.
        tokens: Sequences [S, N]. Each starts with the token `bos`.
        bos: Id of the first token of a text.
    """

    label: str
    source: str
    model: Transformer
    tokens: Tensor
    bos: int

    def positions(self, length: int) -> Tensor:
        """Return the position ids of an evaluation, [1, length]."""
        evaluated = self.model.encoding.positions(random_offset=False).evaluation(length, 0)
        return torch.as_tensor(evaluated)[None]


def load_models(checkpoints: Sequence[Path], data: Path | None, samples: int, length: int | None) -> list[ExaminedModel]:
    """Load a model from each checkpoint, with text.

    Args:
        checkpoints: Checkpoint folders.
        data: Data directory. None for the data of each run.
        samples: Number of sequences.
        length: Tokens per sequence. None for data.sequence_length of each run.

    Raises:
        UserError: A checkpoint is listed twice, or a checkpoint or the data is invalid.
        FileNotFoundError: A checkpoint or the data is missing.
    """
    readers = [verified_checkpoint(folder) for folder in real_paths(checkpoints)]
    encodings = [checkpoint.config.model.encoding for checkpoint in readers]
    models = []
    for checkpoint, encoding in zip(readers, encodings, strict=True):
        label = encoding
        if encodings.count(encoding) > 1:
            label = f"{encoding} {checkpoint.directory}"
        run_data = checkpoint.config.data
        directory = data or run_data.directory
        tokens, bos = _text(checkpoint, directory, samples, length or run_data.sequence_length)
        source = f"{label}: {checkpoint.directory}, {checkpoint.tokens:,} tokens of training; validation text of {directory}"
        models.append(ExaminedModel(label, source, load_model(checkpoint), tokens, bos))
    return models


def _text(checkpoint: CheckpointReader, directory: Path, samples: int, length: int) -> tuple[Tensor, int]:
    """Return the first samples of the validation split as token ids [S, N], and the id of their first token.

    The first token is <s>, or </s> if the tokenizer has no <s>.
    """
    dataset = TokenDataset(StoredSplit(directory, "validation"), length)
    tokenizer = checkpoint.tokenizer()
    difference = tokenizer_difference(dataset.split.tokenizer(), tokenizer)
    if difference is not None:
        raise UserError(
            f"{directory} and {checkpoint.directory} have different tokenizers ({difference}): choose other data with "
            f"{flag('data')}"
        )
    if dataset.num_samples < samples:
        raise UserError(
            f"{flag('samples')} is {samples}, but {directory} has {dataset.num_samples} validation samples of {length} tokens: "
            "lower it"
        )
    sequences = [dataset.tokens(index)[:length] for index in range(samples)]
    tokens = torch.from_numpy(np.stack(sequences))
    # In training, texts are preceded by the same token.
    first = tokenizer.bos_id
    if first is None:
        first = tokenizer.eos_id
    tokens[:, 0] = first
    return tokens, first
