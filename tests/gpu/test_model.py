"""Complete models on a GPU, with every encoding and its chosen backend."""

from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.attention.attend import backends_by_priority
from megatape.registry import ENCODINGS
from tests.gpu import GPU
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import relative_difference
from tests.helpers.models.attention import random_document_starts
from tests.helpers.models.small_models import model_with, random_model, tokens_and_positions

pytestmark = [*GPU, pytest.mark.numerics]

LENGTH = 200
# Head sizes as in real models
CASES: list[dict[str, Any]] = [{"encoding": encoding, "head_dim": 64} for encoding in ENCODINGS]
CASES += [{"encoding": encoding, "head_dim": 128, "num_kv_heads": 2} for encoding in ("rope", "tape", "t5")]
CASES += [
    {"encoding": encoding, "head_dim": 64, "attention": "triton"} for encoding in ("rope", "tape", "tape_vector", "alibi", "t5")
]
NAMES = [" ".join(map(str, case.values())) for case in CASES]


def outputs(changes: dict[str, Any], device: str, dtype: torch.dtype, masked: bool) -> dict[str, Tensor]:
    """Return logits and all gradients, on the CPU."""
    drawn = random_model(**{key: value for key, value in changes.items() if key != "attention"}, max_positions=LENGTH)
    backends = backends_by_priority(changes["attention"]) if "attention" in changes else None
    model = model_with(drawn.config, backends=backends, rotation_by_kernel=True, update_by_kernel=True)
    model.load_state_dict(drawn.state_dict())
    model.to(device, dtype)
    tokens, positions = (tensor.to(device) for tensor in tokens_and_positions(length=LENGTH))
    starts = random_document_starts(*tokens.shape).to(device) if masked else None
    logits = model(tokens, positions, starts)
    logits.float().square().mean().backward()
    gradients = {name: p.grad.float().cpu() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach().float().cpu()} | gradients


@pytest.mark.parametrize("masked", [False, True], ids=["one document", "documents"])
@pytest.mark.parametrize("changes", CASES, ids=NAMES)
def test_equals_the_cpu(changes: dict[str, Any], masked: bool) -> None:
    """Matrix products are computed in full float32 (TF32 is off)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    expected, found = (outputs(changes, device, torch.float32, masked) for device in ("cpu", "cuda"))
    assert found.keys() == expected.keys()
    for name, reference in expected.items():
        of_gradients = bounds.GPU_SCALAR_GRADIENTS if reference.numel() == 1 else bounds.GPU_GRADIENTS
        of_gradients = bounds.COPE_GPU_GRADIENTS.get(changes["encoding"], of_gradients)
        bound = bounds.GPU_LOGITS if name == "logits" else of_gradients
        floor = 1.0 if name.endswith("outer_bias") else 0.0  # FIRE's outer bias has no effect and no gradient.
        assert relative_difference(found[name], reference, floor) < bound, name


@pytest.mark.parametrize("changes", CASES, ids=NAMES)
def test_bfloat16_is_as_close_as_on_the_cpu(changes: dict[str, Any]) -> None:
    """GPU and CPU are compared with float32. Rounding elsewhere changes the error by a half, a fault by much more."""
    exact, cpu, gpu = (
        outputs(changes, device, dtype, False)
        for device, dtype in (("cpu", torch.float32), ("cpu", torch.bfloat16), ("cuda", torch.bfloat16))
    )
    for name, reference in exact.items():
        errors = [float((run[name] - reference).norm()) for run in (gpu, cpu)]
        assert errors[0] < bounds.GPU_OVER_CPU_IN_BFLOAT16 * errors[1] + 1e-6 * float(reference.norm()), name
