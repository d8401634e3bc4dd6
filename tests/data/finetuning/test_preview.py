"""Previews of examples: every token is shown, and learned tokens are marked."""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

from megatape.data.finetuning.format import Example, Limits
from megatape.data.finetuning.preview import show_example
from megatape.data.finetuning.prompt_format import Pairs
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer

PAIR = {"prompt": "What is\n\tthis <s>? " + "the fox " * 40, "answer": " é漢\nOK\x07"}


class Preview(NamedTuple):
    """Content of a preview's lines: token ids, marks on learned tokens, and the text of all tokens."""

    ids: list[int]
    marks: list[bool]
    text: str


def parse_preview(example: Example, tokenizer: Tokenizer) -> Preview:
    """Show an example, reading ids, marks and text from the lines. Checks that the lines are printable and short."""
    ids = []
    marks = []
    text = ""
    for line in show_example(example, tokenizer):
        assert line.isprintable()
        assert len(line) < 200
        for cell in line[2:].split(" │ "):
            number, _, piece = cell.partition(" ")
            ids.append(int(number))
            marks.append(line[0] == "+")
            text += ast.literal_eval(piece)
    return Preview(ids, marks, text)


@pytest.mark.parametrize("name", ["llama3", "qwen", "llama2", "sentencepiece"])
def test_every_token_is_shown_with_its_mark(folders: dict[str, Path], tokenizer: Tokenizer, name: str) -> None:
    """The example has two answers, as a conversation has. Its text is complete, with spaces and special tokens."""
    if name != "sentencepiece":
        tokenizer = load_tokenizer(folders[name])
    pair = Pairs(tokenizer, Limits(512)).example(PAIR)
    (begin, end) = pair.answers[0]
    example = Example([*pair.ids, pair.ids[0]], [(2, 4), (begin, end)], "")

    preview = parse_preview(example, tokenizer)
    assert preview.ids == example.ids
    marked = [index for index, is_marked in enumerate(preview.marks) if is_marked]
    assert marked == [2, 3, *range(begin, len(pair.ids))]
    end_piece = tokenizer.piece(tokenizer.eos_id)
    assert end_piece is not None
    for text in ("What is\n", "\tthis <s>? the fox", "\nOK\x07", end_piece):
        assert text in preview.text
