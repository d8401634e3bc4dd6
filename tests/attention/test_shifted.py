"""Shifted sparse attention: against masks built from group starts, causality, and dense evaluation."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.attention.attend import attend
from megatape.attention.backends.sdpa import visible
from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import PositionState, rotate_qk
from megatape.attention.shifted import ShiftedSparse, num_pairs, num_unshifted_heads
from megatape.distributed.mesh import Axis
from megatape.model.block import Attention
from megatape.model.transformer import Transformer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.attention import random_document_starts
from tests.helpers.models.small_models import random_model, tokens_and_positions
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

pytestmark = pytest.mark.numerics

# Groups of 16 tokens begin at tokens 0, 16 and 32, or if they are shifted at 0, 8, 24 and 40.
LENGTH = 48
GROUPS = 3
BEGINS = ([0] * 16 + [16] * 16 + [32] * 16, [0] * 8 + [8] * 16 + [24] * 16 + [40] * 8)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, document_starts: Tensor | None, num_unshifted: int) -> Tensor:
    """Compute attention over all pairs with a mask, one head at a time."""
    repeats = q.shape[2] // k.shape[2]
    outputs = []
    for head in range(q.shape[2]):
        channel = head // repeats
        starts = torch.tensor(BEGINS[channel >= num_unshifted]).expand(len(q), -1)
        seen = visible(starts if document_starts is None else starts.maximum(document_starts))
        scores = q[:, :, head] @ k[:, :, channel].mT / math.sqrt(q.shape[-1])
        outputs.append(scores.masked_fill(~seen, -math.inf).softmax(-1) @ v[:, :, channel])
    return torch.stack(outputs, 2)


@pytest.mark.parametrize("backend", ["sdpa", "blocked"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("num_unshifted", [0, 1, 2], ids="{} unshifted".format)
def test_equals_the_formula(num_unshifted: int, masked: bool, backend: str) -> None:
    """Values and gradients equal a float64 formula with grouped queries, for ranks holding heads of one half or both."""
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(2, LENGTH, heads, 4, generator=generator).requires_grad_() for heads in (4, 2, 2)]
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    starts = random_document_starts(2, LENGTH) if masked else None
    q, k, v = given
    sparse = ShiftedSparse(GROUPS, num_unshifted, partial(attend, backends=(backend,)))
    found, _ = sparse(q, k, v, state=None, bias=None, document_starts=starts, moves_state=False)
    q, k, v = exact
    expected = masked_attention(q, k, v, starts, num_unshifted)
    for output in (found, expected):
        output.sin().sum().backward()
    pairs = [(found, expected), *((ours.grad, theirs.grad) for ours, theirs in zip(given, exact, strict=True))]
    for ours, theirs in pairs:
        assert ours is not None
        assert theirs is not None
        assert_close(ours, theirs, bounds.ATTENTION, floor=1e-3)


def test_pairs() -> None:
    """The planner counts these pairs. Attention masks the ones with a later key."""
    sizes = [[begins.count(first) for first in set(begins)] for begins in BEGINS]
    assert num_pairs(LENGTH, GROUPS) == sum(size**2 for half in sizes for size in half) / 2


class Masked(ShiftedSparse):
    """Attention layer that computes the same result with a mask."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        state: PositionState | None,
        bias: ScoreBias | None,
        document_starts: Tensor | None,
        moves_state: bool,
    ) -> tuple[Tensor, None]:
        return masked_attention(*rotate_qk(q, k, state), v, document_starts, self.num_unshifted), None


def rope_model(**options: Any) -> Transformer:
    return random_model(encoding="rope", num_kv_heads=2, options=options)


@pytest.mark.parametrize("masked", [False, True])
def test_model_equals_one_with_masks(masked: bool) -> None:
    """Logits and gradients of the embedded tokens and every weight are equal."""
    starts = random_document_starts(2, LENGTH) if masked else None
    tokens, positions = tokens_and_positions(length=LENGTH)
    ours = rope_model(num_shifted_groups=GROUPS)
    theirs = rope_model()
    for module in theirs.modules():
        if isinstance(module, Attention):
            module.attend_in_training = Masked(GROUPS, 1)
    found = ours(tokens, positions, starts)
    expected = theirs(tokens, positions, starts)
    assert_close(found, expected, bounds.LOGITS)
    for logits in (found, expected):
        logits.sin().sum().backward()
    for (name, weight), reference in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert weight.grad is not None
        assert reference.grad is not None
        assert_close(weight.grad, reference.grad, bounds.PACKED_GRADIENTS, what=name)


@pytest.mark.parametrize(("num_tensor_ranks", "num_sequence_ranks"), [(1, 1), (2, 1), (1, 4), (2, 2), (4, 2)])
def test_ranks_shift_the_second_half_of_the_models_heads(num_tensor_ranks: int, num_sequence_ranks: int) -> None:
    num_own = 8 // (num_tensor_ranks * num_sequence_ranks)
    unshifted: list[bool] = []
    for tensor_rank in range(num_tensor_ranks):
        for sequence_rank in range(num_sequence_ranks):
            tensor_axis = Axis("tensor", num_tensor_ranks, tensor_rank)
            sequence_axis = Axis("sequence", num_sequence_ranks, sequence_rank)
            num_unshifted = num_unshifted_heads(8, tensor_axis, sequence_axis)
            unshifted += [True] * num_unshifted + [False] * (num_own - num_unshifted)
    assert unshifted == [True] * 4 + [False] * 4


def test_no_token_sees_the_future() -> None:
    """A layer's groups also separate tokens. In a model, a later token changes nothing before it."""
    generator = torch.Generator().manual_seed(0)
    for num_unshifted, begins in ((1, BEGINS[0]), (0, BEGINS[1])):
        q, k, v = (torch.randn(1, LENGTH, 1, 4, generator=generator) for _ in range(3))
        v.requires_grad_()
        out, _ = ShiftedSparse(GROUPS, num_unshifted)(q, k, v, state=None, bias=None, document_starts=None, moves_state=False)
        for token, first in enumerate(begins):
            (gradient,) = torch.autograd.grad(out[0, token].sum(), v, retain_graph=True)
            assert gradient[0, :, 0, 0].nonzero().flatten().tolist() == list(range(first, token + 1))
    model = rope_model(num_shifted_groups=GROUPS)
    tokens, positions = tokens_and_positions(batch=1, length=LENGTH)
    before = model(tokens, positions)
    for changed in (7, 8, 16, 24, 40, 47):
        others = tokens.clone()
        others[0, changed] = (others[0, changed] + 1) % 50
        after = model(others, positions)
        assert torch.equal(after[:, :changed], before[:, :changed])
        assert not torch.equal(after[:, changed], before[:, changed])


def test_dense_in_evaluation() -> None:
    tokens, positions = tokens_and_positions(length=LENGTH)
    dense = rope_model().eval()
    model = rope_model(num_shifted_groups=GROUPS)
    expected = dense(tokens, positions)
    assert bounds.relative_difference(model(tokens, positions), expected) > 1e-2
    assert torch.equal(model.eval()(tokens, positions), expected)


@pytest.mark.slow
def test_same_on_tensor_parallel_ranks(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Two ranks with one half of the heads each equal one process after three steps, with document masks and checkpointing."""
    raw_config["model"] |= {"encoding": "rope", "num_kv_heads": 2}
    raw_config["training"] |= {"steps": 3, "num_shifted_groups": 4}
    raw_config["optimizer"]["eps"] = 1e-3  # as in test_stages.py
    raw_config["checkpoint"] = {"interval": 3, "keep": 1}
    raw_config["evaluation"]["interval"] = 100
    folder = Path(raw_config["run"]["directory"])
    masks = {"data.mask_documents": True}
    alone = {"plain": {}, "masked": masks, "dense": {"training.num_shifted_groups": None}}
    divided = {"plain-2": {}, "masked-2": masks | {"training.activation_checkpointing": "full"}}
    for ranks, runs in ((1, alone), (2, divided)):
        cases = [{"name": name, "set": changes | {"zero.stage": 0, "parallel.tp": ranks}} for name, changes in runs.items()]
        payload = {"config": raw_config, "cases": cases}
        results = run_workers(TRAIN_CASES, ranks, payload, tmp_path / f"workers-{ranks}")
        assert [result.get("error") for result in results[0]] == [None] * len(cases)
    trained = {name: tensors(folder / name / "checkpoints/step-00000003", "exp_avg") for name in alone | divided}
    for name in ("plain", "masked"):
        for parameter, tensor in trained[name].items():
            assert_close(trained[f"{name}-2"][parameter], tensor, bounds.TRAINED, floor=1e-12, what=(name, parameter))
    query = "blocks.0.attention.query.weight"
    assert bounds.relative_difference(trained["plain"][query], trained["dense"][query]) > 0.1
