"""Each text of a batch ends at its own tokens and stop strings."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from megatape.hf.generation.continuations import continue_prompts
from megatape.hf.generation.prompts import Prompt
from megatape.hf.generation.sampling import Sampling
from megatape.hf.loading.exact_tokenizer import read_tokenizer
from megatape.hf.loading.loaded_model import LoadedModel
from tests.helpers.models.imported import FAMILIES
from tests.helpers.models.scripted_model import ScriptedModel


@pytest.fixture
def qwen_tokenizer(tmp_path: Path) -> PreTrainedTokenizerBase:
    return read_tokenizer(FAMILIES["qwen"](tmp_path / "qwen"))


def test_stop_strings_end_each_text_of_a_batch(qwen_tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [qwen_tokenizer(text).input_ids for text in ("one. two", "and more than that", "1.")]
    model = LoadedModel("a script", ScriptedModel(rows, None), qwen_tokenizer)
    prompts = [Prompt([7]), Prompt([7, 8]), Prompt([9])]
    (first,), (second,), (third,) = continue_prompts(model, prompts, Sampling(stop=(".", "than")))
    assert first == ("one", "stop string")
    assert second == ("and more ", "stop string")
    assert third == ("1", "stop string")


def test_each_text_of_a_batch_ends_at_its_own_tokens(qwen_tokenizer: PreTrainedTokenizerBase) -> None:
    """The token after an answer ends a conversation's answer, not the text of a prompt beside it."""
    turn_end = 602
    (x,) = qwen_tokenizer("x").input_ids
    row = [x, turn_end, x]
    model = LoadedModel("a script", ScriptedModel([row, row], 600), qwen_tokenizer)
    prompts = [Prompt([7]), Prompt([7], frozenset({turn_end}))]
    (text,), (answer,) = continue_prompts(model, prompts, Sampling(max_new_tokens=3))
    assert text == ("xx", "length")
    assert answer == ("x", "end token")
