"""The Triton kernels under Triton's interpreter, which runs them on a CPU.

This is a process of its own, because the interpreter must be chosen before kernels are imported:

    TRITON_INTERPRET=1 python -m tests.kernels.interpreted

prints a JSON object with the fields of `Report`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from triton.runtime import interpreter

from megatape.attention.attend import get_backend
from megatape.attention.bias import DistanceBias
from megatape.attention.kernels import attention
from megatape.attention.kernels.rotation import Rotation
from megatape.attention.kernels.tile_sizes import Tile
from megatape.attention.rotation import PositionState, rotate
from megatape.config import ModelConfig
from megatape.distributed.mesh import SINGLE, Axis
from megatape.encodings.kernels import update
from megatape.encodings.tape import TapeUpdate
from megatape.nn import loss
from megatape.nn.kernels import loss as loss_kernel
from megatape.nn.loss import LossFormula
from megatape.nn.targets import IGNORE_INDEX
from tests.helpers.models import biased_attention
from tests.helpers.models.attention import initial_state, inputs, plain, random_document_starts
from tests.kernels.launches import Launch, Shape, launches, loss_launches, rotation_launches, update_launches

TALL = Tile(32, 16, 1, 1)
WIDE = Tile(16, 32, 1, 1)
SQUARE = Tile(16, 16, 1, 1)


class Comparison(NamedTuple):
    """Relative differences (of norms) from the formula in float64.

    Attributes:
        exact: Whether the kernel computes in float32. Otherwise it computes in bfloat16.
        differences: Differences of results and gradients, by name.
    """

    exact: bool
    differences: dict[str, float]


class Reach(NamedTuple):
    """Part of a tensor touched by a kernel's last program.

    Attributes:
        kernel: Name of the kernel.
        tensor: Name of the tensor.
        first: First touched address, as a share of the tensor.
        end: End of the last touched element, as a share of the tensor.
    """

    kernel: str
    tensor: str
    first: float
    end: float


class Report(NamedTuple):
    """Printed results.

    Attributes:
        kernels: Comparisons of attention, rotations and updates.
        losses: Comparisons of the loss.
        reaches: Reaches of each kernel's last program in a large call.
    """

    kernels: list[Comparison]
    losses: list[Comparison]
    reaches: list[Reach]


@dataclass(frozen=True)
class AttentionCase:
    """Call of attention.

    Attributes:
        shape: B, N, H, L, R.
        tile: Tile that replaces a GPU's, so that loops have several steps.
        dtype: Data type of queries, keys and values.
        moves_state: Whether attention moves e.
        rotates: Whether e rotates queries and keys if attention does not move it.
        delta: Whether e has a second term.
        documents: Whether samples are packed documents.
        wide: Whether e is twice as wide as heads.
        biased: Whether there is a bias by distance.
    """

    shape: Shape
    tile: Tile
    dtype: torch.dtype = torch.float32
    moves_state: bool = True
    rotates: bool = False
    delta: bool = True
    documents: bool = True
    wide: bool = False
    biased: bool = False

    @property
    def has_state(self) -> bool:
        """Whether attention gets e."""
        return self.moves_state or self.rotates


class RotationCase(NamedTuple):
    """Rotation of queries and keys.

    Attributes:
        shape: B, N, H, L, R.
        dtype: Data type of queries, keys and the second term of e.
        delta: Whether e has a second term.
        moves_state: Whether attention moves e.
    """

    shape: Shape
    dtype: torch.dtype
    delta: bool
    moves_state: bool


class UpdateCase(NamedTuple):
    """Update of the position state.

    Attributes:
        shape: B, N, H, L, R.
        inner: Inner size I.
        dtype: Data type of weights and arguments.
        delta: Whether e has a second term.
        attends: Whether attention moves e.
    """

    shape: Shape
    inner: int
    dtype: torch.dtype
    delta: bool
    attends: bool


class LossCase(NamedTuple):
    """Computation of the loss.

    Attributes:
        vocab: Size of the vocabulary.
        ranks: Number of ranks sharding the vocabulary.
        dtype: Data type of x and the weight.
        softcap: Soft-cap of logits.
        z_loss: Weight of the z-loss.
        columns: Columns that a program reads at a time.
    """

    vocab: int
    ranks: int
    dtype: torch.dtype
    softcap: float | None
    z_loss: float
    columns: int


ATTENTION = [
    # Groups, and lengths that are no multiples of either side of a tile
    AttentionCase((2, 40, 2, 1, 16), TALL),
    # Padded heads
    AttentionCase((1, 50, 1, 1, 20), WIDE, documents=False),
    AttentionCase((1, 40, 1, 1, 4), WIDE, delta=False),
    AttentionCase((1, 40, 2, 1, 16), TALL, moves_state=False),
    AttentionCase((1, 40, 2, 1, 16), TALL, moves_state=False, rotates=True),
    AttentionCase((1, 40, 2, 2, 4), WIDE, moves_state=False, rotates=True, delta=False),
    AttentionCase((1, 20, 2, 1, 4), TALL, wide=True),
    AttentionCase((1, 40, 2, 2, 32), WIDE, torch.bfloat16),
    AttentionCase((2, 40, 2, 1, 16), TALL, moves_state=False, biased=True),
    AttentionCase((1, 50, 2, 2, 4), WIDE, moves_state=False, biased=True, documents=False),
    AttentionCase((1, 40, 2, 1, 32), WIDE, torch.bfloat16, moves_state=False, biased=True),
]
ROTATIONS = [
    RotationCase((2, 70, 4, 2, 8), torch.float32, delta=True, moves_state=True),
    RotationCase((1, 7, 3, 3, 20), torch.float32, delta=True, moves_state=False),
    RotationCase((2, 70, 2, 1, 16), torch.float32, delta=False, moves_state=True),
    RotationCase((1, 7, 2, 2, 4), torch.float32, delta=False, moves_state=False),
    RotationCase((1, 40, 4, 2, 32), torch.bfloat16, delta=True, moves_state=True),
]
UPDATES = [
    UpdateCase((2, 5, 4, 2, 8), 6, torch.float32, delta=True, attends=True),
    UpdateCase((1, 7, 3, 3, 20), 17, torch.float32, delta=False, attends=True),
    UpdateCase((1, 4, 2, 2, 8), 6, torch.float32, delta=True, attends=False),
    UpdateCase((2, 5, 4, 4, 16), 12, torch.bfloat16, delta=True, attends=True),
]
LOSSES = [
    LossCase(301, 1, torch.float32, softcap=None, z_loss=0.0, columns=64),
    LossCase(301, 1, torch.float32, softcap=3.0, z_loss=0.03, columns=512),
    # A row of padding
    LossCase(301, 2, torch.float32, softcap=3.0, z_loss=0.03, columns=64),
    # A last rank that only has padding
    LossCase(5, 4, torch.float32, softcap=None, z_loss=0.03, columns=64),
    LossCase(301, 1, torch.bfloat16, softcap=3.0, z_loss=0.03, columns=64),
    LossCase(301, 2, torch.bfloat16, softcap=None, z_loss=0.0, columns=64),
]
# Shape with more than 2^31 numbers in q
LARGE = (1, 2**21 + 5, 16, 8, 64)
# Shape with as many numbers, in samples short enough for the program that walks from the first token to the last
MANY = (2**14, 150, 16, 8, 64)


def relative_norm(ours: Tensor, theirs: Tensor) -> float:
    """Return the norm of the difference of two tensors, relative to the norm of `theirs`."""
    reference = theirs.detach().double()
    difference = ours.detach().double() - reference
    return float(difference.norm() / reference.norm())


def backward(outputs: Sequence[Tensor]) -> None:
    """Compute gradients of the sum of the sines of all outputs."""
    sums = [output.double().sin().sum() for output in outputs]
    torch.stack(sums).sum().backward()


def in_float64(arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: argument.detach().double().requires_grad_() for name, argument in arguments.items()}


def compare(
    outputs: dict[str, Tensor], expected: dict[str, Tensor], arguments: dict[str, Tensor], exact: dict[str, Tensor]
) -> dict[str, float]:
    """Run both backward passes, and compare outputs and gradients by name.

    Args:
        outputs: Results of the kernels.
        expected: Results of the formula.
        arguments: Arguments of the kernels.
        exact: The same arguments in float64.
    """
    backward(list(outputs.values()))
    backward(list(expected.values()))
    differences = {name: relative_norm(output, expected[name]) for name, output in outputs.items()}
    for name, argument in arguments.items():
        gradient = argument.grad
        expected_gradient = exact[name].grad
        assert gradient is not None, name
        assert expected_gradient is not None, name
        differences[f"d {name}"] = relative_norm(gradient, expected_gradient)
    return differences


def attention_differences(case: AttentionCase) -> dict[str, float]:
    """Compare attention with the formula in float64 for the same rounded arguments."""
    batch, length, heads, _, size = case.shape
    q, k, v, delta = inputs(case.shape, case.dtype)
    if case.wide:
        delta = delta.detach().repeat(1, 1, 1, 2).requires_grad_()
    document_starts = None
    if case.documents:
        document_starts = random_document_starts(batch, length)
    arguments = {"q": q, "k": k, "v": v}
    if case.has_state and case.delta:
        arguments["delta"] = delta
    if case.biased:
        arguments["bias"] = torch.randn(heads, length, generator=torch.Generator().manual_seed(0)).requires_grad_()
    exact = in_float64(arguments)
    initial = initial_state(delta)
    if not case.has_state:  # a rotation by zero
        initial = torch.tensor([1.0, 0.0]).repeat_interleave(size // 2).expand_as(initial)

    outputs = kernel_attention(case, arguments, initial, document_starts)
    expected = exact_attention(case, exact, initial, document_starts)

    names = ["A v", "A e"][: len(outputs)]
    return compare(dict(zip(names, outputs, strict=True)), dict(zip(names, expected, strict=False)), arguments, exact)


def kernel_attention(
    case: AttentionCase, arguments: dict[str, Tensor], initial: Tensor, document_starts: Tensor | None
) -> list[Tensor]:
    """Return A v, and A e if attention moves e."""

    def select_tile(kernel: Any, x: Tensor) -> Tile:
        if kernel is attention.distances_kernel:
            return SQUARE
        return case.tile

    state = None
    if case.has_state:
        state = PositionState(initial, arguments.get("delta"))
    bias = None
    if case.biased:
        bias = DistanceBias(arguments["bias"])
    q, k, v = (arguments[name] for name in ("q", "k", "v"))
    attention.select_tile = select_tile  # also for the backward pass
    content, attended_state = get_backend("triton").attend(q, k, v, state, bias, document_starts, case.moves_state)
    if attended_state is None:
        return [content]
    return [content, attended_state]


def exact_attention(
    case: AttentionCase, exact: dict[str, Tensor], initial: Tensor, document_starts: Tensor | None
) -> tuple[Any, ...]:
    """Return A v, and A e unless there is a bias."""
    batch, length, _, channels, _ = case.shape
    q, k, v = (exact[name] for name in ("q", "k", "v"))
    if case.wide:
        # The formula does not support wide states. Blocked attention in float32 does.
        state = PositionState(initial, exact["delta"].float())
        return get_backend("blocked").attend(q.float(), k.float(), v.float(), state, None, document_starts, True)
    if document_starts is None:
        document_starts = torch.zeros(batch, length, dtype=torch.long)
    if case.biased:
        index = torch.arange(length)
        distances = (index[:, None] - index).clamp(min=0)
        return (biased_attention.plain(q, k, v, exact["bias"][:, distances][None], document_starts),)
    e = initial.double().expand(-1, -1, channels, -1)
    if "delta" in exact:
        e = e + exact["delta"]
    return plain(q, k, v, e, document_starts)


def rotation_differences(case: RotationCase) -> dict[str, float]:
    """Compare heads rotated by the kernels with PyTorch's operators in float64."""
    q, k, _, delta = inputs(case.shape, case.dtype)
    arguments = {"q": q, "k": k}
    initial = initial_state(delta)
    if case.delta:
        arguments["delta"] = delta
    else:
        initial = initial[:1]  # all samples may share it
    exact = in_float64(arguments)
    e = initial.double().expand(*delta.shape)
    if case.delta:
        e = e + exact["delta"]

    rotated_q, rotated_k, state = Rotation.apply(q, k, initial, arguments.get("delta"), case.moves_state)

    outputs = {"q rotated": rotated_q, "k rotated": rotated_k}
    expected = {"q rotated": rotate(exact["q"], e), "k rotated": rotate(exact["k"], e)}
    if case.moves_state:
        outputs["e"] = state
        expected["e"] = e
    else:
        assert state is None
    return compare(outputs, expected, arguments, exact)


def update_differences(case: UpdateCase) -> dict[str, float]:
    """Compare a layer's update by the kernels with the same layer in float64 without them."""
    batch, length, heads, channels, size = case.shape
    generator = torch.Generator().manual_seed(0)
    config = ModelConfig(
        num_layers=1,
        hidden_size=heads * size,
        num_heads=heads,
        num_kv_heads=channels,
        mlp_size=4,
        vocab_size=8,
        position_size=case.inner,
        max_positions=8,
    )
    layer = TapeUpdate(config, SINGLE, attention=case.attends).to(case.dtype)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.2, generator=generator)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(batch, length, *sizes, generator=generator).to(case.dtype)

    initial = draw(1, size)
    arguments = {"delta": draw(channels, size), "attended": draw(heads, size), "m": draw(heads * size)}

    layer.use_kernels(True)
    results = run_update(case, layer, initial.float(), arguments)
    layer.use_kernels(False)
    expected = run_update(case, layer.double(), initial.double(), arguments)

    assert results.keys() == expected.keys()
    return {name: relative_norm(result, expected[name]) for name, result in results.items()}


def run_update(case: UpdateCase, layer: TapeUpdate, initial: Tensor, arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the updated second term of e, and all gradients, in float64."""
    dtype = next(layer.parameters()).dtype
    leaves = {name: argument.detach().to(dtype).requires_grad_() for name, argument in arguments.items()}
    delta = None
    if case.delta:
        delta = leaves["delta"]
    attended = None
    if case.attends:
        attended = leaves["attended"]
    updated = layer(PositionState(initial, delta), attended, leaves["m"]).delta
    layer.zero_grad()
    backward([updated])
    results = {"D": updated.detach().double()}
    for name, tensor in [*layer.named_parameters(), *leaves.items()]:
        if tensor.grad is not None:
            results[f"d {name}"] = tensor.grad.double()
    return results


def loss_differences(case: LossCase) -> dict[str, float]:
    """Compare the loss by the kernel, and its gradients, with float64.

    The ranks run one after the other, twice: in the first round they record what they would exchange in the second one.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 9, 16, generator=generator).to(case.dtype).requires_grad_()
    weight = torch.randn(case.vocab, 16, generator=generator).to(case.dtype).requires_grad_()
    targets = torch.randint(case.vocab, (2, 9), generator=generator)
    targets[0, 3:5] = IGNORE_INDEX
    expected = exact_loss(case, x, weight, targets)
    rows = -(-case.vocab // case.ranks)
    padding = case.ranks * rows - case.vocab
    padded = F.pad(weight.detach(), (0, 0, 0, padding), value=7.0)
    shards = [shard.requires_grad_() for shard in padded.split(rows)]
    statistics: list[Tensor] = []

    def every_rank(local: Tensor, axis: Axis) -> Tensor:
        statistics.append(local.clone())
        return torch.stack(statistics[-case.ranks :])

    def unchanged(tensor: Tensor, axis: Axis) -> Tensor:
        return tensor

    def run_ranks() -> list[tuple[Tensor, Tensor, Tensor]]:
        results = []
        for rank, shard in enumerate(shards):
            axis = Axis("tensor", case.ranks, rank)
            formula = LossFormula(case.vocab, axis, case.softcap, case.z_loss, by_kernel=True)
            total = loss.cross_entropy(x, shard, targets, formula)
            grad_x, grad_shard = torch.autograd.grad(total, (x, shard))
            results.append((total.detach(), grad_x, grad_shard))
        return results

    with (
        patch.object(loss_kernel, "COLUMNS", case.columns),
        patch.object(loss, "has_kernels", lambda device: True),
        patch.object(loss, "all_gather", unchanged),
        patch.object(loss, "reduce_scatter", unchanged),
        patch.object(loss, "every_rank", every_rank),
    ):
        run_ranks()
        totals, grads_x, grads_shards = zip(*run_ranks(), strict=True)
    results = {
        "loss": totals[-1],
        "d x": torch.stack(grads_x).sum(0),
        "d weight": torch.cat(grads_shards)[: case.vocab],
    }
    return {name: relative_norm(result, expected[name]) for name, result in results.items()}


def exact_loss(case: LossCase, x: Tensor, weight: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the cross entropy, and the gradients of its sum with the z-loss, in float64."""
    x = x.detach().double().requires_grad_()
    weight = weight.detach().double().requires_grad_()
    logits = F.linear(x, weight).flatten(0, 1)
    if case.softcap is not None:
        logits = case.softcap * (logits / case.softcap).tanh()
    counts = targets.flatten() != IGNORE_INDEX
    entropy = F.cross_entropy(logits[counts], targets.flatten()[counts], reduction="sum")
    total = entropy + case.z_loss * logits[counts].logsumexp(1).square().sum()
    grad_x, grad_weight = torch.autograd.grad(total, (x, weight))
    return {"loss": entropy.detach(), "d x": grad_x, "d weight": grad_weight}


def mend_bfloat16() -> None:
    """Correct the interpreter's bfloat16: it stores bits as uint16, multiplies them as integers, and truncates float32."""
    builder = interpreter.InterpreterBuilder
    handle = interpreter.TensorHandle
    language = interpreter.tl
    dot = builder.create_dot
    cast = builder.cast_impl

    def widened(x: Any) -> Any:
        if x.dtype.scalar != language.bfloat16:
            return x
        bits = x.data.astype(np.uint32) << 16
        return handle(bits.view(np.float32), language.float32)

    def create_dot(self: Any, a: Any, b: Any, *options: Any) -> Any:
        return dot(self, widened(a), widened(b), *options)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if (source.dtype.scalar, target.scalar) == (language.float32, language.bfloat16):
            rounded = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16()
            return handle(rounded.view(torch.uint16).numpy(), language.bfloat16)
        if target.scalar == language.float32:
            return widened(source)
        return cast(self, source, target)

    builder.create_dot = create_dot
    builder.cast_impl = cast_impl


def quicken() -> None:
    """Save two thirds of the time: do not check 32-bit integers, and patch the language once per function, not per call."""
    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    patched = set()

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.fn not in patched:
            patched.add(self.fn)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*arguments, **options)

    interpreter.InterpretedFunction.__call__ = call


class Memory:
    """Stand-in for memory that records touched addresses. Reads return `token` for document bounds and otherwise zero."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.addresses: list[tuple[int, int]] = []

    def load(self, pointers: np.ndarray, mask: np.ndarray, other: np.ndarray, dtype: Any) -> np.ndarray:
        self._record(pointers, mask)
        value = 0
        if dtype == np.int64:
            value = self.token
        return np.full(pointers.shape, value, dtype)

    def store(self, pointers: np.ndarray, values: np.ndarray, mask: np.ndarray) -> None:
        self._record(pointers, mask)

    def _record(self, pointers: np.ndarray, mask: np.ndarray) -> None:
        used = pointers[np.broadcast_to(mask, pointers.shape)]
        if used.size:
            self.addresses.append((int(used.min()), int(used.max())))


def reaches(launch: Launch) -> Iterator[Reach]:
    """Yield the part of each tensor that the program of the last block and head touches."""
    tensors = {name: value for name, value in launch.arguments.items() if isinstance(value, torch.Tensor)}
    addresses = {name: (number + 1) << 44 for number, name in enumerate(tensors)}
    document_start = launch.arguments.get("length", 0)
    if launch.kernel is not attention.keys_kernel:
        document_start -= 40
    memory = Memory(document_start)
    run_last_program(launch, memory, addresses)
    for name, tensor in tensors.items():
        address = addresses[name]
        touched = [pair for pair in memory.addresses if address - 2**43 < pair[0] < address + 2**43]
        last_index = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
        size = tensor.element_size() * (last_index + 1)
        first = min(pair[0] for pair in touched) - address
        end = max(pair[1] for pair in touched) + tensor.element_size() - address
        yield Reach(launch.kernel.__name__, name, first / size, end / size)


def run_last_program(launch: Launch, memory: Memory, addresses: dict[str, int]) -> None:
    """Run the program of the last block and head on tensors at these addresses."""

    def pointer(name: str) -> SimpleNamespace:
        return SimpleNamespace(dtype=launch.arguments[name].dtype, data_ptr=lambda: addresses[name])

    grid = (*launch.grid, 1, 1)[:3]
    block = grid[0] - 1
    if launch.kernel in (attention.forward_kernel, attention.queries_kernel, attention.distances_kernel):
        block = 0  # these kernels run the last block first
    interpreter.interpreter_builder.set_grid_dim(*grid)
    interpreter.interpreter_builder.set_grid_idx(block, grid[1] - 1, grid[2] - 1)
    constants = {parameter for parameter, kind in launch.kernel.fn.__annotations__.items() if kind is interpreter.tl.constexpr}
    real = interpreter._interpreter
    interpreter._interpreter = memory
    scope = interpreter._patch_lang(launch.kernel.fn)
    try:
        arguments = {}
        for name, value in launch.arguments.items():
            if name in addresses:
                value = pointer(name)
            if name not in constants:
                value = interpreter._implicit_cvt(value)
            arguments[name] = value
        launch.kernel.rewrite()(**arguments)
    finally:
        scope.restore()
        interpreter._interpreter = real


def large_launches() -> list[Launch]:
    """Return launches of all kernels whose tensors need 64-bit offsets."""
    biased = launches(MANY, torch.bfloat16, documents=False, biased=True)
    return [
        *launches(LARGE, torch.bfloat16, documents=True),
        *(launch for launch in biased if launch.kernel is attention.distances_kernel),
        *rotation_launches(LARGE, torch.bfloat16),
        *loss_launches(2**16, 2**15 + 3),
        *update_launches(LARGE, 12, torch.bfloat16, programs=LARGE[1]),
    ]


def main() -> None:
    mend_bfloat16()
    quicken()
    kernels = [Comparison(case.dtype == torch.float32, attention_differences(case)) for case in ATTENTION]
    kernels += [Comparison(case.dtype == torch.float32, rotation_differences(case)) for case in ROTATIONS]
    with (
        patch.object(update, "PROGRAMS", 3),
        patch.object(TapeUpdate, "has_kernel", lambda layer, device: True),  # also on a CPU
    ):
        kernels += [Comparison(case.dtype == torch.float32, update_differences(case)) for case in UPDATES]
    losses = [Comparison(case.dtype == torch.float32, loss_differences(case)) for case in LOSSES]
    touched: list[Reach] = []
    for launch in large_launches():
        touched += reaches(launch)
    print(json.dumps(Report(kernels, losses, touched)._asdict()))


if __name__ == "__main__":
    main()
