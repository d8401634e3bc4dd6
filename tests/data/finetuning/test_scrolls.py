"""SCROLLS formats: prompts, and where they are cut."""

from pathlib import Path

import pytest

from megatape.data.finetuning.format import Limits, RecordDropped
from megatape.data.finetuning.scrolls import Answering, Scrolls, Summarizing, first_words
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.examples import words

QUESTION = {"id": "a", "pid": "b", "input": f"What is it?\n\n{words(9000)}", "output": words(300)}
REPORT = {"input": words(9000), "output": words(3000)}


def test_a_long_question_is_cut_to_leave_200_tokens_for_its_answer(tokenizer: Tokenizer) -> None:
    """The recipe at N = 8192: 7991 prompt tokens, <s>, 200 answer tokens and </s>. The last 202 tokens are learned."""
    form = Answering(tokenizer, Limits(8192))
    example = form.example(QUESTION)
    prompt = [tokenizer.bos_id, *tokenizer.encode(QUESTION["input"])]
    answer = tokenizer.encode(QUESTION["output"])
    assert example.ids == [*prompt[:7991], tokenizer.bos_id, *answer[:200], tokenizer.eos_id]
    assert example.answers == [(7991, 8193)]
    assert form.question(QUESTION["input"]) == prompt[:7991]
    assert form.answer_tokens == 201


def test_a_short_question_is_complete(tokenizer: Tokenizer) -> None:
    example = Answering(tokenizer, Limits(8192)).example({"input": "What?", "output": "That."})
    prompt = [1, *tokenizer.encode("What?")]
    answer = [1, *tokenizer.encode("That."), tokenizer.eos_id]
    assert example.ids == prompt + answer


def test_the_middle_of_a_long_report_is_cut(tokenizer: Tokenizer) -> None:
    """The first tokens and the instruction fill the space left by a summary of 1000 tokens."""
    form = Summarizing(tokenizer, Limits(8192))
    example = form.example(REPORT)
    ((begin, end),) = example.answers
    assert begin == 7191
    assert end == 8193

    instruction = "\n Please summarize this report:"
    prompt = [1, *tokenizer.encode(f"Context:\n{REPORT['input']}{instruction}")]
    num_instruction_tokens = len(tokenizer.encode(instruction))
    num_first_tokens = begin - num_instruction_tokens
    assert example.ids[:begin] == prompt[:num_first_tokens] + prompt[-num_instruction_tokens:]
    assert tokenizer.decode(example.ids[:begin]).endswith(" Please summarize this report:")
    assert example.ids[begin:] == [1, *tokenizer.encode(REPORT["output"])[:1000], tokenizer.eos_id]
    assert form.question(REPORT["input"]) == example.ids[:begin]


def test_a_newline_separates_the_answer_without_a_beginning_token(folders: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(folders["qwen"])
    example = Answering(tokenizer, Limits(512)).example({"input": "What?", "output": "That."})
    parts = [tokenizer.encode(text) for text in ("What?", "\n", "That.")]
    assert example.ids == [*parts[0], *parts[1], *parts[2], tokenizer.eos_id]


@pytest.mark.parametrize("form", [Answering, Summarizing])
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"input": " \n", "output": "a"}, "empty prompt"),
        ({"input": "a", "output": ""}, "empty answer"),
    ],
    ids=["prompt", "answer"],
)
def test_empty_records_are_dropped(tokenizer: Tokenizer, form: type[Scrolls], record: dict[str, str], reason: str) -> None:
    """The instruction for a summary alone is no prompt."""
    with pytest.raises(RecordDropped, match=reason):
        form(tokenizer, Limits(2048)).example(record)


def test_first_words_include_the_spaces_between_them() -> None:
    assert first_words(" a\n b  c d", 3) == " a\n b  c"
    assert first_words("a b c ", 3) == "a b c "
