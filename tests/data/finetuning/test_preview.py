"""Every token of an example is shown, and those that are learned are marked."""

import ast
from pathlib import Path

import pytest

from megatape.data.finetuning.format import Example, Limits
from megatape.data.finetuning.preview import show_example
from megatape.data.finetuning.prompt_format import Pairs
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer

PAIR = {"prompt": "What is\n\tthis <s>? " + "the fox " * 40, "answer": " é漢\nOK\x07"}


def shown(example: Example, tokenizer: Tokenizer) -> tuple[list[int], list[bool], str]:
    """Ids, marks and text as the lines have them."""
    ids = list[int]()
    marks = list[bool]()
    text = ""
    for line in show_example(example, tokenizer):
        assert line.isprintable()
        assert len(line) < 200
        for cell in line[2:].split(" │ "):
            number, _, piece = cell.partition(" ")
            ids.append(int(number))
            marks.append(line[0] == "+")
            text += ast.literal_eval(piece)
    return ids, marks, text


@pytest.mark.parametrize("name", ["llama3", "qwen", "llama2", "sentencepiece"])
def test_every_token_has_its_label(folders: dict[str, Path], tokenizer: Tokenizer, name: str) -> None:
    """Of several answers, as a conversation has them; the text is the whole, with its spaces and special tokens."""
    tokenizer = tokenizer if name == "sentencepiece" else load_tokenizer(folders[name])
    example = Pairs(tokenizer, Limits(512)).example(PAIR)
    (begin, end), length = example.answers[0], len(example.ids)
    example = Example(example.ids + example.ids[:1], [(2, 4), (begin, end)], "")
    ids, marks, text = shown(example, tokenizer)
    assert ids == example.ids
    assert marks == [2 <= place < 4 or begin <= place < length for place in range(length + 1)]
    words = ("What is\n", "\tthis <s>? the fox", "\nOK\x07", tokenizer.piece(tokenizer.eos_id))
    assert all(word is not None and word in text for word in words), text
