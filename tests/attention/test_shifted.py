"""Shifted sparse attention: against masks built from group starts, causality, and dense evaluation."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.attention.attend import attend
from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import PositionState, rotate_qk
from megatape.attention.shifted import ShiftedSparse, num_pairs, num_unshifted_heads
from megatape.attention.windows import visible
from megatape.distributed.mesh import Axis
from megatape.model.attention import Attention
from megatape.model.transformer import Transformer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.attention import random_document_starts
from tests.helpers.models.small_models import random_model, tokens_and_positions
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

pytestmark = pytest.mark.numerics

# Groups of 16 tokens start at tokens 0, 16 and 32, and shifted groups at 0, 8, 24 and 40.
LENGTH = 48
GROUPS = 3
# First token in each token's group
UNSHIFTED_STARTS = [0] * 16 + [16] * 16 + [32] * 16
SHIFTED_STARTS = [0] * 8 + [8] * 16 + [24] * 16 + [40] * 8


def masked_attention(q: Tensor, k: Tensor, v: Tensor, document_starts: Tensor | None, num_unshifted: int) -> Tensor:
    """Compute attention over all pairs with a mask, one head at a time."""
    group_size = q.shape[2] // k.shape[2]
    outputs = []
    for head in range(q.shape[2]):
        channel = head // group_size
        starts = torch.tensor(SHIFTED_STARTS)
        if channel < num_unshifted:
            starts = torch.tensor(UNSHIFTED_STARTS)
        starts = starts.expand(len(q), -1)
        if document_starts is not None:
            starts = starts.maximum(document_starts)
        scores = q[:, :, head] @ k[:, :, channel].mT / math.sqrt(q.shape[-1])
        probabilities = scores.masked_fill(~visible(starts), -math.inf).softmax(-1)
        outputs.append(probabilities @ v[:, :, channel])
    return torch.stack(outputs, 2)


def document_starts_if(masked: bool) -> Tensor | None:
    if masked:
        return random_document_starts(2, LENGTH)
    return None


@pytest.mark.parametrize("backend", ["sdpa", "blocked"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("num_unshifted", [0, 1, 2], ids="{} unshifted".format)
def test_equals_the_formula(num_unshifted: int, masked: bool, backend: str) -> None:
    """Values and gradients equal a float64 formula with grouped queries, on ranks holding heads from one half or both."""
    generator = torch.Generator().manual_seed(0)
    arguments = [torch.randn(2, LENGTH, heads, 4, generator=generator).requires_grad_() for heads in (4, 2, 2)]
    exact_arguments = [tensor.detach().double().requires_grad_() for tensor in arguments]
    document_starts = document_starts_if(masked)
    sparse = ShiftedSparse(GROUPS, num_unshifted, partial(attend, backends=(backend,)))

    q, k, v = arguments
    output, _ = sparse(q, k, v, state=None, bias=None, document_starts=document_starts, averages_state=False)
    output.sin().sum().backward()

    q, k, v = exact_arguments
    expected = masked_attention(q, k, v, document_starts, num_unshifted)
    expected.sin().sum().backward()
    assert_close(output, expected, bounds.ATTENTION, floor=1e-3)
    for argument, exact in zip(arguments, exact_arguments, strict=True):
        assert argument.grad is not None
        assert exact.grad is not None
        assert_close(argument.grad, exact.grad, bounds.ATTENTION, floor=1e-3)


def test_the_planner_counts_all_pairs_within_groups() -> None:
    """The planner's number includes pairs with a later key, masked by attention."""
    num_expected = 0.0
    for starts in (UNSHIFTED_STARTS, SHIFTED_STARTS):
        sizes = [starts.count(start) for start in set(starts)]
        num_expected += sum(size**2 for size in sizes) / 2
    assert num_pairs(LENGTH, GROUPS) == num_expected


class Masked(ShiftedSparse):
    """Attention layer computing the same result with a mask."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        state: PositionState | None,
        bias: ScoreBias | None,
        document_starts: Tensor | None,
        averages_state: bool,
        window: int | None = None,
    ) -> tuple[Tensor, None]:
        return masked_attention(*rotate_qk(q, k, state), v, document_starts, self.num_unshifted), None


def rope_model(**options: Any) -> Transformer:
    return random_model(encoding="rope", num_kv_heads=2, options=options)


@pytest.mark.parametrize("masked", [False, True])
def test_model_equals_one_with_masks(masked: bool) -> None:
    """Logits are equal, and so are gradients for embedded tokens and every weight."""
    document_starts = document_starts_if(masked)
    tokens, positions = tokens_and_positions(length=LENGTH)
    model = rope_model(num_shifted_groups=GROUPS)
    reference = rope_model()
    for module in reference.modules():
        if isinstance(module, Attention):
            module.attend_in_training = Masked(GROUPS, 1)

    logits = model(tokens, positions, document_starts)
    logits.sin().sum().backward()
    expected = reference(tokens, positions, document_starts)
    expected.sin().sum().backward()

    assert_close(logits, expected, bounds.LOGITS)
    for (name, weight), reference_weight in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert weight.grad is not None, name
        assert reference_weight.grad is not None, name
        assert_close(weight.grad, reference_weight.grad, bounds.PACKED_GRADIENTS, what=name)


@pytest.mark.parametrize(("num_tensor_ranks", "num_sequence_ranks"), [(1, 1), (2, 1), (1, 4), (2, 2), (4, 2)])
def test_ranks_shift_the_second_half_of_the_models_heads(num_tensor_ranks: int, num_sequence_ranks: int) -> None:
    num_heads_per_rank = 8 // (num_tensor_ranks * num_sequence_ranks)
    unshifted: list[bool] = []
    for tensor_rank in range(num_tensor_ranks):
        for sequence_rank in range(num_sequence_ranks):
            tensor_axis = Axis("tensor", num_tensor_ranks, tensor_rank)
            sequence_axis = Axis("sequence", num_sequence_ranks, sequence_rank)
            num_unshifted = num_unshifted_heads(8, tensor_axis, sequence_axis)
            unshifted += [True] * num_unshifted + [False] * (num_heads_per_rank - num_unshifted)
    assert unshifted == [True] * 4 + [False] * 4


@pytest.mark.parametrize(
    ("num_unshifted", "starts"), [(1, UNSHIFTED_STARTS), (0, SHIFTED_STARTS)], ids=["unshifted", "shifted"]
)
def test_a_token_sees_its_group_up_to_itself(num_unshifted: int, starts: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, LENGTH, 1, 4, generator=generator) for _ in range(3))
    v.requires_grad_()
    sparse = ShiftedSparse(GROUPS, num_unshifted)
    output, _ = sparse(q, k, v, state=None, bias=None, document_starts=None, averages_state=False)
    for token, start in enumerate(starts):
        (gradient,) = torch.autograd.grad(output[0, token].sum(), v, retain_graph=True)
        visible_tokens = gradient[0, :, 0, 0].nonzero().flatten().tolist()
        assert visible_tokens == list(range(start, token + 1))


def test_no_token_sees_the_future() -> None:
    model = rope_model(num_shifted_groups=GROUPS)
    tokens, positions = tokens_and_positions(batch=1, length=LENGTH)
    logits = model(tokens, positions)
    for index in (7, 8, 16, 24, 40, 47):
        changed_tokens = tokens.clone()
        changed_tokens[0, index] = (tokens[0, index] + 1) % 50
        changed_logits = model(changed_tokens, positions)
        assert torch.equal(changed_logits[:, :index], logits[:, :index])
        assert not torch.equal(changed_logits[:, index], logits[:, index])


def test_dense_in_evaluation() -> None:
    tokens, positions = tokens_and_positions(length=LENGTH)
    dense = rope_model().eval()
    model = rope_model(num_shifted_groups=GROUPS)
    expected = dense(tokens, positions)
    assert bounds.relative_difference(model(tokens, positions), expected) > 1e-2
    assert torch.equal(model.eval()(tokens, positions), expected)


@pytest.mark.slow
def test_same_on_tensor_parallel_ranks(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Two ranks, each with one half of the heads, equal one process after three steps, masking documents and checkpointing."""
    raw_config["model"] |= {"encoding": "rope", "num_kv_heads": 2}
    raw_config["training"] |= {"steps": 3, "num_shifted_groups": 4}
    # A large eps keeps Adam's updates smooth (see test_stages.py).
    raw_config["optimizer"]["eps"] = 1e-3
    raw_config["checkpoint"] = {"interval": 3, "keep": 1}
    raw_config["evaluation"]["interval"] = 100
    checkpoints = Path(raw_config["run"]["directory"])
    masks = {"data.mask_documents": True}
    one_rank: dict[str, dict[str, Any]] = {"plain": {}, "masked": masks, "dense": {"training.num_shifted_groups": None}}
    two_ranks: dict[str, dict[str, Any]] = {
        "plain": {},
        "masked": masks | {"training.activation_checkpointing": "full"},
    }

    def train(num_ranks: int, runs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Tensor]]:
        """Train a run per name. Return its first moments by parameter."""
        cases = []
        for name, changes in runs.items():
            settings = changes | {"zero.stage": 0, "parallel.tp": num_ranks}
            cases.append({"name": f"{name}-{num_ranks}", "set": settings})
        payload = {"config": raw_config, "cases": cases}
        results = run_workers(TRAIN_CASES, num_ranks, payload, tmp_path / f"workers-{num_ranks}")
        assert [result.get("error") for result in results[0]] == [None] * len(cases)
        step = "checkpoints/step-00000003"
        return {name: tensors(checkpoints / f"{name}-{num_ranks}" / step, "exp_avg") for name in runs}

    expected = train(1, one_rank)
    trained = train(2, two_ranks)

    for name in two_ranks:
        for parameter, moment in expected[name].items():
            assert_close(trained[name][parameter], moment, bounds.TRAINED, floor=1e-12, what=(name, parameter))
    query = "blocks.0.attention.query.weight"
    assert bounds.relative_difference(expected["plain"][query], expected["dense"][query]) > 0.1
