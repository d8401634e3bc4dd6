"""State, work and traffic of an optimizer that updates matrices whole (zero/matrices.py), in one step."""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from math import prod

from torch import nn

from megatape.accounting.trace import run_weights
from megatape.config import Config
from megatape.nn.parameters import settings
from megatape.optim.optimizer import is_whole, parameter_groups
from megatape.registry import OPTIMIZERS
from megatape.zero.matrix_state import assign_owners

EXCHANGED_BYTES = 4  # of an element of a gradient and of an update, whatever the precision
FLAT_MULTIPLE = 2  # DeepSpeed pads the flat tensor of a group to a multiple of this number of elements on every rank


@dataclass(frozen=True)
class MatrixPlan:
    """The whole matrices of a run.

    Attributes:
        state: bytes that the rank with most of it keeps for its matrices.
        flops: of the updates by the rank with most of them.
        sent: bytes that a rank sends to all others, on average: gradients to owners, and updates back.
    """

    state: int
    flops: int
    sent: int


@cache
def plan_matrices(config: Config, world_size: int) -> MatrixPlan:
    """Zeros for an optimizer that updates weights by element."""
    entry = OPTIMIZERS[config.optimizer.kind]
    tensor_size = config.parallel.tp
    trained = {name: weight for name, weight in run_weights(config).model.named_parameters() if weight.requires_grad}
    matrices = {name: weight for name, weight in trained.items() if is_whole(weight, config.optimizer)}
    shapes = {name: settings(weight).shape for name, weight in matrices.items()}
    state = Counter({0: 0})
    flops = Counter({0: 0})
    sent = 0
    runs = _flat_runs(trained, config)
    for name, owner in assign_owners(shapes, entry, world_size).items():
        whole = prod(shapes[name])
        local = matrices[name].numel()
        state[owner] += 4 * sum(map(prod, entry.matrix_shapes(shapes[name]).values()))
        flops[owner] += entry.update_flops(shapes[name])
        if config.zero.stage == 0:  # a whole replica is in reach of the owner, and all replicas get the update
            sent += (whole - local) + (world_size - 1) * local
        else:
            held = _held(local, *runs[name], owner // tensor_size, config, config.replicas(world_size))
            copies = 1 if hasattr(matrices[name], "partition_dim") else tensor_size
            sent += (whole - held) + (copies * whole - held)
    return MatrixPlan(max(state.values()), max(flops.values()), EXCHANGED_BYTES * sent // world_size)


def _flat_runs(trained: dict[str, nn.Parameter], config: Config) -> dict[str, tuple[int, int]]:
    """First element of each weight in the flat tensor of its parameter group at stages 1 and 2, and the size of that tensor."""
    runs: dict[str, tuple[int, int]] = {}
    for group in parameter_groups(trained.items(), config.optimizer):
        sizes = [weight.numel() for weight in group["params"]]
        runs |= {name: (sum(sizes[:number]), sum(sizes)) for number, name in enumerate(group["names"])}
    return runs


def _held(local: int, first: int, group: int, data_rank: int, config: Config, ranks: int) -> int:
    """Elements of a rank's share of a weight that a data-parallel rank has the master weights of, at stages 1 to 3."""
    if config.zero.stage == 3:
        size = -(-local // ranks)
        first = 0
    else:
        size = FLAT_MULTIPLE * -(-group // (FLAT_MULTIPLE * ranks))
    start = data_rank * size
    return max(0, min(start + size, first + local) - max(start, first))
