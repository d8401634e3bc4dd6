"""Long samples need no N x N tensor, documents cost their own pairs only, and positions stay exact far from zero."""

import resource
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from megatape.attention.attend import attend
from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig, load_config
from megatape.distributed.topology import Topology
from megatape.model.build import build_model
from megatape.registry import ENCODINGS
from megatape.utils.pytorch.torch_internals import FakeTensorMode
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.small_models import SHAPE, model_with, random_model
from tests.helpers.planner.plan_cases import configure
from tests.helpers.processes.workers import run_workers

SMALL: dict[str, Any] = SHAPE | {"num_layers": 2, "num_heads": 2}
QUICK = ("tape", "rope")
LORA: dict[str, Any] = {
    "model.lora": {"rank": 2, "alpha": 2.0, "dropout": 0.1, "targets": ["up"]},
    "training.trainable": ["adapters"],
}
FP8 = {"training.fp8": "tensorwise", "training.precision": "bfloat16", "zero.stage": 2}
SCALED: dict[str, dict[str, Any]] = {
    "yarn": {"original_length": 8192},
    "llama3": {"original_length": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


class LargestTensor(TorchDispatchMode):
    """Records the largest tensor that an operator returns.

    Attributes:
        num_elements: Its number of elements.
        operator: The operator's name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_elements = 0
        self.operator = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.numel() > self.num_elements:
                self.num_elements = leaf.numel()
                self.operator = str(func)
        return result


LENGTHS = dict.fromkeys(QUICK, 32_768) | {"fire": 16_384}
OTHERS = [name for name in ENCODINGS if name not in QUICK]
# Every second one among the others has documents, masked alike for all encodings.
SLOW_CASES = [pytest.param(name, number % 2 == 1, marks=pytest.mark.slow) for number, name in enumerate(OTHERS)]


@pytest.mark.parametrize(("encoding", "is_masked"), [*product(QUICK, (False, True)), *SLOW_CASES])
def test_no_tensor_has_n_by_n_elements(encoding: str, is_masked: bool) -> None:
    """No operator of a step with 1024 to 32,768 tokens masks or biases all pairs at once. The step is traced on shapes only."""
    # Python multiplies PaTH's chunks pair by pair, computing other biases by blocks, FIRE's with a hidden layer.
    length = LENGTHS.get(encoding, 4096)
    if encoding.startswith("path"):
        length = 1024
    with FakeTensorMode(), LargestTensor() as largest:
        model = build_model(ModelConfig(**SMALL | {"encoding": encoding}))
        tokens = torch.zeros(1, length, dtype=torch.long)
        document_starts = None
        if is_masked:
            document_starts = tokens
        model(tokens, torch.arange(length)[None], document_starts, tokens).backward()

    assert largest.num_elements < length**2 / 3, largest.operator


@pytest.mark.parametrize("averages_state", [False, True])
def test_documents_cost_their_own_pairs(averages_state: bool) -> None:
    """Twice as many documents of a length cost twice the operations on a CPU, forward and backward, and not four times."""
    counts = []
    for length in (1024, 2048):
        q, k, v = (torch.randn(2, length, 2, 8, requires_grad=True) for _ in "qkv")
        starts = torch.stack([torch.arange(length) // size * size for size in (256, 128)])
        positions = None
        if averages_state:
            positions = PositionState(torch.ones(2, length, 1, 8))
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # the counter knows its operations
            content, _ = attend(q, k, v, state=positions, document_starts=starts, averages_state=averages_state)
            content.sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[1] > 0
    assert counts[1] <= 2.1 * counts[0]


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize("kind", [None, "linear", "theta", "yarn", "llama3"])
@pytest.mark.parametrize("encoding", QUICK)
def test_logits_at_131072_tokens_do_not_depend_on_the_offset(encoding: str, kind: str | None) -> None:
    """The last 128 of 131,072 tokens see all of them. The others see 128 to 255, which makes the test short."""
    length = 131_072
    last = 128
    scaling = None
    if kind is not None:
        scaling = {"kind": kind, "factor": 16.0} | SCALED.get(kind, {})
    # This backend allows overlapping documents.
    options = {"backends": ("blocked",)}
    model = random_model(encoding=encoding, scaling=scaling, options=options).requires_grad_(False)
    tokens = torch.randint(0, 50, (1, length), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(length)[None]
    starts = (positions // last * last - last).clamp(min=0)
    starts[:, -last:] = 0

    near = model(tokens, positions, starts)[:, -last:]
    far = model(tokens, positions + 2 * length, starts)[:, -last:]

    assert_close(far, near, bounds.OFFSET)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.chunk_tokens": 0}, "training.chunk_tokens"),
        ({"training.chunk_tokens": 8} | LORA, "training.chunk_tokens 8 does not support model.lora.dropout 0.1, whose zeros"),
        (
            {"training.chunk_tokens": 8} | FP8,
            "fp8 tensorwise does not support training.chunk_tokens, since it would scale each chunk",
        ),
    ],
    ids=("none", "dropout", "fp8"),
)
def test_chunks_that_are_refused(raw_config: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configure(raw_config, "x", changes)


@pytest.mark.slow
@pytest.mark.parametrize("is_masked", [False, True], ids=["one document", "documents"])
def test_a_step_of_16384_tokens_takes_less_than_2_gib(tmp_path: Path, is_masked: bool) -> None:
    """The peak is resident memory, a quarter of it PyTorch's own. The scores of one head would take 1 GiB."""
    (peak,) = run_workers("tests.end_to_end.test_long_context:peak_of_a_step", 1, {"is_masked": is_masked}, tmp_path)
    assert peak < 2 * 2**30


def peak_of_a_step(payload: dict[str, Any], topology: Topology) -> int:
    """Return the peak in bytes of a step of configs/tape_tiny.json with offloaded streams and an MLP that takes chunks."""
    config = load_config("configs/tape_tiny.json").model
    model = model_with(config, activation_checkpointing="offload", chunk_tokens=2048)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters())
    positions = torch.arange(16_384)[None]
    starts = None
    if payload["is_masked"]:
        starts = positions // 1000 * 1000
    model(positions % 4096, positions, starts, positions % 4096).backward()
    optimizer.step()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
