"""What a model costs: parameters, floating-point operations, bytes saved for the backward pass.

All of it is counted on shapes (meta or fake tensors), so a model of any size takes no memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from megatape.attention.shifted import num_pairs
from megatape.config import ActivationCheckpointing, ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.encodings import encoding_of
from megatape.encodings.encoding import positioned_layers
from megatape.model.build import build_model
from megatape.model.lora import in_adapter
from megatape.model.trainable import freeze, position_parameters
from megatape.model.transformer import Transformer


def meta_model(config: ModelConfig, activation_checkpointing: ActivationCheckpointing = "none") -> Transformer:
    """The model on the meta device: shapes without memory."""
    with torch.device("meta"):
        return build_model(config, activation_checkpointing=activation_checkpointing)


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters: all of them, those of embedding and head, those of the position encoding."""

    total: int
    embedding: int
    position: int


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Count the parameters of a model on its shapes."""
    model = meta_model(config)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    embedding = sum(size for name, size in sizes.items() if name.startswith(("embedding.", "head.")))
    return ParameterCount(sum(sizes.values()), embedding, sum(sizes[name] for name in position_parameters(model)))


def count_trainable(config: ModelConfig, trainable: Sequence[str], frozen: Sequence[str]) -> int:
    """Number of weights that `freeze` leaves trainable, counted on shapes."""
    model = meta_model(config)
    freeze(model, trainable, frozen)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def forward_flops(config: ModelConfig, length: int, num_shifted_groups: int | None = None) -> int:
    """Floating-point operations of the matrix products in the forward pass of one sequence, two per multiply-add.

    By the convention of the paper's table and of torch's counter, attention counts all N x N
    scores, though half of them are masked, and with shifted sparse attention all scores within groups.
    A bias counts once for the whole batch. The position update of the last layer that has positions is
    not computed, so it is not counted.
    """
    c = config.hidden_size
    heads = config.num_heads
    channels = config.num_kv_heads
    size = config.head_dim
    encoding = encoding_of(config)
    with torch.device("meta"):
        bias = encoding.bias(SINGLE)
        update = encoding.update(SINGLE)
        start = encoding.start(SINGLE)
        features = encoding.token_features(SINGLE), encoding.sequence_features(SINGLE)
    projections = 2 * c * heads * size + 2 * c * channels * size
    positioned = len(positioned_layers(config))
    total = config.num_layers * (projections + 3 * c * config.mlp_size) + c * config.vocab_size
    total += positioned * (length * bias.pair_multiply_adds if bias else 0)
    total += positioned * sum(part.multiply_adds for part in (*features, bias) if part is not None)
    if update:
        total += (positioned - 1) * update.multiply_adds
    if start:
        total += start.multiply_adds
    if config.lora is not None:  # one multiply-add for each parameter and token
        total += sum(parameter.numel() for name, parameter in meta_model(config).named_parameters() if in_adapter(name))
    return 2 * length * total + attention_flops(config, length, num_shifted_groups)


def attention_flops(config: ModelConfig, length: int, num_shifted_groups: int | None = None) -> int:
    """Those of `forward_flops` that attention itself takes: scores, A v and, where it moves the state, A e."""
    encoding = encoding_of(config)
    pairs = length**2 if num_shifted_groups is None else num_pairs(length, num_shifted_groups)
    positioned = len(positioned_layers(config))
    state = (positioned - 1) * encoding.state_width if encoding.moves_state else 0
    widths = positioned * encoding.qk_width + (config.num_layers - positioned) * config.head_dim
    return 2 * pairs * config.num_heads * (2 * widths + state)


def cache_bytes(config: ModelConfig, element_bytes: int) -> int:
    """Bytes by which one more token lengthens an exported model's cache: keys, values, the state and features, in all layers.

    What has one size for any number of tokens, the carry of sums and convolutions, is not in it.
    """
    encoding = encoding_of(config)
    channels = config.num_kv_heads
    size = config.head_dim
    of_tokens = encoding.token_features(SINGLE)
    of_sequence = encoding.sequence_features(SINGLE)
    bias = encoding.bias(SINGLE)
    features: tuple[Tensor, ...] = ()
    with torch.no_grad():  # of one token, on a CPU: meta tensors would import the compiler
        if of_tokens is not None:
            h = torch.empty(1, 1, config.hidden_size)
            q = torch.empty(1, 1, config.num_heads, size)
            features = of_tokens(h, q, q[:, :, :channels])
        if of_sequence is not None:
            features, _ = of_sequence(features, None, ())
    num_transient = len(features) if bias is None else bias.num_transient
    positioned = len(positioned_layers(config))
    state = (positioned - 1) * encoding.state_width if encoding.moves_state else 0
    widths = (config.num_layers - positioned) * size + config.num_layers * size + state
    held = sum(feature.nbytes for feature in features[num_transient:])
    key_bytes = torch.float32.itemsize if bias is not None and bias.rewrites_keys else element_bytes
    return channels * (widths * element_bytes + positioned * encoding.qk_width * key_bytes) + positioned * held


def saved_bytes(model: Transformer, batch_size: int, length: int, masked: bool = False) -> int:
    """Bytes of activations that autograd keeps between forward and backward pass of one micro-batch, weights excluded.

    masked: with document masks. Runs the forward pass on the model's device. Under FakeTensorMode
    that costs neither memory nor time, and attention runs as on a CPU.
    """
    device = next(model.parameters()).device
    tokens = torch.zeros(batch_size, length, dtype=torch.long, device=device)
    positions = torch.arange(length, device=device).expand(batch_size, -1)
    with record_saved(exclude=list(model.parameters())) as saved:
        starts = tokens if masked else None
        loss = model(tokens, positions, document_starts=starts, targets=tokens, dropout_seeds=tokens[:, 0])
    del loss
    return saved.bytes


@dataclass
class Saved:
    """The distinct storages that autograd saved, by identity."""

    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


@contextmanager
def record_saved(exclude: list[Tensor]) -> Iterator[Saved]:
    """Record every storage that autograd saves inside the block once, except those of `exclude`."""
    saved = Saved()
    skipped = {tensor.untyped_storage()._cdata for tensor in exclude}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in skipped:
            saved.storages[storage._cdata] = storage
        return tensor.detach()  # an output itself would hold its own node, which holds the output: never freed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved
