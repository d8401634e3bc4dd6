"""What a run's model needs from attention, by which backends are chosen, and trials of backends and our own Triton kernels.

A trial runs one of them forward and backward on the device at hand, before a run relies on it. What a backend does not support
is known beforehand (Backend.unsupported_reason). A kernel without a backward pass, a missing compiler, tiles that need more
shared memory than the GPU has, or wrong results show here.

`failure_in_child` tries a backend in a child process, which calls `main`.
"""

import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor

from megatape.attention.attend import get_backend
from megatape.attention.backend import AttentionRequirements
from megatape.attention.bias import DistanceBias
from megatape.attention.rotation import PositionState
from megatape.config import Config
from megatape.distributed.mesh import SINGLE
from megatape.encodings import encoding_of
from megatape.nn.kernels.launch import has_kernels
from megatape.nn.loss import LossFormula, cross_entropy
from megatape.utils.python_process import child_environment, python_command
from megatape.utils.targets import IGNORE_INDEX

LOG = logging.getLogger(__name__)

REFERENCE = "blocked"  # plain PyTorch, in float32
WORST = 0.1  # relative difference from it: ten times what rounding to bfloat16 makes
HIDDEN_SIZE = 64  # of the loss that is tried, whose time its vocabulary takes


def attention_needs(config: Config, device_type: str) -> list[AttentionRequirements]:
    """What the layers of a run need from attention on this type of device, those that need most first.

    The last layer that has positions does not move the state, because nothing reads it; layers without positions need neither
    that nor a bias.
    """
    encoding = encoding_of(config.model)
    dtype = getattr(torch, config.training.precision)
    masked = config.data.mask_documents
    ring = config.parallel.cp > 1
    need = AttentionRequirements(device_type, encoding.moves_state, encoding.score_bias, encoding.qk_width, dtype, masked, ring)
    needs = [need, replace(need, moves=False)]
    if config.model.nope_every:
        needs.append(replace(need, moves=False, bias="none", head_dim=config.model.head_dim))
    return list(dict.fromkeys(needs))


def backend_failure(
    name: str, needs: Iterable[AttentionRequirements], groups: int, width: int, tokens: int, device: torch.device
) -> str:
    """What goes wrong when a backend runs forward and backward on one sample; "" if nothing does.

    Args:
        name: of the backend.
        needs: of layers, each of which is tried.
        groups: query heads, which share a key/value head.
        width: of the state that the run's attention moves, 0 for none.
        tokens: of the sample.
        device: on which it runs.
    """
    for need in needs:
        if fault := _mismatch(*(partial(_results, each, need, groups, width, tokens, device) for each in (name, REFERENCE))):
            return fault
    return ""


def failure_in_child(
    name: str, needs: Iterable[AttentionRequirements], groups: int, width: int, tokens: int, device: torch.device
) -> str:
    """`backend_failure` in a process of its own.

    After a kernel's illegal memory access CUDA refuses all further work of the process, or the process dies.
    """
    command = python_command("megatape.model.smoke_test")
    task = pickle.dumps((name, tuple(needs), groups, width, tokens, device))
    trial = subprocess.run(command, input=task, capture_output=True, env=child_environment(), check=False)
    LOG.debug("printed when %s was tried: %s", name, trial.stderr.decode(errors="replace"))
    if not trial.stdout:
        return f"its process ended with status {trial.returncode}"
    return str(json.loads(trial.stdout.splitlines()[-1]))


def _results(
    name: str, need: AttentionRequirements, groups: int, width: int, tokens: int, device: torch.device
) -> list[Tensor]:
    """Outputs and gradients. A bias by distance stands for any bias."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, dtype: torch.dtype = need.dtype) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()

    backend = get_backend(name)
    q, k, v = (draw(1, tokens, heads, need.head_dim) for heads in (groups, 1, 1))
    places = torch.arange(tokens, device=device)
    document_starts = (places - places % (tokens // 2 + 1))[None] if need.masked else None  # two documents
    initial = draw(1, tokens, 1, width or need.head_dim, dtype=torch.float32).detach()
    delta = draw(1, tokens, 1, width) if need.moves else None
    weights = None if need.bias == "none" else draw(groups, tokens, dtype=torch.float32)
    positions = PositionState(initial, delta) if need.moves or weights is None else None
    bias = None if weights is None else DistanceBias(weights)
    found = backend.attend(q, k, v, positions, bias, document_starts, need.moves)
    given = [tensor for tensor in (q, k, v, delta, weights) if tensor is not None]
    outputs = [output for output in found if output is not None]
    gradients = torch.autograd.grad([output.float().square().sum() for output in outputs], given)
    return [tensor.detach() for tensor in (*outputs, *gradients)]


def update_failure(config: Config, tokens: int, device: torch.device) -> str:
    """What goes wrong when the kernels update a later layer's state for so many tokens, against the plain update.

    Forward and backward. "" if nothing does, or if they do not support the run's update.
    """
    model = config.model
    encoding = encoding_of(config.model)
    update = encoding.update(SINGLE)
    dtype = getattr(torch, config.training.precision)
    if update is None or not update.has_kernel(device):
        return ""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()

    for weight in update.parameters():
        torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5, generator=generator)
    update.to(device, dtype)
    initial = encoding.state(torch.arange(tokens, device=device)[None])
    delta = draw(1, tokens, model.num_kv_heads, encoding.state_width)
    m = draw(1, tokens, model.hidden_size)
    # Tensor-parallel ranks do attention's part of the update before they exchange it.
    moved = encoding.moves_state and config.parallel.tp == 1
    attended = draw(1, tokens, model.num_heads, encoding.state_width) if moved else None
    given = [tensor for tensor in (delta, attended, m, *update.parameters()) if tensor is not None]

    def results(by_kernel: bool) -> list[Tensor]:
        update.by_kernel = by_kernel
        out = update(PositionState(initial, delta), attended, m).delta
        assert out is not None
        gradients = torch.autograd.grad(out.float().square().sum(), given, allow_unused=True)
        return [tensor.detach() for tensor in (out, *gradients) if tensor is not None]

    return _mismatch(lambda: results(True), lambda: results(False))


def loss_failure(config: Config, tokens: int, device: torch.device) -> str:
    """What goes wrong when the kernel computes the loss of so many tokens, and its gradients, against PyTorch's operators.

    "" if nothing does, or if there is no kernel for the device.
    """
    if not has_kernels(device):
        return ""
    model = config.model
    dtype = getattr(torch, config.training.precision)
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(*shape, HIDDEN_SIZE, generator=generator).to(device, dtype).requires_grad_()
        for shape in ((1, tokens), (model.vocab_size,))
    )
    targets = torch.randint(model.vocab_size, (1, tokens), generator=generator).to(device)
    targets[0, 0] = IGNORE_INDEX

    def results(by_kernel: bool) -> list[Tensor]:
        formula = LossFormula(model.vocab_size, SINGLE, model.logit_softcap, config.training.z_loss, by_kernel)
        loss = cross_entropy(x, weight, targets, formula)
        return [loss.detach(), *torch.autograd.grad(loss, (x, weight))]

    return _mismatch(lambda: results(True), lambda: results(False))


def _mismatch(actual: Callable[[], list[Tensor]], reference: Callable[[], list[Tensor]]) -> str:
    """The error of `actual`, or that its results differ from those of `reference` by more than rounding; "" if neither."""
    try:
        pairs = zip(actual(), reference(), strict=True)
        worst = float(torch.stack([(a.float() - b.float()).norm() / b.float().norm() for a, b in pairs]).max())
    except Exception as error:  # whatever a kernel, its compiler or its driver raises
        LOG.debug("raised when a backend was tried:", exc_info=True)
        return f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return "" if worst <= WORST else f"its results are off by {worst:.0%}"


def main(words: list[str]) -> NoReturn:
    """Try the backend described on standard input, and print its failure as JSON.

    Args:
        words: Arguments of the program; there are none.
    """
    failure = backend_failure(*pickle.load(sys.stdin.buffer))
    sys.stdout.write(json.dumps(failure))
    sys.stdout.flush()
    os._exit(0)  # CUDA cannot be shut down after some failures
