"""Pairs and Alpaca: the tokens of prompt and answer, what is learned, and what is cut."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from megatape.data.finetuning.format import Limits
from megatape.data.finetuning.prompt_format import Alpaca
from megatape.data.shards.index import load_index
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import RecordError
from tests.helpers.data.examples import PAIRS, Prepare, examples, learned, words


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
    prompt = exactly(tokenizer, 199)
    answer = exactly(tokenizer, 20)
    ids = [*tokenizer.begin, *tokenizer.encode(prompt)]
    wanted = tokenizer.encode(answer)
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
