"""The models that a study examines, each with its text, and what attention does in them.

Models come from checkpoints. Probabilities are recomputed from the inputs of each layer, because the
model does not return them. Shapes as in model/transformer.py, on one rank.
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
from megatape.hf.checkpoint_source import load_model
from megatape.model.block import Attention
from megatape.model.transformer import Transformer
from megatape.utils.files import real_paths


@dataclass(frozen=True)
class Subject:
    """A float32 model on the CPU, and sequences for it.

    Attributes:
        label: Its encoding, with the checkpoint if several models have that encoding.
        source: Description of its origin.
        model: The model.
        tokens: Sequences [S, N]; each starts with the token `bos`.
        bos: Id of the token that begins a text.
    """

    label: str
    source: str
    model: Transformer
    tokens: Tensor
    bos: int

    def positions(self, length: int) -> Tensor:
        """Position ids [1, length] as in evaluation."""
        return torch.as_tensor(self.model.encoding.positions(random_offset=False).evaluation(length, 0))[None]


def load_subjects(checkpoints: Sequence[Path], data: Path | None, samples: int, length: int | None) -> list[Subject]:
    """One model per checkpoint, with text of the data.

    Args:
        checkpoints: Folders of checkpoints.
        data: Data directory; None: that of each checkpoint's run.
        samples: Number of sequences.
        length: Tokens of a sequence; None: data.sequence_length of each run.

    Raises:
        UserError, FileNotFoundError: A checkpoint is listed twice, or a checkpoint or the data is missing or invalid.
    """
    readers = [verified_checkpoint(folder) for folder in real_paths(checkpoints)]
    names = [checkpoint.config.model.encoding for checkpoint in readers]
    subjects = []
    for checkpoint, name in zip(readers, names, strict=True):
        label = name if names.count(name) == 1 else f"{name} {checkpoint.directory}"
        directory = data or checkpoint.config.data.directory
        tokens, bos = _text(checkpoint, directory, samples, length or checkpoint.config.data.sequence_length)
        source = f"{label}: {checkpoint.directory}, {checkpoint.tokens:,} tokens of training; validation text of {directory}"
        subjects.append(Subject(label, source, load_model(checkpoint), tokens, bos))
    return subjects


def _text(checkpoint: CheckpointReader, directory: Path, samples: int, length: int) -> tuple[Tensor, int]:
    """The first samples of the validation split [S, N], each starting with <s>, or with </s> without one, and its id."""
    dataset = TokenDataset(directory, "validation", length)
    tokenizer = checkpoint.tokenizer()
    if tokenizer.sha256 != dataset.tokenizer_hash:
        raise UserError(f"{directory} and {checkpoint.directory} have different tokenizers: choose other data with `data`")
    if dataset.num_samples < samples:
        raise UserError(
            f"samples is {samples}, but {directory} has {dataset.num_samples} validation samples of {length} tokens: lower it"
        )
    tokens = torch.from_numpy(np.stack([dataset.tokens(index)[:length] for index in range(samples)]))
    begin = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id  # what precedes a text in training
    tokens[:, 0] = begin
    return tokens, begin


@dataclass(frozen=True)
class LayerInputs:
    """Inputs of a layer's attention: normalized hidden states h [B, N, D], and the position state of the model's encoding."""

    attention: Attention
    encoding: Encoding
    h: Tensor
    positions: PositionState

    @property
    def e(self) -> Tensor | None:
        """The state, [B, N, L, W] if blocks move it."""
        carried = self.encoding.carries_state
        channels = self.encoding.config.num_kv_heads
        return self.positions.tensor(channels) if carried else self.positions.initial


@torch.no_grad()
def run(model: Transformer, tokens: Tensor, positions: Tensor) -> tuple[Tensor, list[LayerInputs]]:
    """Logits [B, N, V] of tokens and positions [B, N], and the inputs of attention in every layer."""
    layers: list[LayerInputs] = []

    def note(module: nn.Module, inputs: tuple[Tensor, PositionState, Tensor | None, bool]) -> None:
        assert isinstance(module, Attention)
        layers.append(LayerInputs(module, model.encoding, *inputs[:2]))

    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    hooks = [attention.register_forward_pre_hook(note) for attention in attentions]
    try:
        logits = model(tokens, positions)
    finally:
        for hook in hooks:
            hook.remove()
    return logits, layers


@torch.no_grad()
def probabilities(layer: LayerInputs) -> Tensor:
    """Attention probabilities [B, H, N, N], queries by keys, in float32, from all N x N scores at once."""
    attention = layer.attention
    h = layer.h
    q, k, _ = attention.heads(h)
    features = () if attention.token_features is None else attention.token_features(h, q, k)
    q, k, bias = attention.encode(q, k, features, layer.positions.initial, None)
    if attention.encoding.has_position_tensor:
        q, k = rotate_qk(q, k, layer.positions)
    groups = q.shape[2] // k.shape[2]
    everything = slice(0, h.shape[1])
    keys = k.transpose(1, 2).repeat_interleave(groups, 1).mT
    scores = q.transpose(1, 2).float() @ keys.float() / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias.block(bias.weights, everything, everything)
    seen = visible(torch.zeros(1, h.shape[1], dtype=torch.long, device=h.device))[:, None]
    return scores.masked_fill(~seen, -math.inf).softmax(-1)


def dot_products(layer: LayerInputs) -> Tensor | None:
    """Inner products of the position tensors of all pairs of tokens, [B, L, N, N], or [B, 1, N, N] if all channels are equal.

    They are divided by the number of planes, so that rotary positions give the mean of cos((n - m) theta_k) over planes,
    1 on the diagonal. None for an encoding without position tensors.
    """
    if layer.e is None or not layer.encoding.has_position_tensor:
        return None
    e = layer.e.transpose(1, 2).float()
    planes = e.shape[-1] // 2
    return e @ e.mT / planes
