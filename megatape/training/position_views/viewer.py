"""Computes the position view of a text."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.distributed as dist

from megatape.data.training.batches.batch import Batch
from megatape.distributed.layout import local_tokens
from megatape.model.recorded_streams import local_state, recorded_streams
from megatape.training.position_views.view import MAX_TOKENS, PositionView
from megatape.utils.values.rounding import divide_up
from megatape.zero.engine import Engine
from megatape.zero.passes.recorded_passes import Inputs
from megatape.zero.state.kinds import WEIGHT


class PositionViewer:
    """Computes position views while training.

    Args:
        engine: Model under DeepSpeed.
        decode: Returns the text of token ids.
    """

    def __init__(self, engine: Engine, decode: Callable[[list[int]], str]) -> None:
        self._engine = engine
        self._decode = decode

    def view(self, sample: Batch) -> PositionView | None:
        """Return the view of a sample on the main rank, or None on the others. Collective."""
        return compute_position_view(self._engine, sample.inputs_on(self._engine.device), self._decode)


@torch.no_grad()
def compute_position_view(engine: Engine, text: Inputs, decode: Callable[[list[int]], str]) -> PositionView | None:
    """Compute the position view of a text. Collective.

    Args:
        engine: Model under DeepSpeed.
        text: One sample, the same on all ranks.
        decode: Returns the text of token ids.

    Returns:
        The view on the main rank, or None on the others.
    """
    module = engine.deepspeed_engine.module
    axis = engine.mesh["sample"]
    ids = text["tokens"]
    assert ids is not None and ids.shape[0] == 1
    states = _record_states(engine, text)

    index = torch.arange(ids.shape[1], device=engine.device)
    stride = divide_up(ids.shape[1], MAX_TOKENS)
    places = index[::stride]
    local_index = local_tokens(module.local(index[None]), module.layout.tensor_axis)[0]
    is_selected = local_index % stride == 0
    selected = torch.zeros(len(states), len(places), *states[0].shape[2:], device=engine.device)
    for layer, e in enumerate(states):
        selected[layer, local_index[is_selected] // stride] = e[0, is_selected]
    squares = torch.stack([e.square().mean() for e in states]) / axis.size
    if axis.size > 1:
        dist.all_reduce(selected, group=axis.group)
        dist.all_reduce(squares, group=axis.group)

    gains = _gather_gains(engine)
    if not engine.topology.is_main:
        return None
    # A plane is two numbers of e: its mean squared modulus is twice the mean square of e.
    products = 2 * selected.flatten(2) @ selected.flatten(2).mT / selected[0, 0].numel()
    limit = torch.finfo(torch.float16).max
    return PositionView(
        tokens=[decode([token]) for token in ids[0, places].tolist()],
        places=places.to(torch.int32).numpy(force=True),
        products=products.clamp(-limit, limit).half().numpy(force=True),
        norms=(2 * squares).sqrt().numpy(force=True),
        gains=_stack_gains(gains, num_rows=len(states) - 1),
    )


def _record_states(engine: Engine, text: Inputs) -> list[torch.Tensor]:
    """Run the model, and return the position tensor e [1, N, ...] of this rank's N tokens as read by each layer. Collective."""
    module = engine.deepspeed_engine.module
    engine.deepspeed_engine.eval()
    first: list[torch.Tensor | None] = []
    hook = module.blocks[0].register_forward_pre_hook(lambda _, args: first.append(local_state(module, args[0].state)))
    with hook, recorded_streams(module) as streams:
        engine.deepspeed_engine(**text)
    # Nothing reads the last layer's update.
    updated = [e for _, e in streams[:-1]]
    return [e for e in [*first, *updated] if e is not None]


def _gather_gains(engine: Engine) -> dict[int, np.ndarray]:
    """Gather layer -> gains of attention's update on the main rank; {} on other ranks. Collective."""
    gains = {}
    for name in engine.state.parameters:
        # Names look like blocks.LAYER.position.gain.
        if not name.endswith(".position.gain"):
            continue
        gain = engine.state.gather(name, WEIGHT, 0)
        if gain is not None:
            layer = int(name.split(".")[1])
            gains[layer] = gain.flatten().numpy(force=True)
    return gains


def _stack_gains(gains: Mapping[int, np.ndarray], num_rows: int) -> np.ndarray:
    """Return the gains as a matrix [num_rows, K], with zeros for layers without gains."""
    empty = np.zeros(0, np.float32)
    zeros = np.zeros_like(next(iter(gains.values()), empty))
    # The first row gives a matrix without rows its width and type, and is dropped.
    rows = [zeros]
    for layer in range(num_rows):
        rows.append(gains.get(layer, zeros))
    return np.stack(rows)[1:]
