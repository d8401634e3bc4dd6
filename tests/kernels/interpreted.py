"""The Triton kernels under Triton's interpreter, which runs them on a CPU.

A process of its own, because the interpreter must be chosen before kernels are imported:

    TRITON_INTERPRET=1 python -m tests.kernels.interpreted

prints three lines of JSON: for each of CASES the relative differences (of norms) from the formula in float64, of results and
gradients by name; those of the loss; and for each kernel and tensor of a large call, which part of the tensor the last
program touches.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
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
from tests.kernels.launches import Launch, launches, loss_launches, rotation_launches, update_launches

TALL = Tile(32, 16, 1, 1)
WIDE = Tile(16, 32, 1, 1)
SQUARE = Tile(16, 16, 1, 1)


@dataclass(frozen=True)
class Case:
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

    shape: tuple[int, int, int, int, int]
    tile: Tile
    dtype: torch.dtype = torch.float32
    moves_state: bool = True
    rotates: bool = False
    delta: bool = True
    documents: bool = True
    wide: bool = False
    biased: bool = False


CASES = [
    # Groups, and lengths that are no multiples of either side of a tile
    Case((2, 40, 2, 1, 16), TALL),
    # Padded heads
    Case((1, 50, 1, 1, 20), WIDE, documents=False),
    Case((1, 40, 1, 1, 4), WIDE, delta=False),
    Case((1, 40, 2, 1, 16), TALL, moves_state=False),
    Case((1, 40, 2, 1, 16), TALL, moves_state=False, rotates=True),
    Case((1, 40, 2, 2, 4), WIDE, moves_state=False, rotates=True, delta=False),
    Case((1, 20, 2, 1, 4), TALL, wide=True),
    Case((1, 40, 2, 2, 32), WIDE, torch.bfloat16),
    Case((2, 40, 2, 1, 16), TALL, moves_state=False, biased=True),
    Case((1, 50, 2, 2, 4), WIDE, moves_state=False, biased=True, documents=False),
    Case((1, 40, 2, 1, 32), WIDE, torch.bfloat16, moves_state=False, biased=True),
]
# Shape, dtype, whether e has a second term, and whether attention moves it
ROTATIONS = [
    ((2, 70, 4, 2, 8), torch.float32, True, True),
    ((1, 7, 3, 3, 20), torch.float32, True, False),
    ((2, 70, 2, 1, 16), torch.float32, False, True),
    ((1, 7, 2, 2, 4), torch.float32, False, False),
    ((1, 40, 4, 2, 32), torch.bfloat16, True, True),
]
# Shape, I, dtype, whether e has a second term, and whether attention moves it
UPDATES = [
    ((2, 5, 4, 2, 8), 6, torch.float32, True, True),
    ((1, 7, 3, 3, 20), 17, torch.float32, False, True),
    ((1, 4, 2, 2, 8), 6, torch.float32, True, False),
    ((2, 5, 4, 4, 16), 12, torch.bfloat16, True, True),
]
# Size of the vocabulary, number of ranks that divide it, dtype, soft-cap, z-loss, columns that a program reads at a time
LOSSES = [
    (301, 1, torch.float32, None, 0.0, 64),
    (301, 1, torch.float32, 3.0, 0.03, 512),
    # With a row of padding
    (301, 2, torch.float32, 3.0, 0.03, 64),
    # With a last rank that has nothing but padding
    (5, 4, torch.float32, None, 0.03, 64),
    (301, 1, torch.bfloat16, 3.0, 0.03, 64),
    (301, 2, torch.bfloat16, None, 0.0, 64),
]
# Shape with more than 2^31 numbers in q
LARGE = (1, 2**21 + 5, 16, 8, 64)
# Shape with as many, in samples short enough for the program that walks from the first token to the last
MANY = (2**14, 150, 16, 8, 64)


def differences(case: Case) -> dict[str, float]:
    """Of results and gradients from the formula in float64 for the same rounded arguments."""
    attention.select_tile = lambda kernel, x: SQUARE if kernel is attention.distances_kernel else case.tile
    q, k, v, delta = inputs(case.shape, case.dtype)
    if case.wide:
        delta = delta.detach().repeat(1, 1, 1, 2).requires_grad_()
    batch, length, heads, channels, size = case.shape
    starts = random_document_starts(batch, length) if case.documents else None
    arguments = {"q": q, "k": k, "v": v} | ({"delta": delta} if (case.moves_state or case.rotates) and case.delta else {})
    if case.biased:
        arguments["bias"] = torch.randn(heads, length, generator=torch.Generator().manual_seed(0)).requires_grad_()
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in arguments.items()}
    initial = initial_state(delta)
    if not case.moves_state and not case.rotates:  # a rotation by nothing
        initial = torch.tensor([1.0, 0.0]).repeat_interleave(size // 2).expand_as(initial)
    e = initial.double().expand(-1, -1, channels, -1) + exact.get("delta", 0)
    zeros = torch.zeros(batch, length, dtype=torch.long)
    expected: tuple[Any, ...]
    if case.wide:  # the formula is not for these; float32 blocks are
        blocked = [exact[name].float() for name in ("q", "k", "v")]
        state = PositionState(initial, exact["delta"].float())
        expected = get_backend("blocked").attend(blocked[0], blocked[1], blocked[2], state, None, starts, True)
    elif case.biased:
        index = torch.arange(length)
        by_pair = exact["bias"][:, (index[:, None] - index).clamp(min=0)][None]
        expected = (biased_attention.plain(exact["q"], exact["k"], exact["v"], by_pair, zeros if starts is None else starts),)
    else:
        expected = plain(exact["q"], exact["k"], exact["v"], e, zeros if starts is None else starts)
    rotation = PositionState(initial, arguments.get("delta")) if case.moves_state or case.rotates else None
    bias = DistanceBias(arguments["bias"]) if case.biased else None
    outputs = get_backend("triton").attend(q, k, v, rotation, bias, starts, case.moves_state)
    found = [output for output in outputs if output is not None]
    expected = expected[: len(found)]
    for results in (found, expected):
        torch.stack([result.double().sin().sum() for result in results]).sum().backward()
    ours, theirs = ([*results, *_gradients(given)] for results, given in ((found, arguments), (expected, exact)))
    names = ["A v", "A e"][: len(found)] + [f"d {name}" for name in arguments]
    return {
        name: float((a.detach() - b.detach()).norm() / b.detach().norm())
        for name, a, b in zip(names, ours, theirs, strict=True)
    }


def rotation_differences(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, delta: bool, moves_state: bool
) -> dict[str, float]:
    """Of heads rotated by the kernels, and of all gradients, from PyTorch's operators in float64."""
    q, k, _, added = inputs(shape, dtype)
    given = {"q": q, "k": k} | ({"delta": added} if delta else {})
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in given.items()}
    initial = initial_state(added) if delta else initial_state(added)[:1]  # or one for all samples
    e = initial.double().expand(*added.shape) + exact.get("delta", 0)
    expected = [rotate(exact["q"], e), rotate(exact["k"], e), e][: 2 + moves_state]
    found = [part for part in Rotation.apply(q, k, initial, given.get("delta"), moves_state) if part is not None]
    for results in (found, expected):
        torch.stack([result.double().sin().sum() for result in results]).sum().backward()
    ours, theirs = ([*results, *_gradients(tensors)] for results, tensors in ((found, given), (expected, exact)))
    names = ["q rotated", "k rotated", "e"][: 2 + moves_state] + [f"d {name}" for name in given]
    pairs = zip(names, ours, theirs, strict=True)
    return {name: float((a.detach() - b.detach()).norm() / b.detach().norm()) for name, a, b in pairs}


def update_differences(
    shape: tuple[int, int, int, int, int], inner: int, dtype: torch.dtype, moves_state: bool, attends: bool
) -> dict[str, float]:
    """Of a layer's update by the kernels, and of all gradients, from the same layer in float64 without them."""
    batch, length, heads, channels, size = shape
    generator = torch.Generator().manual_seed(0)
    config = ModelConfig(
        num_layers=1,
        hidden_size=heads * size,
        num_heads=heads,
        num_kv_heads=channels,
        mlp_size=4,
        vocab_size=8,
        position_size=inner,
        max_positions=8,
    )
    layer = TapeUpdate(config, SINGLE, attention=attends).to(dtype)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.2, generator=generator)
    initial, *given = (
        torch.randn(batch, length, *sizes, generator=generator).to(dtype)
        for sizes in ((1, size), (channels, size), (heads, size), (heads * size,))
    )
    outputs = []
    gradients = []
    for exact in (False, True):
        layer.use_kernels(not exact)
        kind = torch.float64 if exact else dtype
        layer.to(kind)
        delta, attended, m = (tensor.detach().to(kind).requires_grad_() for tensor in given)
        state = PositionState(initial.to(kind) if exact else initial.float(), delta if moves_state else None)
        out = layer(state, attended if attends else None, m).delta
        layer.zero_grad()
        out.double().sin().sum().backward()
        outputs.append(out.detach().double())
        named = dict(layer.named_parameters()) | {"delta": delta, "attended": attended, "m": m}
        gradients.append({name: tensor.grad.double() for name, tensor in named.items() if tensor.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    pairs = {"D": outputs} | {f"d {name}": [found[name] for found in gradients] for name in gradients[0]}
    return {name: float((ours - theirs).norm() / theirs.norm()) for name, (ours, theirs) in pairs.items()}


def loss_differences(
    vocab: int, ranks: int, dtype: torch.dtype, softcap: float | None, z_loss: float, columns: int
) -> dict[str, float]:
    """Of the loss by the kernel, and of its gradients, from float64. What ranks exchange is that of ranks that ran before."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*sizes, 16, generator=generator).to(dtype).requires_grad_() for sizes in ((2, 9), (vocab,)))
    targets = torch.randint(vocab, (2, 9), generator=generator)
    targets[0, 3:5] = IGNORE_INDEX
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    logits = torch.nn.functional.linear(*wide).flatten(0, 1)
    logits = logits if softcap is None else softcap * (logits / softcap).tanh()
    counts = targets.flatten() != IGNORE_INDEX
    entropy = torch.nn.functional.cross_entropy(logits[counts], targets.flatten()[counts], reduction="sum")
    expected = torch.autograd.grad(entropy + z_loss * logits[counts].logsumexp(1).square().sum(), wide)

    rows = -(-vocab // ranks)
    padded = torch.nn.functional.pad(weight.detach(), (0, 0, 0, ranks * rows - vocab), value=7.0)
    shares = [padded[first : first + rows].requires_grad_() for first in range(0, ranks * rows, rows)]

    def every_rank(own: Tensor, axis: Axis) -> Tensor:
        sums.append(own.clone())
        return torch.stack(sums[-ranks:])

    sums: list[Tensor] = []  # of each rank, written before any of them reads those of all
    with (
        patch.object(loss_kernel, "COLUMNS", columns),
        patch.object(loss, "has_kernels", lambda device: True),
        patch.object(loss, "all_gather", lambda x, axis: x),
        patch.object(loss, "reduce_scatter", lambda x, axis: x),
        patch.object(loss, "every_rank", every_rank),
    ):
        for _ in range(2):  # the second time the sums of all ranks are known
            found = []
            for rank, share in enumerate(shares):
                formula = LossFormula(vocab, Axis("tensor", ranks, rank), softcap, z_loss, by_kernel=True)
                total = loss.cross_entropy(x, share, targets, formula)
                found.append((total.detach(), *torch.autograd.grad(total, (x, share))))
    totals, by_tokens, by_rows = zip(*found, strict=True)
    ours = {"loss": totals[-1], "d x": sum(by_tokens), "d weight": torch.cat(by_rows)[:vocab]}
    pairs = zip(ours.items(), (entropy.detach(), *expected), strict=True)
    return {name: float((a.double() - b).norm() / b.norm()) for (name, a), b in pairs}


def _gradients(given: dict[str, Tensor]) -> list[Tensor]:
    gradients = [tensor.grad for tensor in given.values() if tensor.grad is not None]
    assert len(gradients) == len(given)
    return gradients


def mend_bfloat16() -> None:
    """The interpreter keeps bfloat16 as its bits in uint16, multiplies those as integers, and cuts float32 off to make one."""
    builder = interpreter.InterpreterBuilder
    handle = interpreter.TensorHandle
    language = interpreter.tl
    dot = builder.create_dot
    cast = builder.cast_impl

    def widened(x: Any) -> Any:
        if x.dtype.scalar != language.bfloat16:
            return x
        return handle((x.data.astype(np.uint32) << 16).view(np.float32), language.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, widened(a), widened(b), *rest)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if (source.dtype.scalar, target.scalar) == (language.float32, language.bfloat16):
            rounded = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16().view(torch.uint16).numpy()
            return handle(rounded, language.bfloat16)
        return widened(source) if target.scalar == language.float32 else cast(self, source, target)

    builder.create_dot = create_dot
    builder.cast_impl = cast_impl


def quicken() -> None:
    """Leave out what costs two thirds of the time: checks of every 32-bit integer, and patching the language again for
    each call of a function."""
    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    patched = set()

    def call(self: Any, *given: Any, **named: Any) -> Any:
        if self.fn not in patched:
            patched.add(self.fn)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*given, **named)

    interpreter.InterpretedFunction.__call__ = call


class Memory:
    """Takes the place of memory: keeps addresses, and reads give `token` for a bound of a document and zero for all else."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.addresses: list[tuple[int, int]] = []

    def load(self, pointers: np.ndarray, mask: np.ndarray, other: np.ndarray, dtype: Any) -> np.ndarray:
        self._keep(pointers, mask)
        return np.full(pointers.shape, self.token if dtype == np.int64 else 0, dtype)

    def store(self, pointers: np.ndarray, values: np.ndarray, mask: np.ndarray) -> None:
        self._keep(pointers, mask)

    def _keep(self, pointers: np.ndarray, mask: np.ndarray) -> None:
        used = pointers[np.broadcast_to(mask, pointers.shape)]
        if used.size:
            self.addresses.append((int(used.min()), int(used.max())))


def reach(launch: Launch) -> Iterator[tuple[str, float, float]]:
    """Name of each tensor, and the first and last address that the program of the last block and head touches, as shares of the
    tensor."""
    tensors = {name: value for name, value in launch.arguments.items() if isinstance(value, torch.Tensor)}
    bases = {name: (number + 1) << 44 for number, name in enumerate(tensors)}
    by_keys = launch.kernel is attention.keys_kernel
    memory = Memory(launch.arguments.get("length", 0) - (0 if by_keys else 40))
    given = {
        name: SimpleNamespace(dtype=tensors[name].dtype, data_ptr=lambda base=bases[name]: base) if name in tensors else value
        for name, value in launch.arguments.items()
    }
    constants = {parameter for parameter, kind in launch.kernel.fn.__annotations__.items() if kind is interpreter.tl.constexpr}
    reversed_blocks = launch.kernel in (attention.forward_kernel, attention.queries_kernel, attention.distances_kernel)
    grid = (*launch.grid, 1, 1)[:3]
    interpreter.interpreter_builder.set_grid_dim(*grid)
    interpreter.interpreter_builder.set_grid_idx(0 if reversed_blocks else grid[0] - 1, grid[1] - 1, grid[2] - 1)
    real = interpreter._interpreter
    interpreter._interpreter = memory
    scope = interpreter._patch_lang(launch.kernel.fn)
    try:
        arguments = {name: value if name in constants else interpreter._implicit_cvt(value) for name, value in given.items()}
        launch.kernel.rewrite()(**arguments)
    finally:
        scope.restore()
        interpreter._interpreter = real
    for name, tensor in tensors.items():
        touched = [pair for pair in memory.addresses if bases[name] - 2**43 < pair[0] < bases[name] + 2**43]
        extent = 1 + sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
        size = tensor.element_size() * extent
        first = min(pair[0] for pair in touched)
        final = max(pair[1] for pair in touched)
        yield name, (first - bases[name]) / size, (final + tensor.element_size() - bases[name]) / size


def main() -> None:
    mend_bfloat16()
    quicken()
    found = [(case.dtype == torch.float32, differences(case)) for case in CASES]
    found += [(case[1] == torch.float32, rotation_differences(*case)) for case in ROTATIONS]
    with (
        patch.object(update, "PROGRAMS", 3),
        patch.object(TapeUpdate, "has_kernel", lambda self, device: True),
    ):  # also on a CPU
        found += [(case[2] == torch.float32, update_differences(*case)) for case in UPDATES]
    print(json.dumps(found))
    print(json.dumps([(case[2] == torch.float32, loss_differences(*case)) for case in LOSSES]))
    large = launches(LARGE, torch.bfloat16, documents=True)
    biased = launches(MANY, torch.bfloat16, documents=False, biased=True)
    large += [launch for launch in biased if launch.kernel is attention.distances_kernel]
    large += rotation_launches(LARGE, torch.bfloat16)
    large += loss_launches(2**16, 2**15 + 3)
    large += update_launches(LARGE, 12, torch.bfloat16, programs=LARGE[1])
    print(json.dumps([(launch.kernel.__name__, *part) for launch in large for part in reach(launch)]))


if __name__ == "__main__":
    main()
