"""What is measured on the validation split while training."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist

from megatape.attention.rotation import PositionState
from megatape.model.record import local_state, recorded_streams
from megatape.training.position_view import MAX_TOKENS, PositionView
from megatape.zero.engine import Engine, Inputs
from megatape.zero.state import WEIGHT


@dataclass(frozen=True)
class Validation:
    """Mean loss in nats, and the position view on the main rank: None elsewhere, and for an encoding whose blocks change no
    position tensor. corpora: the loss on each corpus of a mixture, whose mean by the first shares is `loss`."""

    loss: float
    positions: PositionView | None
    corpora: dict[str, float] = field(default_factory=dict)


@torch.no_grad()
def view_positions(engine: Engine, text: Inputs, decode: Callable[[list[int]], str]) -> PositionView | None:
    """The position view of a text, the same sample on all ranks; None but on the main rank. decode: ids to text. Collective."""
    module, axis = engine.deepspeed.module, engine.mesh.tensor
    ids, positions = text["tokens"], text["positions"]
    assert ids is not None and positions is not None and ids.shape[0] == 1
    engine.deepspeed.eval()
    with recorded_streams(module) as streams:
        engine.deepspeed(**text)
    # Input of each layer for this rank's tokens; the last layer's update is never used.
    states = [local_state(module, PositionState(module.encoding.state(positions))), *(e for _, e in streams[:-1])]
    read = [e for e in states if e is not None]

    places = torch.arange(0, ids.shape[1], -(-ids.shape[1] // MAX_TOKENS), device=engine.device)
    here = places - axis.rank * read[0].shape[1]
    own = (here >= 0) & (here < read[0].shape[1])
    picked = torch.zeros(len(read), len(places), *read[0].shape[2:], device=engine.device)
    for layer, e in enumerate(read):
        picked[layer, own] = e[0, here[own]]
    squares = torch.stack([e.square().mean() for e in read]) / axis.size
    for share in (picked, squares):
        dist.all_reduce(share, group=axis.group)

    gathered = [engine.state.gather(name, WEIGHT, 0) for name in engine.state.parameters if name.endswith(".position.gain")]
    if not engine.topology.is_main:
        return None
    gains = [gain.flatten().numpy(force=True) for gain in gathered[:-1] if gain is not None]
    # A plane is two numbers of e: its mean squared modulus is twice the mean square of e.
    products = 2 * picked.flatten(2) @ picked.flatten(2).mT / picked[0, 0].numel()
    limit = torch.finfo(torch.float16).max
    return PositionView(
        tokens=[decode([token]) for token in ids[0, places].tolist()],
        places=places.to(torch.int32).numpy(force=True),
        products=products.clamp(-limit, limit).half().numpy(force=True),
        norms=(2 * squares).sqrt().numpy(force=True),
        gains=np.stack(gains) if gains else np.zeros((len(read) - 1, 0), np.float32),
    )
