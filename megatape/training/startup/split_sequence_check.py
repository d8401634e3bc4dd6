"""Checks that a user's encoding computes sequences split across ranks like whole ones.

Its registry entry may claim by mistake that it supports sequence- or context-parallel ranks. A sum along the sequence would
then start again on each rank, and training would go on with other losses, without an error.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from megatape.config import DataConfig, ModelConfig
from megatape.distributed.exchange import gather_values
from megatape.distributed.mesh import SINGLE, Axis, Mesh
from megatape.distributed.topology import Topology
from megatape.errors import UserError
from megatape.model.build import build_model
from megatape.model.transformer import Transformer
from megatape.nn.parameters import Uniform, spec_of
from megatape.registry import ENCODINGS

# Attention backend that supports every encoding on every device
BACKENDS = ("blocked",)

# Maximum relative difference: rounding errors of float32 are far smaller, and those of a wrong claim far larger.
TOLERANCE = 0.01

# Standard deviation of random weights around their initial values
SPREAD = 0.1

# Sizes of the tiny model and its samples
VOCAB_SIZE = 64
MAX_CHUNK_TOKENS = 8

# Errors raised when shapes do not fit
FAULTS = (RuntimeError, ValueError, IndexError, TypeError)

# Mesh axis -> setting, and claim of a registry entry (argument of EncodingEntry)
CLAIMS = {
    "sequence": ("parallel.sp", "divides_heads=True"),
    "context": ("parallel.cp", 'whole_samples=""'),
}


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
                f"tiny model that ranks divide as in this run, {failure}. Set {setting} to 1 and remove the claim, or correct "
                "the encoding (docs/own_encodings.md)"
            )


def _find_difference(model: ModelConfig, data: DataConfig, axis: Axis, topology: Topology, device: torch.device) -> str | None:
    """Return how a tiny model's results differ when this axis splits its sequences, or None. Collective."""
    model_config = _tiny(model, axis.size)
    inputs = _inputs(data, axis, device)
    num_tokens = inputs[0].shape[1]
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(1, num_tokens, VOCAB_SIZE, generator=generator).to(device)

    whole = build_model(model_config, backends=BACKENDS).to(device)
    _randomize(whole)
    logits, expected_gradients = _run(whole, inputs, weight)

    sequence = axis if axis.name == "sequence" else SINGLE
    context = axis if axis.name == "context" else SINGLE
    split = build_model(model_config, sequence_axis=sequence, context_axis=context, backends=BACKENDS).to(device)
    split.load_state_dict(whole.state_dict())
    local_result = _run_split(split, inputs, split.local(weight), split.local(logits))

    results = gather_values(local_result, topology)
    for failure, _ in results:
        if failure is not None:
            return failure
    sums_by_rank = [sums for _, sums in results]
    if _gradients_differ(expected_gradients, sums_by_rank, topology.world_size // axis.size):
        return "its gradients differ"
    return None


def _run_split(
    split: Transformer, inputs: tuple[Tensor, Tensor, Tensor | None], weight: Tensor, expected_logits: Tensor
) -> tuple[str | None, list[float]]:
    """Run a model on sequences split across ranks.

    Args:
        split: Model that splits sequences.
        inputs: Model inputs, whole samples.
        weight: Turns this rank's logits into a loss.
        expected_logits: Correct logits of this rank's tokens.

    Returns:
        How this rank's logits differ from the expected ones, or None; and `_signed_sums` of its gradients, none if it fails.
    """
    try:
        logits, gradients = _run(split, inputs, weight)
    except FAULTS as error:
        text = f"{type(error).__name__}: {error}"
        return f"the encoding fails ({text.splitlines()[0]})", []
    failure = None
    difference = float((logits - expected_logits).norm() / expected_logits.norm())
    # Not "difference > ...": it may be NaN.
    if not difference <= TOLERANCE:
        failure = f"its outputs are off by {difference:.0%}"
    return failure, _signed_sums(gradients)


def _gradients_differ(expected_gradients: list[Tensor], sums_by_rank: Sequence[list[float]], num_copies: int) -> bool:
    """Whether a parameter's gradient, summed over ranks, differs from that of one rank.

    Args:
        expected_gradients: One rank's gradients, by parameter.
        sums_by_rank: `_signed_sums` of each rank.
        num_copies: Groups of ranks that compute the same.
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
            "nope_every": None,
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


def _inputs(data: DataConfig, axis: Axis, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return random tokens, their position ids, and document starts if the run masks documents."""
    num_chunks = axis.size
    if axis.name == "context":
        num_chunks = 2 * axis.size
    length = num_chunks * min(MAX_CHUNK_TOKENS, data.sequence_length // num_chunks)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCAB_SIZE, (1, length), generator=generator).to(device)
    positions = torch.arange(length, device=device)[None]
    if not data.mask_documents:
        return tokens, positions, None
    # A border within a chunk
    border = length // 3
    document_starts = torch.where(positions < border, 0, border)
    return tokens, positions - document_starts, document_starts


def _run(model: Transformer, inputs: tuple[Tensor, Tensor, Tensor | None], weight: Tensor) -> tuple[Tensor, list[Tensor]]:
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
