"""PaTH: without reflections, and with reflections that cancel each other."""

import pytest
import torch

from megatape.encodings.path import PathBias
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.encoding_comparison import assert_different_functions, assert_equal_functions
from tests.helpers.models.small_models import random_model

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize(
    ("encoding", "reference_encoding", "strength_name"),
    [("path", "nope", "strength"), ("path_fox", "fox", "reflections.strength")],
)
def test_path_without_reflections_is_nope_or_fox(encoding: str, reference_encoding: str, strength_name: str) -> None:
    model = random_model(encoding=encoding)
    reference = random_model(encoding=reference_encoding)
    shared = {}
    for name, weight in reference.state_dict().items():
        shared[name.replace("features.gate.", "features.gates.gate.")] = weight
    model.load_state_dict(shared, strict=False)
    assert_different_functions(model, reference)
    for block in model.blocks:
        strength = block.attention.token_features.get_submodule(strength_name)
        strength.weight.data.zero_()
        strength.bias.data.fill_(-800.0)
    assert_equal_functions(model, reference)


@pytest.mark.parametrize("length", [40, 64, 200])
def test_path_with_one_mirror_knows_only_the_parity_of_distances(length: int) -> None:
    """Reflecting twice changes nothing, within a chunk and across chunks, and the error does not grow with the tokens."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, length, 4, 8, generator=generator)
    k = torch.randn(1, length, 2, 8, generator=generator)
    # The vector's length is exactly 1. Powers of any other length would grow.
    direction = torch.tensor([0.5] * 4 + [0.0] * 4)
    w = direction.expand(1, length, 2, 8)
    strength = torch.full((1, length, 2, 1), 2.0)
    bias = PathBias(4, 2, 8)
    every_token = slice(0, length)

    scores = bias.scores(bias(q, k, (w, strength)), None, past=0)
    block = scores.block(scores.weights, every_token, every_token)[0]

    queries = q[0].transpose(0, 1)
    keys = k[0].repeat_interleave(2, 1).transpose(0, 1)
    mirrored = -2 * (queries @ direction)[:, :, None] * (keys @ direction)[:, None] / 8**0.5
    index = torch.arange(length)
    is_odd = (index[:, None] - index) % 2 == 1
    expected = torch.where(is_odd, mirrored, 0.0).tril()
    assert_close(block.tril(), expected, bounds.ATTENTION)
