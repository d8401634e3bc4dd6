"""Cross entropy over chunks of tokens and shards of the vocabulary, against the plain one."""

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from megatape.distributed.layout import local_tokens
from megatape.distributed.mesh import SINGLE, Axis, make_mesh
from megatape.distributed.topology import Topology
from megatape.nn import loss
from megatape.nn.loss import LossFormula
from megatape.nn.targets import IGNORE_INDEX
from megatape.tools.planner.counting import count
from megatape.tools.planner.operations import Kernel
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, assert_within, relative_difference
from tests.helpers.processes.workers import run_workers

pytestmark = pytest.mark.numerics

VOCAB = 301
HIDDEN = 16
# Elements of the logits that a rank computes at a time: one token, a number that does not divide the tokens, all.
CHUNKS = (1, 5 * VOCAB, 10**9)
TERMS: list[dict[str, Any]] = [
    {},
    {"z_loss": 0.03},
    {"softcap": 3.0},
    {"softcap": 3.0, "z_loss": 0.03},
]  # of LossFormula, beside the cross entropy


def example(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Return x [2, 24, HIDDEN], weight [VOCAB, HIDDEN], and targets [2, 24], some of which are ignored."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 24, HIDDEN, generator=generator).to(dtype)
    weight = torch.randn(VOCAB, HIDDEN, generator=generator).to(dtype)
    targets = torch.randint(0, VOCAB, (2, 24), generator=generator)
    targets[0, 3:9] = IGNORE_INDEX
    return x.requires_grad_(), weight.requires_grad_(), targets


def plain(
    x: Tensor, weight: Tensor, targets: Tensor, softcap: float | None = None, z_loss: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the cross entropy, and its sum with the z-loss, from which gradients are computed."""
    logits = F.linear(x, weight).flatten(0, 1)
    targets = targets.flatten()
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    entropy = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum")
    return entropy, entropy + z_loss * logits.logsumexp(1)[targets != IGNORE_INDEX].square().sum()


def exact(x: Tensor, weight: Tensor, targets: Tensor, **terms: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cross entropy and the gradients of x and weight in float64."""
    x, weight = (tensor.detach().double().requires_grad_() for tensor in (x, weight))
    entropy, total = plain(x, weight, targets, **terms)
    grad_x, grad_weight = torch.autograd.grad(total, (x, weight))
    return entropy.detach(), grad_x, grad_weight


@pytest.mark.parametrize("chunk", CHUNKS)
def test_equal_to_plain(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes a loss that is scaled afterwards, as in training, and one without gradients."""
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", chunk)
    x, weight, targets = example()
    expected, _ = plain(x, weight, targets)
    wanted = torch.autograd.grad(expected * 0.125, (x, weight))
    found = loss.cross_entropy(x, weight, targets, LossFormula(VOCAB, SINGLE))
    assert_close(found, expected, bounds.CROSS_ENTROPY)
    for ours, theirs in zip(torch.autograd.grad(found * 0.125, (x, weight)), wanted, strict=True):
        assert_close(ours, theirs, bounds.CROSS_ENTROPY)
    with pytest.raises(RuntimeError, match="differentiated only once"):
        found.backward()
    with torch.no_grad():
        assert loss.cross_entropy(x, weight, targets, LossFormula(VOCAB, SINGLE)).item() == found.item()


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_z_loss_and_softcap(chunk: int, terms: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The returned loss excludes the z-loss, but gradients of x and weight include its gradient."""
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", chunk)
    x, weight, targets = example()
    found = loss.cross_entropy(x, weight, targets, LossFormula(VOCAB, SINGLE, **terms))
    for ours, theirs in zip((found, *torch.autograd.grad(found, (x, weight))), exact(x, weight, targets, **terms), strict=True):
        assert_close(ours.double(), theirs, bounds.CROSS_ENTROPY)


def test_a_kernel_takes_few_bytes_a_logit() -> None:
    """Besides the products, each logit is read and written once, with soft-cap, z-loss and chunks. PyTorch's operators take
    50.
    """
    states = 2**15
    vocab = 2**14
    with torch.device("meta"), count() as work:
        x = torch.empty(1, states, 256, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.empty(vocab, 256, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.empty(1, states, dtype=torch.long)
        formula = LossFormula(vocab, SINGLE, softcap=30.0, z_loss=1e-4, by_kernel=True)
        loss.cross_entropy(x, weight, targets, formula).backward()
    assert sum(operation.kind is Kernel.PRODUCT for operation in work.elements()) == 3 * (
        states * vocab // loss.MOST_KERNEL_ELEMENTS
    )
    moved = sum(operation.bytes for operation in work.elements() if operation.kind is Kernel.FUSED)
    assert 4 <= moved / (states * vocab) <= 8


def test_chunks_follow_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    for gibibytes, expected in ((8, 2**25), (80, 80 * 2**21), (141, 2**28)):
        properties = SimpleNamespace(total_memory=gibibytes * 2**30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, found=properties: found)
        assert loss.chunk_elements(True, cuda) == expected
        assert loss.chunk_elements(False, cuda) == loss.CHUNK_ELEMENTS


def test_chunks_in_bfloat16_are_summed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight's gradient sums 1024 chunks of one token. Rounding each to bfloat16 would make it 45% wrong."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 1024, HIDDEN, generator=generator).to(torch.bfloat16)
    weight = torch.zeros(8, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(1, 1024, dtype=torch.long)
    gradients = []
    for chunk in (10**9, 1):
        monkeypatch.setattr(loss, "CHUNK_ELEMENTS", chunk)
        gradients.append(torch.autograd.grad(loss.cross_entropy(x, weight, targets, LossFormula(8, SINGLE)), weight)[0].float())
    assert_close(gradients[1], gradients[0], bounds.CHUNKS_IN_BFLOAT16)


class ProductsInto(TorchDispatchMode):
    """Records matrix products that add to a tensor, instead of computing them."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket is torch.ops.aten.addmm:
            self.recorded.append(function)
            return kwargs["out"]
        return function(*args, **(kwargs or {}))


def test_no_product_is_rounded_on_a_gpu() -> None:
    """One operator multiplies in bfloat16 and sums in float32. FakeTensorMode stands for the GPU."""
    with FakeTensorMode(), ProductsInto() as products:
        left = torch.empty(8, 16, dtype=torch.bfloat16, device="cuda")
        right = torch.empty(16, 4, dtype=torch.bfloat16, device="cuda")
        loss.add_product(torch.empty(8, 4, device="cuda"), left, right)
    assert products.recorded == [torch.ops.aten.addmm.dtype_out]


def test_tensor_ranks(tmp_path: Path) -> None:
    """On four ranks, the last of which has padding, the loss and both gradients equal those of one process.

    x has a gradient by tokens and the weight by rows. Every chunk size runs with and without z-loss and soft-cap.
    """
    for result in run_workers("tests.nn.test_loss:compare_with_plain", 4, None, tmp_path):
        assert_within(max(result), bounds.CROSS_ENTROPY, result)


def compare_with_plain(_: Any, topology: Topology) -> list[float]:
    axis = make_mesh(topology, {"tensor": 4})["tensor"]
    x, weight, targets = example()
    rows = -(-VOCAB // 4)
    padded = F.pad(weight.detach(), (0, 0, 0, 4 * rows - VOCAB), value=7.0)  # whatever the padding holds
    mine = slice(topology.rank * rows, (topology.rank + 1) * rows)
    differences = []
    for chunk, terms in product(CHUNKS, TERMS):
        expected, grad_x, grad_weight = exact(x, weight, targets, **terms)
        padded_grad = F.pad(grad_weight, (0, 0, 0, 4 * rows - VOCAB))
        loss.CHUNK_ELEMENTS = chunk
        own_x = local_tokens(x.detach(), axis).requires_grad_()
        own_weight = padded[mine].clone().requires_grad_()
        found = loss.cross_entropy(own_x, own_weight, targets, LossFormula(VOCAB, axis, **terms))
        found.backward()
        assert own_x.grad is not None
        assert own_weight.grad is not None
        differences += [
            relative_difference(found.double(), expected),
            relative_difference(own_x.grad.double(), local_tokens(grad_x, axis)),
            relative_difference(own_weight.grad.double(), padded_grad[mine]),
        ]
    return differences


@pytest.mark.parametrize(("vocab_size", "size", "real"), [(9, 8, [2, 2, 2, 2, 1, 0, 0, 0]), (8, 4, [2] * 4), (5, 1, [5])])
def test_padding_rows_are_minus_infinity(vocab_size: int, size: int, real: list[int]) -> None:
    for rank in range(size):
        logits = loss.mask_padding(torch.zeros(1, 3, -(-vocab_size // size)), vocab_size, Axis("tensor", size, rank))
        assert int(torch.isfinite(logits[0, 0]).sum()) == real[rank]
