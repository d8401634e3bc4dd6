"""Formats pairs and Alpaca: prompt and answer tokens, what is learned, and what is cut."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from transformers import PreTrainedTokenizerFast

from megatape.data.finetuning.format import Limits
from megatape.data.finetuning.prompt_format import Alpaca
from megatape.data.shards.index import load_index
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import RecordError
from tests.helpers.data.examples import PAIRS, Prepare, examples, learned, words


def check_examples(directory: Path, prompts: list[list[int]], tokenizer: Tokenizer) -> None:
    """Check that PAIRS become examples with these prompts, learning answers with their end token."""
    expected = []
    for pair, prompt in zip(PAIRS, prompts, strict=True):
        assert len(prompt) > 2
        answer = [*tokenizer.encode(pair["answer"]), tokenizer.eos_id]
        expected.append(learned(prompt, answer))
    assert examples(directory, 128) == expected


def test_the_prompt_has_the_tokens_that_generation_sees(prepare: Prepare, tokenizer: Tokenizer) -> None:
    directory, _ = prepare("pairs", PAIRS, tokenizer, sequence_length=128)
    prompts = [[*tokenizer.begin, *tokenizer.encode(pair["prompt"])] for pair in PAIRS]
    check_examples(directory, prompts, tokenizer)


@pytest.mark.parametrize("family", ["llama3", "qwen", "llama2"])
def test_the_prompt_has_the_tokens_of_transformers(prepare: Prepare, folders: dict[str, Path], family: str) -> None:
    """Special tokens written out in a prompt are text."""
    tokenizer = load_tokenizer(folders[family])
    reference = PreTrainedTokenizerFast.from_pretrained(folders[family], split_special_tokens=True)
    directory, _ = prepare("pairs", PAIRS, tokenizer, sequence_length=128)
    prompts = [reference(pair["prompt"])["input_ids"] for pair in PAIRS]
    check_examples(directory, prompts, tokenizer)


def text_of_length(tokenizer: Tokenizer, num_tokens: int) -> str:
    """Return a text with exactly this many tokens."""
    text = tokenizer.decode(tokenizer.encode(words(num_tokens))[:num_tokens])
    assert len(tokenizer.encode(text)) == num_tokens
    return text


class CutCase(NamedTuple):
    """Limits, and what remains when a prompt has 200 tokens and its answer 20."""

    limits: dict[str, Any]
    prompt_parts: list[slice]
    answer_tokens: int


CUT_CASES = [
    CutCase({"sequence_length": 99, "truncation": "end"}, [slice(0, 79)], answer_tokens=20),
    CutCase({"sequence_length": 99}, [slice(0, 40), slice(161, 200)], answer_tokens=20),
    CutCase({"sequence_length": 99, "max_answer": 5}, [slice(0, 47), slice(153, 200)], answer_tokens=5),
    CutCase({"sequence_length": 99, "max_prompt": 10, "truncation": "end"}, [slice(0, 10)], answer_tokens=20),
    CutCase({"sequence_length": 219, "max_prompt": 10}, [slice(0, 5), slice(195, 200)], answer_tokens=20),
    CutCase({"sequence_length": 220}, [slice(0, 200)], answer_tokens=20),
]


@pytest.mark.parametrize("case", CUT_CASES, ids=lambda case: str(case.limits))
def test_prompts_and_answers_are_cut_to_the_limits(prepare: Prepare, tokenizer: Tokenizer, case: CutCase) -> None:
    """Prompt, answer and end token share N + 1 tokens. Both splits have the same record, so counts are doubled."""
    prompt = text_of_length(tokenizer, 199)
    answer = text_of_length(tokenizer, 20)
    directory, counts = prepare("pairs", [{"prompt": prompt, "answer": answer}], **case.limits)

    prompt_ids = [*tokenizer.begin, *tokenizer.encode(prompt)]
    remaining: list[int] = []
    for part in case.prompt_parts:
        remaining += prompt_ids[part]
    answer_ids = [*tokenizer.encode(answer)[: case.answer_tokens], tokenizer.eos_id]
    assert examples(directory, case.limits["sequence_length"]) == [learned(remaining, answer_ids)]

    expected_counts: dict[str, int] = {}
    if len(remaining) < 200:
        expected_counts |= {"prompts cut": 2, "tokens cut from prompts": 2 * (200 - len(remaining))}
    if case.answer_tokens < 20:
        expected_counts |= {"answers cut": 2, "tokens cut from answers": 2 * (20 - case.answer_tokens)}
    assert dict(counts.cut) == expected_counts
    assert load_index(directory).counts == expected_counts


ALPACA_BEGIN = "Below is an instruction that describes a task"
ALPACA_REQUEST = "Write a response that appropriately completes the request.\n\n### Instruction:\n"


@pytest.mark.parametrize("empty_fields", [{}, {"input": ""}, {"input": " "}, {"input": None}, {"system": "", "history": []}])
def test_an_instruction_without_input_has_the_prompt_of_stanford(tokenizer: Tokenizer, empty_fields: dict[str, Any]) -> None:
    """The formats are stanford_alpaca's, except for ending a line after the last colon, as later data sets do."""
    form = Alpaca(tokenizer, Limits(2048))
    expected = f"{ALPACA_BEGIN}. {ALPACA_REQUEST}Add {{1}}.\n\n### Response:\n"
    assert form.texts({"instruction": "Add {1}.", "output": "2"} | empty_fields) == (expected, "2")


def test_an_instruction_with_input_has_the_prompt_of_stanford(tokenizer: Tokenizer) -> None:
    form = Alpaca(tokenizer, Limits(2048))
    context = ", paired with an input that provides further context. "
    expected = f"{ALPACA_BEGIN}{context}{ALPACA_REQUEST}Add.\n\n### Input:\n1\n\n### Response:\n"
    assert form.texts({"instruction": "Add.", "input": "1", "output": "2"}) == (expected, "2")


def test_an_empty_instruction_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RecordError, match="empty prompt"):
        Alpaca(tokenizer, Limits(2048)).example({"instruction": " ", "output": "2"})


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"instruction": "a"}, "'output' is missing; the record has 'instruction'"),
        ({"instruction": "a", "output": "b", "input": 3}, "'input' is 3, not a string"),
        ({"instruction": "a", "output": "b", "history": [["c", "d"]]}, "`history`, which is not part of Alpaca's prompt"),
        ({"instruction": "a", "output": "b", "system": "c"}, "the record has `system`, which is not part of Alpaca's"),
        ({"instructions": "a", "output": "b"}, r"\(did you mean instructions\?\)"),
    ],
)
def test_unfit_records_of_alpaca_are_refused(tokenizer: Tokenizer, record: dict[str, object], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        Alpaca(tokenizer, Limits(2048)).example(record)
