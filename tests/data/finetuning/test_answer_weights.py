"""Answers of weight 0 are context only."""

from pathlib import Path
from typing import Any

import pytest

from megatape.data.finetuning.chat import Chat
from megatape.data.finetuning.conversation import Conversation
from megatape.data.finetuning.format import Limits
from megatape.data.tokenizers.files import load_tokenizer
from tests.helpers.data.conversations import FICKLE, MARKED, MESSAGES, PLAIN, adopted, conversation, open_template, unlearned


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["plain", "marked"])
def test_an_answer_of_weight_0_is_only_context(folders: dict[str, Path], tmp_path: Path, template: str) -> None:
    form = Chat(load_tokenizer(adopted(folders, tmp_path, template)), Limits(256))
    expected = form.example(conversation(MESSAGES))
    example = form.example(conversation([*MESSAGES[:2], unlearned(MESSAGES[2]), *MESSAGES[3:]]))
    assert example.ids == expected.ids
    assert example.answers == expected.answers[1:]


def test_an_answer_of_weight_0_needs_no_exact_position(folders: dict[str, Path], tmp_path: Path) -> None:
    """Weight 0 allows learning from templates dropping earlier thoughts, one answer in a conversation at a time."""
    tokenizer, chat_template = open_template(adopted(folders, tmp_path, FICKLE))
    example = Chat(tokenizer, Limits(256)).example(conversation([*MESSAGES[:2], unlearned(MESSAGES[2]), *MESSAGES[3:]]))
    ((begin, _),) = example.answers
    assert example.ids[:begin] == chat_template.prompt(Conversation(MESSAGES[:4]))


@pytest.mark.parametrize("is_marked", [False, True])
def test_an_answer_of_weight_0_may_lack_a_thought(folders: dict[str, Path], tmp_path: Path, is_marked: bool) -> None:
    """Templates dropping earlier thoughts write earlier answers differently from generation's prompt, with marks or without."""
    thought = "<think>\n\n</think>\n\n"
    answer = "{% if loop.last %}" + thought + "{% endif %}{{ message.content }}<|im_end|>"
    if is_marked:
        answer = "{% generation %}" + answer + "{% endgeneration %}"
    template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% if message.role == 'assistant' %}" + answer + "{% else %}{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n" + thought + "{% endif %}"
    )
    tokenizer, _ = open_template(adopted(folders, tmp_path, template))
    messages: list[dict[str, Any]] = [*MESSAGES[1:2], unlearned(MESSAGES[2]), *MESSAGES[3:5]]
    example = Chat(tokenizer, Limits(512)).example(conversation(messages))
    ((begin, end),) = example.answers
    assert tokenizer.decode(example.ids[begin:end]).startswith(messages[-1]["content"])
