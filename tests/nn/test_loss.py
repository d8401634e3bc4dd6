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
from megatape.distributed.mesh import SINGLE, make_mesh
from megatape.distributed.topology import Topology
from megatape.nn import loss
from megatape.nn.loss import LossFormula
from megatape.nn.targets import IGNORE_INDEX
from megatape.tools.planner.kernels.counting import count
from megatape.tools.planner.kernels.operations import KernelKind
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, assert_within, relative_difference
from tests.helpers.processes.workers import run_workers

pytestmark = pytest.mark.numerics

VOCAB = 301
HIDDEN = 16
# Logits that a rank computes at a time: one token's, those of a number of tokens that does not divide all, all.
CHUNKS = (1, 5 * VOCAB, 10**9)
# Fields of LossFormula
TERMS: list[dict[str, Any]] = [{}, {"z_loss": 0.03}, {"softcap": 3.0}, {"softcap": 3.0, "z_loss": 0.03}]


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
    log_sums = logits.logsumexp(1)[targets != IGNORE_INDEX]
    return entropy, entropy + z_loss * log_sums.square().sum()


def exact(x: Tensor, weight: Tensor, targets: Tensor, **terms: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cross entropy and the gradients of x and weight in float64."""
    x = x.detach().double().requires_grad_()
    weight = weight.detach().double().requires_grad_()
    entropy, total = plain(x, weight, targets, **terms)
    grad_x, grad_weight = torch.autograd.grad(total, (x, weight))
    return entropy.detach(), grad_x, grad_weight


@pytest.mark.parametrize("chunk", CHUNKS)
def test_equal_to_plain(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are those of a loss that is scaled afterwards, as in training."""
    monkeypatch.setattr(loss, "CHUNK_LOGITS", chunk)
    x, weight, targets = example()
    expected, _ = plain(x, weight, targets)
    expected_gradients = torch.autograd.grad(expected * 0.125, (x, weight))

    entropy = loss.cross_entropy(x, weight, targets, LossFormula(VOCAB, SINGLE))
    gradients = torch.autograd.grad(entropy * 0.125, (x, weight))

    assert_close(entropy, expected, bounds.CROSS_ENTROPY)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert_close(gradient, expected_gradient, bounds.CROSS_ENTROPY)
    with pytest.raises(RuntimeError, match="differentiated only once"):
        entropy.backward()


@pytest.mark.parametrize("chunk", CHUNKS)
def test_equal_without_gradients(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK_LOGITS", chunk)
    x, weight, targets = example()
    formula = LossFormula(VOCAB, SINGLE)
    expected = loss.cross_entropy(x, weight, targets, formula)
    with torch.no_grad():
        assert loss.cross_entropy(x, weight, targets, formula).item() == expected.item()


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_z_loss_and_softcap(chunk: int, terms: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The returned loss excludes the z-loss, but gradients of x and weight include its gradient."""
    monkeypatch.setattr(loss, "CHUNK_LOGITS", chunk)
    x, weight, targets = example()
    entropy = loss.cross_entropy(x, weight, targets, LossFormula(VOCAB, SINGLE, **terms))
    results = (entropy, *torch.autograd.grad(entropy, (x, weight)))
    for result, expected in zip(results, exact(x, weight, targets, **terms), strict=True):
        assert_close(result.double(), expected, bounds.CROSS_ENTROPY)


def test_a_kernel_takes_few_bytes_a_logit() -> None:
    """Besides the products, each logit is read and written once.

    The loss has a soft-cap, a z-loss and several chunks. PyTorch's operators move 50 bytes a logit.
    """
    num_tokens = 2**15
    vocab = 2**14
    num_logits = num_tokens * vocab
    num_chunks = num_logits // loss.MAX_KERNEL_LOGITS
    with torch.device("meta"), count() as work:
        x = torch.empty(1, num_tokens, 256, dtype=torch.bfloat16, requires_grad=True)
        weight = torch.empty(vocab, 256, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.empty(1, num_tokens, dtype=torch.long)
        formula = LossFormula(vocab, SINGLE, softcap=30.0, z_loss=1e-4, by_kernel=True)
        loss.cross_entropy(x, weight, targets, formula).backward()
    operations = list(work.elements())
    num_products = sum(operation.kind is KernelKind.PRODUCT for operation in operations)
    num_bytes = sum(operation.bytes for operation in operations if operation.kind is KernelKind.FUSED)
    assert num_products == 3 * num_chunks
    assert 4 <= num_bytes / num_logits <= 8


@pytest.mark.parametrize(("gibibytes", "expected"), [(8, 2**25), (80, 80 * 2**21), (141, 2**28)])
def test_chunks_of_the_kernel_follow_the_memory(gibibytes: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    properties = SimpleNamespace(total_memory=gibibytes * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert loss.chunk_logits(True, cuda) == expected
    assert loss.chunk_logits(False, cuda) == loss.CHUNK_LOGITS


def test_chunks_in_bfloat16_are_summed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight's gradient sums 1024 chunks of one token. Rounding each to bfloat16 would make it 45% wrong."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 1024, HIDDEN, generator=generator).to(torch.bfloat16)
    weight = torch.zeros(8, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(1, 1024, dtype=torch.long)

    def weight_gradient(chunk: int) -> Tensor:
        monkeypatch.setattr(loss, "CHUNK_LOGITS", chunk)
        entropy = loss.cross_entropy(x, weight, targets, LossFormula(8, SINGLE))
        (gradient,) = torch.autograd.grad(entropy, weight)
        return gradient.float()

    assert_close(weight_gradient(1), weight_gradient(10**9), bounds.CHUNKS_IN_BFLOAT16)


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
    num_rows = -(-VOCAB // 4)
    padding = (0, 0, 0, 4 * num_rows - VOCAB)
    padded = F.pad(weight.detach(), padding, value=7.0)  # the padding may hold any value
    rows = slice(topology.rank * num_rows, (topology.rank + 1) * num_rows)
    differences = []
    for chunk, terms in product(CHUNKS, TERMS):
        expected, expected_grad_x, expected_grad_weight = exact(x, weight, targets, **terms)
        loss.CHUNK_LOGITS = chunk
        local_x = local_tokens(x.detach(), axis).requires_grad_()
        local_weight = padded[rows].clone().requires_grad_()
        entropy = loss.cross_entropy(local_x, local_weight, targets, LossFormula(VOCAB, axis, **terms))
        grad_x, grad_weight = torch.autograd.grad(entropy, (local_x, local_weight))
        differences += [
            relative_difference(entropy.double(), expected),
            relative_difference(grad_x.double(), local_tokens(expected_grad_x, axis)),
            relative_difference(grad_weight.double(), F.pad(expected_grad_weight, padding)[rows]),
        ]
    return differences
