"""Finds ranks that compute wrong numbers: replicas pass the same samples through the model, and compare the results."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor

from megatape.distributed.mesh import Mesh
from megatape.distributed.topology import Topology, name_ranks
from megatape.distributed.values.exchange import gather_values
from megatape.errors import TrainingDiverged, flag
from megatape.zero.state.checksums import checksum

LOG = logging.getLogger(__name__)


class RankResult(NamedTuple):
    """Results of a rank for the same samples.

    Attributes:
        data_rank: Replica of the rank.
        position: Position of the rank in its replica.
        first: Checksums of loss and gradient.
        again: The same, computed a second time.
    """

    data_rank: int
    position: tuple[int, ...]
    first: list[int]
    again: list[int]


class ComputationCheck:
    """Lets all replicas compute loss and gradient of the same samples, which must be equal bit for bit.

    The gradient is that of the token embeddings, so the backward pass goes through all layers, without the products that give
    gradients of weights. Nothing changes, and no random numbers are used up.

    Hosts with different processors may round differently, so a difference between ranks that repeat their own results only
    counts if an earlier check found none. If most ranks do not repeat their results, their kernels are not deterministic.

    Args:
        engine: DeepSpeed's engine of a model with the module `embedding`.
        topology: All ranks.
        mesh: Mesh over all ranks.
    """

    def __init__(self, engine: DeepSpeedEngine, topology: Topology, mesh: Mesh) -> None:
        self._engine = engine
        self._topology = topology
        self._mesh = mesh
        self._were_equal = False
        self._is_off = False

    def check(self, inputs: dict[str, Tensor | None]) -> None:
        """Compare the results of all replicas. Collective. Does nothing if there is one replica.

        If sound ranks may differ, it warns, and later checks do nothing.

        Args:
            inputs: Keyword arguments for the module's forward pass on one micro-batch. Those of the first replica are used.

        Raises:
            TrainingDiverged: Results differ. Raised on all ranks.
        """
        axis = self._mesh["data"]
        if axis.size == 1 or self._is_off:
            return
        shared = self._share(inputs)
        first = self._compute(shared)
        extremes = torch.stack([first, -first])
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=axis.group)
        differs = (extremes[0] != -extremes[1]).any().double()
        dist.all_reduce(differs)
        if not differs:
            self._were_equal = True
            return
        again = self._compute(shared)
        position = tuple(self._mesh[name].rank for name in ("context", "sequence", "tensor"))
        result = RankResult(axis.rank, position, first.tolist(), again.tolist())
        results = [RankResult(*values) for values in gather_values(result, self._topology)]
        description = describe_fault(results)
        num_unsteady = len(unsteady_ranks(results))
        can_repeat = 2 * num_unsteady <= len(results)
        if can_repeat and (self._were_equal or num_unsteady):
            raise TrainingDiverged(f"{description}. Check the hosts of these ranks, and continue with {flag('resume')} auto")
        self._is_off = True
        if self._topology.is_main:
            LOG.warning(
                "warning: %s. Check the hosts of these ranks: they are faulty, or they round differently. This run does not "
                "compare computations any more",
                description,
            )

    def _share(self, inputs: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
        """Return the inputs of the first replica."""
        axis = self._mesh["data"]
        shared: dict[str, Tensor | None] = {}
        for name, tensor in inputs.items():
            shared[name] = None
            if tensor is not None:
                copy = tensor.contiguous().clone()
                dist.broadcast(copy, group=axis.group, group_src=0)
                shared[name] = copy
        return shared

    def _compute(self, inputs: dict[str, Any]) -> Tensor:
        """Return checksums of the loss and of the embeddings' gradient, int64 [2]."""
        embeddings: list[Tensor] = []

        def replace_by_leaf(module: Any, arguments: Any, output: Tensor) -> Tensor:
            leaf = output.detach().requires_grad_()
            embeddings.append(leaf)
            return leaf

        self._engine.train()
        handle = self._engine.module.embedding.register_forward_hook(replace_by_leaf)
        try:
            loss = self._engine.module(**inputs)
        finally:
            handle.remove()
        (gradient,) = torch.autograd.grad(loss, embeddings)
        return torch.stack([checksum(loss), checksum(gradient)])


def unsteady_ranks(results: Sequence[RankResult]) -> list[int]:
    """Return the ranks that did not repeat their own results."""
    return [rank for rank, result in enumerate(results) if list(result.again) != list(result.first)]


def describe_fault(results: Sequence[RankResult]) -> str:
    """Return a sentence that names the ranks whose results are wrong, as far as they can be told from the others."""
    unsteady = unsteady_ranks(results)
    cause = "a device, its memory or the network is at fault"
    if unsteady:
        return f"{name_ranks(unsteady)} computed other numbers from the same samples a second time: {cause}"
    minority = _minority(results)
    if minority:
        return f"{name_ranks(minority)} computed other numbers than most replicas from the same samples: {cause}"
    everyone = name_ranks(list(range(len(results))))
    return f"replicas on {everyone} computed different numbers from the same samples: {cause} on one of them"


def _minority(results: Sequence[RankResult]) -> list[int]:
    """Return the ranks with results that most replicas do not have, [] if there is no majority."""
    ranks: list[int] = []
    for position in {tuple(result.position) for result in results}:
        of_position = {rank: tuple(result.first) for rank, result in enumerate(results) if tuple(result.position) == position}
        (usual, count), *_ = Counter(of_position.values()).most_common(1)
        if 2 * count <= len(of_position):
            return []
        ranks += [rank for rank, values in of_position.items() if values != usual]
    return sorted(ranks)
