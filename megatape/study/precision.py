"""How far bfloat16 drifts from float32, with what layers add to the position tensor E in float32 or in bfloat16."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from megatape.config import ModelConfig
from megatape.model.encodings.tape import TapeUpdate
from megatape.model.record import recorded_streams
from megatape.model.transformer import Transformer
from megatape.study.models import PAPER_SHAPE, unsettled_model
from megatape.tables import markdown

NUM_TOKENS = 256


@dataclass(frozen=True)
class Drift:
    """Distance of a bfloat16 forward pass from the float32 one with the same weights.

    delta_dtype  precision of what layers add to E in the bfloat16 pass
    norm         relative difference of the norm of E, after each layer
    state        norm of the difference of E over the norm of E, after each layer
    logits       the same for the logits
    """

    delta_dtype: torch.dtype
    norm: list[float]
    state: list[float]
    logits: float


def report(num_layers: int) -> Iterator[str]:
    """Yields a table by layer, and the drift of the logits."""
    found = drift(num_layers)
    yield f"bfloat16 against float32, {num_layers} layers of the 155M shape: relative difference after each layer"
    header = [f"{part}, added in {str(one.delta_dtype)[6:]}" for one in found for part in ("norm of E", "E")]
    yield markdown(
        ["layer", *header],
        (
            [str(layer), *(f"{value:.1e}" for one in found for value in (one.norm[layer], one.state[layer]))]
            for layer in range(num_layers)
        ),
    )
    yield "logits: " + ", ".join(f"{one.logits:.2e} added in {str(one.delta_dtype)[6:]}" for one in found)


@torch.no_grad()
def drift(num_layers: int, seed: int = 0) -> list[Drift]:
    """Drift of bfloat16 compute at the 155M shape, for both precisions of what is added to E."""
    config = ModelConfig.model_validate(PAPER_SHAPE | {"num_layers": num_layers, "max_positions": NUM_TOKENS})
    generator = torch.Generator().manual_seed(seed)
    model = unsettled_model(config, seed, generator)
    tokens = torch.randint(0, config.vocab_size, (1, NUM_TOKENS), generator=generator)
    # Round the weights for the float32 reference too: the study measures compute, not the rounding of weights.
    model.bfloat16().float()
    logits, states = _run(model, tokens, torch.float32)
    model.bfloat16()
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        other_logits, other_states = _run(model, tokens, dtype)
        pairs = list(zip(other_states, states, strict=True))
        found.append(
            Drift(
                dtype,
                [abs(float(ours.norm() / theirs.norm()) - 1) for ours, theirs in pairs],
                [_distance(ours, theirs) for ours, theirs in pairs],
                _distance(other_logits, logits),
            )
        )
    return found


def _run(model: Transformer, tokens: Tensor, delta_dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    for module in model.modules():
        if isinstance(module, TapeUpdate):
            module.delta_dtype = delta_dtype
    with recorded_streams(model) as streams:
        logits = model(tokens, torch.arange(tokens.shape[1])[None])
    return logits.float(), [e.float() for _, e in streams if e is not None]


def _distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())
