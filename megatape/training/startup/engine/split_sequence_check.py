"""Checks that a user's encoding computes sequences split across ranks like whole ones.

Its registry entry may claim by mistake that it supports sequence- or context-parallel ranks. A sum along the sequence would
then start again on each rank, and training would continue with other losses, without an error.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megatape.config import DataConfig, ModelConfig
from megatape.distributed.mesh import SINGLE, Axis, Mesh
from megatape.distributed.topology import Topology
from megatape.distributed.values.exchange import gather_values
from megatape.errors import UserError
from megatape.model.build import build_model
from megatape.model.layout import Layout
from megatape.model.options import Kernels
from megatape.model.transformer import Transformer
from megatape.nn.parameters import Uniform, spec_of
from megatape.registry import ENCODINGS

# Attention backend that supports every encoding on every device.
KERNELS = Kernels(backends=("blocked",))

# Maximum relative difference: rounding errors of float32 are far smaller, and those of a wrong claim far larger.
TOLERANCE = 0.01

# Standard deviation of random weights around their initial values.
SPREAD = 0.1

# Sizes of the tiny model and its samples.
VOCAB_SIZE = 64
MAX_CHUNK_TOKENS = 8

# Errors raised when shapes do not fit.
SHAPE_ERRORS = (RuntimeError, ValueError, IndexError, TypeError)

# Mesh axis -> setting, and claim in the registry entry (argument of EncodingEntry).
CLAIMS = {
    "sequence": ("parallel.sp", "divides_heads=True"),
    "context": ("parallel.cp", 'whole_samples=""'),
}


class ModelInputs(NamedTuple):
    """Inputs of the tiny model.

    Attributes:
        tokens: Token ids [1, N].
        position_ids: Position ids [1, N].
        document_starts: First token of each token's document [1, N], or None.
    """

    tokens: Tensor
    position_ids: Tensor
    document_starts: Tensor | None


class SplitResult(NamedTuple):
    """Result of a model that splits sequences.

    Attributes:
        failure: Description of the failure or of the difference between logits, or None.
        gradients: Gradients by parameter, empty if it fails.
    """

    failure: str | None
    gradients: list[Tensor]


def check_split_sequences(model: ModelConfig, data: DataConfig, mesh: Mesh, topology: Topology, device: torch.device) -> None:
    """Check that an encoding supports the axes that split sequences, as its registry entry claims. Collective.

    All ranks compute a tiny model with the encoding on whole and on split sequences. Built-in encodings are skipped, because
    our tests check them.

    Args:
        model: Model configuration.
        data: Data configuration.
        mesh: Mesh of the ranks.
        topology: All ranks.
        device: Device to run on.

    Raises:
        UserError: Outputs or gradients differ from those of one rank. Raised on all ranks.
    """
    name = model.encoding
    if ENCODINGS[name].is_built_in:
        return
    for axis_name, (setting, claim) in CLAIMS.items():
        axis = mesh[axis_name]
        if axis.size == 1:
            continue
        failure = _find_difference(model, data, axis, topology, device)
        if failure is not None:
            raise UserError(
                f"encoding {name} does not support {setting} {axis.size}, though its registry entry claims it by {claim}: on a "
                f"tiny model, with sequences split as in this run, {failure}. Set {setting} to 1 and remove the claim, "
                "or correct the encoding (docs/own_encodings.md)"
            )


def _find_difference(model: ModelConfig, data: DataConfig, axis: Axis, topology: Topology, device: torch.device) -> str | None:
    """Return how a tiny model's results differ when this axis splits its sequences, or None. Collective."""
    model_config = _tiny(model, axis.size)
    inputs = _inputs(data, axis, device)
    num_tokens = inputs.tokens.shape[1]
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(1, num_tokens, VOCAB_SIZE, generator=generator).to(device)

    whole = build_model(model_config, kernels=KERNELS).to(device)
    _randomize(whole)
    logits, expected_gradients = _run(whole, inputs, weight)

    axes = {"sequence": SINGLE, "context": SINGLE} | {axis.name: axis}
    layout = Layout(sequence_axis=axes["sequence"], context_axis=axes["context"])
    split = build_model(model_config, layout, KERNELS).to(device)
    split.load_state_dict(whole.state_dict())
    result = _run_split(split, inputs, split.local(weight), split.local(logits))

    for failure in gather_values(result.failure, topology):
        if failure is not None:
            return failure
    sums_by_rank = gather_values(_signed_sums(result.gradients), topology)
    if _gradients_differ(expected_gradients, sums_by_rank, topology.world_size // axis.size):
        return "its gradients differ"
    return None


def _run_split(split: Transformer, inputs: ModelInputs, weight: Tensor, expected_logits: Tensor) -> SplitResult:
    """Run a model that splits sequences, and compare its logits with the expected ones. `weight` is that of `_run`."""
    try:
        logits, gradients = _run(split, inputs, weight)
    except SHAPE_ERRORS as error:
        text = f"{type(error).__name__}: {error}"
        return SplitResult(f"the encoding fails ({text.splitlines()[0]})", [])
    failure = None
    difference = float((logits - expected_logits).norm() / expected_logits.norm())
    # `not ... <=` also catches NaN.
    if not difference <= TOLERANCE:
        failure = f"its outputs are off by {difference:.0%}"
    return SplitResult(failure, gradients)


def _gradients_differ(expected_gradients: list[Tensor], sums_by_rank: Sequence[list[float]], num_copies: int) -> bool:
    """Whether a parameter's gradient, summed over ranks, differs from that of one rank.

    Args:
        expected_gradients: One rank's gradients, by parameter.
        sums_by_rank: Each rank's `_signed_sums`.
        num_copies: Number of times that the sums contain a gradient, because groups of ranks compute the same.
    """
    expected_sums = _signed_sums(expected_gradients)
    for number, gradient in enumerate(expected_gradients):
        total = sum(sums[number] for sums in sums_by_rank) / num_copies
        difference = abs(total - expected_sums[number])
        if not difference <= TOLERANCE * float(gradient.norm()):
            return True
    return False


def _tiny(model: ModelConfig, num_ranks: int) -> ModelConfig:
    """Return the configuration of a small model with the same encoding, whose heads fit this number of ranks."""
    num_kv_heads = 2 * num_ranks
    groups = min(model.num_heads // model.num_kv_heads, 2)
    return model.model_copy(
        update={
            "num_layers": 2,
            "hidden_size": 16 * num_kv_heads,
            "num_heads": groups * num_kv_heads,
            "num_kv_heads": num_kv_heads,
            "mlp_size": 32,
            "vocab_size": VOCAB_SIZE,
            "position_size": 8,
            "layers": None,
            "nope_every": None,
            "sliding_window": None,
            "attention_scale": None,
            "tie_embeddings": False,
            "lora": None,
        }
    )


def _randomize(model: Transformer) -> None:
    """Draw all weights around their initial values, the same on all ranks, so that each of them matters."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        declared = spec_of(weight)
        middle = 0.0
        if isinstance(declared.init, Uniform):
            middle = declared.init.middle
        elif declared.init is not None:
            middle = declared.init
        values = middle + SPREAD * torch.randn(weight.shape, generator=generator)
        if declared.bounds is not None:
            values.clamp_(*declared.bounds)
        weight.data.copy_(values)


def _inputs(data: DataConfig, axis: Axis, device: torch.device) -> ModelInputs:
    """Return random samples, of two documents if the run masks documents."""
    num_chunks = axis.size
    if axis.name == "context":
        num_chunks = 2 * axis.size
    length = num_chunks * min(MAX_CHUNK_TOKENS, data.sequence_length // num_chunks)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCAB_SIZE, (1, length), generator=generator).to(device)
    index = torch.arange(length, device=device)[None]
    if not data.mask_documents:
        return ModelInputs(tokens, index, None)
    # The second document starts within a chunk.
    second_start = length // 3
    document_starts = torch.where(index < second_start, 0, second_start)
    return ModelInputs(tokens, index - document_starts, document_starts)


def _run(model: Transformer, inputs: ModelInputs, weight: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Run a model forward and backward, with the loss sum(logits * weight). Returns the logits and all gradients."""
    logits = model(*inputs)
    loss = (logits * weight).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    return logits.detach(), list(gradients)


def _signed_sums(gradients: list[Tensor]) -> list[float]:
    """Return the sum of each gradient times random signs.

    These sums are linear in the gradients, so they can be summed over ranks in their place, and they are small to exchange.
    """
    generator = torch.Generator().manual_seed(3)
    sums = []
    for gradient in gradients:
        signs = torch.randint(2, gradient.shape, generator=generator) * 2.0 - 1.0
        sums.append(float((gradient.cpu() * signs).sum()))
    return sums
