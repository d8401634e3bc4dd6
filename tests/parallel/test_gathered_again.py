"""What is gathered again in the backward pass leaves no graph behind that nobody runs backward."""

import weakref

import torch

from megatape.parallel.collectives import _GatheredAgain
from megatape.parallel.mesh import SINGLE


def test_keeps_no_graph_alive() -> None:
    """Sigmoid saves its own output, which is not the gathered tensor: held as it is, output and node would hold each other."""
    part = torch.ones(8)
    with _GatheredAgain(part, part, [], SINGLE).hooks():
        output = torch.ones(8, requires_grad=True).sigmoid()
    gone = weakref.ref(output)
    del output
    assert gone() is None
