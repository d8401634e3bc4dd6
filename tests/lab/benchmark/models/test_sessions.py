"""Reading prompts and decoding after them."""

import pytest
import torch

from megatape.config import ModelConfig
from megatape.lab.benchmark.models.exported import build
from megatape.lab.benchmark.models.sessions import PromptBatch, StaticSession
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.small_models import SHAPE

CPU = torch.device("cpu")
SMALL = ModelConfig(**SHAPE)


def test_padded_prompts() -> None:
    prompt = PromptBatch(3, "left", 10).prompt(7, CPU)

    assert prompt["attention_mask"].sum(1).tolist() == [5, 10, 5]
    assert int(prompt["input_ids"].max()) == 6


def test_prompts_without_padding() -> None:
    assert PromptBatch(2, "none", 10).prompt(7, CPU)["attention_mask"].all()


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize("name", ["Llama", "tape"])
def test_static_session(name: str) -> None:
    """Logits match those for the whole text in one call, and further rounds compile nothing. One prompt is padded."""
    model = build(SMALL, ["tape"], 24, CPU, torch.float32)[name]
    session = StaticSession(model, PromptBatch(2, "left", 10).prompt(7, CPU))
    with torch.no_grad():
        expected = model(session.tokens, attention_mask=session.mask, position_ids=session.positions).logits

    torch.compiler.reset()
    for stance in ("default", "fail_on_recompile"):
        with torch.compiler.set_stance(stance):
            assert_close(session.read(), expected[:, 9:10], bounds.EXPORTED)
            assert_close(session.decode(), expected[:, -1:], bounds.EXPORTED)
