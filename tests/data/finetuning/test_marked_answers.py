"""Answers marked by a chat template's {% generation %}."""

from pathlib import Path

import pytest

from megatape.data.finetuning.chat import Chat
from megatape.data.finetuning.conversation import Conversation
from megatape.data.finetuning.format import Limits
from megatape.data.tokenizers.files import load_tokenizer
from megatape.errors import RecordError
from tests.helpers.data.conversations import (
    HEADER,
    MARKED,
    MESSAGES,
    PLAIN,
    adopted,
    conversation,
    open_template,
    prompted,
    unlearned,
)

THOUGHT = "<think>\nNone.\n</think>\n\n"
MARKED_PROMPT = MARKED.replace(HEADER + "{% generation %}", "{% generation %}" + HEADER)
MARKED_THOUGHT = MARKED.replace("{% generation %}", "{% generation %}" + THOUGHT)
IN_TWO_MARKS = MARKED.replace("<|im_end|>{% endgen", "{% endgeneration %}{% generation %}<|im_end|>{% endgen")


@pytest.mark.parametrize(
    ("template", "answer"),
    [
        (MARKED_PROMPT, "A way to insert assertions.<|im_end|>"),
        (IN_TWO_MARKS, "A way to insert assertions.<|im_end|>"),
        (MARKED_THOUGHT, THOUGHT + "A way to insert assertions.<|im_end|>"),
        (
            prompted(MARKED_THOUGHT, HEADER + "<think>\n"),
            THOUGHT.removeprefix("<think>\n") + "A way to insert assertions.<|im_end|>",
        ),
        (prompted(MARKED_THOUGHT, HEADER + THOUGHT), "A way to insert assertions.<|im_end|>"),
    ],
    ids=["header", "two marks", "learned thought", "opened thought", "thought of the prompt"],
)
def test_a_marked_answer_begins_where_generation_begins(
    folders: dict[str, Path], tmp_path: Path, template: str, answer: str
) -> None:
    """Text marked before it is not learned: otherwise the model would learn to answer after tokens missing from its prompt."""
    tokenizer, chat_template = open_template(adopted(folders, tmp_path, template))
    example = Chat(tokenizer, Limits(256)).example(conversation(MESSAGES))
    for (begin, _), index in zip(example.answers, (2, 4), strict=True):
        assert example.ids[:begin] == chat_template.prompt(Conversation(MESSAGES[:index]))
    begin, end = example.answers[0]
    assert example.ids[begin:end] == tokenizer.encode_rendered(answer)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            prompted(MARKED, HEADER + "<think>\n"),
            r"before the answer in message 3 .* writes 'A way.*' where .* prompt has '<think>",
        ),
        (prompted(MARKED, HEADER + THOUGHT), "before the answer in message 3 .* where generation's prompt has '<think>"),
        (prompted(MARKED, ""), "the mark .* of answer 1 begins 22 characters after generation's prompt"),
        (
            MARKED.replace("{% generation %}", THOUGHT + "{% generation %}"),
            f"of answer 1 begins {len(THOUGHT)} characters after",
        ),
        (IN_TWO_MARKS.replace("{% endgeneration %}{% gen", "{% endgeneration %} {% gen"), "begins 28 characters after"),
        ("{% generation %}" + PLAIN + "{% endgeneration %}", "marks other text than one answer"),
        (PLAIN.replace("{% endfor %}", "{% generation %}{% endgeneration %}{% endfor %}"), "marks nothing"),
        (
            prompted(PLAIN, HEADER + "<think>\n"),
            "before the answer in message 3 .* use a template that writes the same in both",
        ),
    ],
)
def test_text_differing_from_generations_is_refused(
    folders: dict[str, Path], tmp_path: Path, template: str, message: str
) -> None:
    form = Chat(load_tokenizer(adopted(folders, tmp_path, template)), Limits(256))
    with pytest.raises(RecordError, match=message) as error:
        form.example(conversation(MESSAGES))
    assert "use a template that marks" not in str(error.value)


def test_answers_that_a_template_does_not_mark_are_counted(folders: dict[str, Path], tmp_path: Path) -> None:
    last_marked = MARKED.replace("{% if message.role == 'assistant' %}", "{% if message.role == 'assistant' and loop.last %}")
    form = Chat(load_tokenizer(adopted(folders, tmp_path, last_marked)), Limits(256))
    example = form.example(conversation(MESSAGES))
    assert len(example.answers) == 1
    assert example.counts == {"answers without a mark of the template": 1}
    with pytest.raises(RecordError, match="marks no answer of weight 1"):
        form.example(conversation([*MESSAGES[:4], unlearned(MESSAGES[4])]))
