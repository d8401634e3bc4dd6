"""Formats of SCROLLS: prompts, and their cuts."""

from pathlib import Path

import pytest

from megatape.data.finetuning.format import Limits, RecordDropped
from megatape.data.finetuning.scrolls import Answering, Scrolls, Summarizing, first_words
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.examples import words


def test_questions_of_scrolls(tokenizer: Tokenizer) -> None:
    """The recipe at N = 8192: 7991 tokens, <s>, 200 tokens, </s>, of which the last 202 are learned."""
    record = {"id": "a", "pid": "b", "input": f"What is it?\n\n{words(9000)}", "output": words(300)}
    example = Answering(tokenizer, Limits(8192)).example(record)
    prompt = [tokenizer.bos_id, *tokenizer.encode(record["input"])]
    answer = tokenizer.encode(record["output"])
    assert example.ids == [*prompt[:7991], tokenizer.bos_id, *answer[:200], tokenizer.eos_id]
    assert example.answers == [(7991, 8193)]
    assert Answering(tokenizer, Limits(8192)).question(record["input"]) == prompt[:7991]
    assert Answering(tokenizer, Limits(8192)).answer_tokens == 201
    short = Answering(tokenizer, Limits(8192)).example(record | {"input": "What?", "output": "That."})
    assert short.ids == [1, *tokenizer.encode("What?")] + [1, *tokenizer.encode("That."), tokenizer.eos_id]


def test_summaries_of_scrolls(tokenizer: Tokenizer) -> None:
    """The middle of the prompt is cut: its first tokens and the instruction fill the places that answers of 1000 leave."""
    record = {"input": words(9000), "output": words(3000)}
    example = Summarizing(tokenizer, Limits(8192)).example(record)
    ((begin, end),) = example.answers
    assert (begin, end) == (7191, 8193)
    prompt = [1, *tokenizer.encode(f"Context:\n{record['input']}\n Please summarize this report:")]
    kept = len(tokenizer.encode("\n Please summarize this report:"))
    assert example.ids[:begin] == prompt[: 7191 - kept] + prompt[-kept:]
    assert tokenizer.decode(example.ids[:begin]).endswith(" Please summarize this report:")
    assert example.ids[begin:] == [1, *tokenizer.encode(record["output"])[:1000], tokenizer.eos_id]
    assert Summarizing(tokenizer, Limits(8192)).question(record["input"]) == example.ids[:begin]


def test_without_a_beginning_token_a_newline_separates(folders: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(folders["qwen"])
    example = Answering(tokenizer, Limits(512)).example({"input": "What?", "output": "That."})
    assert example.ids == tokenizer.encode("What?") + tokenizer.encode("\n") + tokenizer.encode("That.") + [tokenizer.eos_id]


@pytest.mark.parametrize("form", [Answering, Summarizing])
def test_empty_records_of_scrolls(tokenizer: Tokenizer, form: type[Scrolls]) -> None:
    """An instruction alone is no prompt."""
    for record, reason in (({"input": " \n", "output": "a"}, "empty prompt"), ({"input": "a", "output": ""}, "empty answer")):
        with pytest.raises(RecordDropped, match=reason):
            form(tokenizer, Limits(2048)).example(record)


def test_first_words() -> None:
    assert first_words(" a\n b  c d", 3) == " a\n b  c"
    assert first_words("a b c ", 3) == "a b c "
