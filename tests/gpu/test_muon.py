"""Muon's iteration on a GPU in bfloat16, against a CPU in float32."""

import pytest
import torch

from megatape.optim.muon import Muon
from megatape.optim.muon_options import MuonOptions
from tests.gpu import GPU

pytestmark = GPU


@pytest.mark.parametrize("shape", [(256, 256), (768, 256), (256, 768)])
def test_differs_by_the_rounding_of_bfloat16(shape: tuple[int, int]) -> None:
    """Computing in bfloat16, the CPU's relative difference in norms is 1e-2."""
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    updates = []
    for device in ("cpu", "cuda"):
        state = {"momentum_buffer": torch.zeros(shape, device=device)}
        optimizer = Muon([{"params": [torch.zeros(shape, device=device)]}], MuonOptions(kind="muon", learning_rate=1.0))
        updates.append(optimizer.update_matrix(gradient.to(device), state, {}).cpu())
    assert 1e-3 < float((updates[1] - updates[0]).norm() / updates[0].norm()) < 2e-2
