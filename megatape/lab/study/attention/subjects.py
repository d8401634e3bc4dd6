"""Models that a study examines, each with its text, and their attention probabilities.

Models come from checkpoints. Probabilities are recomputed from the inputs of each layer, because the model does not return
them. Shapes as in model/transformer.py, on one rank.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from megatape.attention.backends.sdpa import visible
from megatape.attention.rotation import PositionState, rotate_qk
from megatape.checkpoint.reader import CheckpointReader, verified_checkpoint
from megatape.data.training.dataset import TokenDataset
from megatape.encodings.encoding import Encoding
from megatape.errors import UserError
from megatape.hf.weights.checkpoint_weights import load_model
from megatape.model.block import Attention
from megatape.model.transformer import Transformer
from megatape.nn.gathered_input import begin_gather
from megatape.utils.files import real_paths


@dataclass(frozen=True)
class Subject:
    """A float32 model on the CPU, and sequences for it.

    Attributes:
        label: Encoding of the model, with the checkpoint if several models have that encoding.
        source: Description of the checkpoint and the text.
        model: The model.
        tokens: Sequences [S, N]. Each starts with the token `bos`.
        bos: Id of the token that begins a text.
    """

    label: str
    source: str
    model: Transformer
    tokens: Tensor
    bos: int

    def positions(self, length: int) -> Tensor:
        """Return position ids [1, length] as in evaluation."""
        evaluated = self.model.encoding.positions(random_offset=False).evaluation(length, 0)
        return torch.as_tensor(evaluated)[None]


def load_subjects(checkpoints: Sequence[Path], data: Path | None, samples: int, length: int | None) -> list[Subject]:
    """Load a model from each checkpoint, with text.

    Args:
        checkpoints: Folders of checkpoints.
        data: Data directory. None for the data of each checkpoint's run.
        samples: Number of sequences.
        length: Tokens of a sequence. None for data.sequence_length of each run.

    Raises:
        UserError: A checkpoint is listed twice, or a checkpoint or the data is invalid.
        FileNotFoundError: A checkpoint or the data is missing.
    """
    readers = [verified_checkpoint(folder) for folder in real_paths(checkpoints)]
    encodings = [checkpoint.config.model.encoding for checkpoint in readers]
    subjects = []
    for checkpoint, encoding in zip(readers, encodings, strict=True):
        label = encoding
        if encodings.count(encoding) > 1:
            label = f"{encoding} {checkpoint.directory}"
        run_data = checkpoint.config.data
        directory = data or run_data.directory
        tokens, bos = _text(checkpoint, directory, samples, length or run_data.sequence_length)
        source = f"{label}: {checkpoint.directory}, {checkpoint.tokens:,} tokens of training; validation text of {directory}"
        subjects.append(Subject(label, source, load_model(checkpoint), tokens, bos))
    return subjects


def _text(checkpoint: CheckpointReader, directory: Path, samples: int, length: int) -> tuple[Tensor, int]:
    """Return the first samples of the validation split, and the token that begins each.

    Returns:
        Token ids [S, N], and the id of <s>, or of </s> if the tokenizer has no <s>.
    """
    dataset = TokenDataset(directory, "validation", length)
    tokenizer = checkpoint.tokenizer()
    if tokenizer.sha256 != dataset.tokenizer_hash:
        raise UserError(f"{directory} and {checkpoint.directory} have different tokenizers: choose other data with `data`")
    if dataset.num_samples < samples:
        raise UserError(
            f"samples is {samples}, but {directory} has {dataset.num_samples} validation samples of {length} tokens: lower it"
        )
    sequences = [dataset.tokens(index)[:length] for index in range(samples)]
    tokens = torch.from_numpy(np.stack(sequences))
    # The same token precedes a text in training.
    begin = tokenizer.bos_id
    if begin is None:
        begin = tokenizer.eos_id
    tokens[:, 0] = begin
    return tokens, begin


@dataclass(frozen=True)
class LayerInputs:
    """Inputs of a layer's attention.

    Attributes:
        attention: Attention of the layer.
        encoding: Encoding of the model.
        h: Normalized hidden states [B, N, D].
        positions: Position state.
    """

    attention: Attention
    encoding: Encoding
    h: Tensor
    positions: PositionState

    @property
    def e(self) -> Tensor | None:
        """The state, [B, N, L, W] if blocks move it."""
        if not self.encoding.carries_state:
            return self.positions.initial
        return self.positions.tensor(self.encoding.config.num_kv_heads)


@torch.no_grad()
def run(model: Transformer, tokens: Tensor, positions: Tensor) -> tuple[Tensor, list[LayerInputs]]:
    """Run a model, and record the inputs of attention in every layer.

    Args:
        model: The model.
        tokens: Token ids [B, N].
        positions: Position ids [B, N].

    Returns:
        Logits [B, N, V], and the inputs of each layer.
    """
    layers: list[LayerInputs] = []

    def record(module: nn.Module, inputs: tuple[Tensor, PositionState, Tensor | None]) -> None:
        assert isinstance(module, Attention)
        h, positions, *_ = inputs
        layers.append(LayerInputs(module, model.encoding, h, positions))

    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    hooks = [attention.register_forward_pre_hook(record) for attention in attentions]
    try:
        logits = model(tokens, positions)
    finally:
        for hook in hooks:
            hook.remove()
    return logits, layers


@torch.no_grad()
def probabilities(layer: LayerInputs) -> Tensor:
    """Return attention probabilities [B, H, N, N], queries by keys, in float32, from all N x N scores at once."""
    attention = layer.attention
    h = layer.h
    length = h.shape[1]
    gathered = begin_gather(h, attention.tensor_axis)
    q, k, _ = attention.heads(gathered)
    features = attention.features(gathered, q, k)
    q, k, bias = attention.encode(q, k, features, layer.positions.initial, None)
    if attention.encoding.has_position_tensor:
        q, k = rotate_qk(q, k, layer.positions)
    groups = q.shape[2] // k.shape[2]
    everything = slice(0, length)
    keys = k.transpose(1, 2).repeat_interleave(groups, 1).mT
    scores = q.transpose(1, 2).float() @ keys.float() / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias.block(bias.weights, everything, everything)
    one_document = torch.zeros(1, length, dtype=torch.long, device=h.device)
    hidden = ~visible(one_document)[:, None]
    return scores.masked_fill(hidden, -math.inf).softmax(-1)


def dot_products(layer: LayerInputs) -> Tensor | None:
    """Return the inner products of the position tensors of all pairs of tokens.

    They are divided by the number of planes. Rotary positions give the mean of cos((n - m) theta_k) over planes, which is 1 on
    the diagonal.

    Returns:
        [B, L, N, N], or [B, 1, N, N] if all channels are equal. None for an encoding without position tensors.
    """
    state = layer.e
    if state is None or not layer.encoding.has_position_tensor:
        return None
    e = state.transpose(1, 2).float()
    planes = e.shape[-1] // 2
    return e @ e.mT / planes
