"""Pairs: the tokens of prompt and answer, what is learned, and what is cut."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from megatape.data.finetuning.prompt_format import (
    Alpaca,
    Answering,
    FieldMapping,
    Limits,
    RecordDropped,
    Scrolls,
    Summarizing,
    first_words,
)
from megatape.data.shards.index import load_index
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import RecordError, UserError
from tests.helpers.examples import PAIRS, Prepare, examples, learned, words

RECORD = {"question": "q", "answers": {"text": ["a", "b"], "start": [1]}, "a.b": "dotted", "kept": 1}


def test_fields_by_name_and_path() -> None:
    mapping = FieldMapping(["prompt=question", "answer=answers.text.1", "kept=a.b"])
    assert mapping.apply(RECORD) == RECORD | {"prompt": "q", "answer": "b", "kept": "dotted"}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("questions", "'questions' is missing; the record has 'question', 'answers', 'a.b', 'kept' (did you mean question?)"),
        ("answers.txt.0", "'txt' is missing; answers has 'text', 'start' (did you mean text?)"),
        ("answers.text.2", "'2' is missing; answers.text is a list of 2"),
        ("answers.text.-1", "'-1' is missing; answers.text is a list of 2"),
        ("question.x", "'x' is missing; question is 'q'"),
    ],
)
def test_a_missing_part_is_named(path: str, message: str) -> None:
    with pytest.raises(RecordError) as raised:
        FieldMapping([f"answer={path}"]).apply(RECORD)
    assert str(raised.value) == message


@pytest.mark.parametrize("texts", [["prompt"], ["=a"], ["a="], ["a=b", "a=c"]])
def test_malformed_mappings(texts: list[Any]) -> None:
    with pytest.raises(UserError, match="fields '.*': give each field of the format once, such as answer=response"):
        FieldMapping(texts)


@pytest.mark.parametrize("family", [None, "llama3", "qwen", "llama2"])
def test_the_prompt_has_the_tokens_that_generation_sees(
    prepare: Prepare, tokenizer: Tokenizer, folders: dict[str, Path], family: str | None
) -> None:
    """Ours, and those of transformers with special tokens as text; the answer is learned to its end, the prompt is not."""
    chosen = tokenizer if family is None else load_tokenizer(folders[family])
    if family is None:
        prompts = [[*chosen.begin, *chosen.encode(pair["prompt"])] for pair in PAIRS]
    else:
        theirs = PreTrainedTokenizerFast.from_pretrained(folders[family], split_special_tokens=True)
        prompts = [theirs(pair["prompt"])["input_ids"] for pair in PAIRS]
    directory, _ = prepare("pairs", PAIRS, chosen, sequence_length=128)
    answers = [[*chosen.encode(pair["answer"]), chosen.eos_id] for pair in PAIRS]
    assert all(len(prompt) > 2 for prompt in prompts)
    assert examples(directory, 128) == [learned(*both) for both in zip(prompts, answers, strict=True)]


@pytest.mark.parametrize(
    ("limits", "prompt_parts", "answer_part"),
    [
        ({"sequence_length": 99, "truncation": "end"}, [slice(0, 79)], slice(20)),
        ({"sequence_length": 99}, [slice(0, 40), slice(161, 200)], slice(20)),
        ({"sequence_length": 99, "max_answer": 5}, [slice(0, 47), slice(153, 200)], slice(5)),
        ({"sequence_length": 99, "max_prompt": 10, "truncation": "end"}, [slice(0, 10)], slice(20)),
        ({"sequence_length": 219, "max_prompt": 10}, [slice(0, 5), slice(195, 200)], slice(20)),
        ({"sequence_length": 220}, [slice(0, 200)], slice(20)),
    ],
)
def test_what_is_cut(
    prepare: Prepare, tokenizer: Tokenizer, limits: dict[str, Any], prompt_parts: list[slice], answer_part: slice
) -> None:
    """A prompt of 200 tokens and an answer of 20 and its end, in N + 1 places."""
    prompt, answer = exactly(tokenizer, 199), exactly(tokenizer, 20)
    ids, wanted = [*tokenizer.begin, *tokenizer.encode(prompt)], tokenizer.encode(answer)
    directory, counts = prepare("pairs", [{"prompt": prompt, "answer": answer}], **limits)
    kept = [token for part in prompt_parts for token in ids[part]]
    assert examples(directory, limits["sequence_length"]) == [learned(kept, [*wanted[answer_part], tokenizer.eos_id])]
    expected: dict[str, int] = {}
    if len(kept) < 200:
        expected |= {"prompts cut": 2, "tokens cut from prompts": 2 * (200 - len(kept))}
    if answer_part.stop < 20:
        expected |= {"answers cut": 2, "tokens cut from answers": 2 * (20 - answer_part.stop)}
    assert dict(counts.cut) == load_index(directory).counts == expected


def exactly(tokenizer: Tokenizer, count: int) -> str:
    """A text of so many tokens."""
    text = tokenizer.decode(tokenizer.encode(words(count))[:count])
    assert len(tokenizer.encode(text)) == count
    return text


def test_prompts_are_stanfords(tokenizer: Tokenizer) -> None:
    """Copied from train.py of stanford_alpaca, but for the line end after the last colon, as in the data of its followers."""
    form = Alpaca(tokenizer, Limits(2048))
    begin = "Below is an instruction that describes a task"
    request = "Write a response that appropriately completes the request.\n\n### Instruction:\n"
    alone = f"{begin}. {request}Add {{1}}.\n\n### Response:\n"
    for record in ({}, {"input": ""}, {"input": " "}, {"input": None}, {"system": "", "history": []}):
        assert form.texts({"instruction": "Add {1}.", "output": "2"} | record) == (alone, "2")
    given = f"{begin}, paired with an input that provides further context. {request}Add.\n\n### Input:\n1\n\n### Response:\n"
    assert form.texts({"instruction": "Add.", "input": "1", "output": "2"}) == (given, "2")
    with pytest.raises(RecordError, match="empty prompt"):
        form.example({"instruction": " ", "output": "2"})


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
def test_bad_records(tokenizer: Tokenizer, record: dict[str, object], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        Alpaca(tokenizer, Limits(2048)).example(record)


def test_questions_of_scrolls(tokenizer: Tokenizer) -> None:
    """The recipe at N = 8192: 7991 tokens, <s>, 200 tokens, </s>, of which the last 202 are learned."""
    record = {"id": "a", "pid": "b", "input": f"What is it?\n\n{words(9000)}", "output": words(300)}
    example = Answering(tokenizer, Limits(8192)).example(record)
    prompt, answer = [tokenizer.bos_id, *tokenizer.encode(record["input"])], tokenizer.encode(record["output"])
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
