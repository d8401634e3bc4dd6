"""Check of an import: logits of our code and transformers agree, and wrong settings are noticed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from megatape.config import parse_model
from megatape.hf.importing.check import LIMIT, logit_difference
from megatape.hf.pretrained import read_pretrained
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_within
from tests.helpers.models.tiny_models import MODELS

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize("encoding", ["rope", "tape"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(tiny: Callable[..., Any], name: str, encoding: str) -> None:
    """TAPE's updates start at zero, so it starts as the imported model. The reference is loaded by from_pretrained."""
    folder, _ = tiny(name)
    pretrained = read_pretrained(folder)
    weights = pretrained.weights
    model = parse_model(pretrained.architecture.model.model_dump(exclude={"position_size"}) | {"encoding": encoding}, name)
    tokens = torch.randint(model.vocab_size, (2, 60), generator=torch.Generator().manual_seed(3))
    assert weights.dtype == torch.float32
    assert_within(logit_difference(pretrained, model, tokens), bounds.IMPORTED, what=name)
    theirs = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    for ours, location in weights.tensors.items():
        assert torch.equal(weights.tensor(ours), theirs[location.name]), ours


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("llama3", "scaling", None), ("qwen2", "scaling", None), ("llama", "rotary_base", 1e4), ("mistral", "norm_eps", 1e-2)],
)
def test_the_check_notices(tiny: Callable[..., Any], name: str, field: str, value: Any) -> None:
    """Each of these differences exceeds the command's bound."""
    folder, _ = tiny(name)
    pretrained = read_pretrained(folder)
    wrong = parse_model(pretrained.architecture.model.model_dump() | {field: value}, name)
    tokens = torch.arange(200)[None]
    assert logit_difference(pretrained, wrong, tokens) > 3 * LIMIT
