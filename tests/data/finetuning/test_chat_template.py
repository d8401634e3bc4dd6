"""Chat templates: the tokens of each answer, and conversations and templates that are refused."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from megatape.data.finetuning.chat import Chat
from megatape.data.finetuning.format import Limits
from megatape.data.tokenizers.files import load_tokenizer
from megatape.errors import UserError
from tests.helpers.conversations import MARKED, MESSAGES, PLAIN, adopted, conversation

FORGETFUL = PLAIN.replace("{{ message.content }}", "{{ message.content if loop.last else message.content[:2] }}")


UNENDED = PLAIN.replace("<|im_end|>", "")


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["plain", "marked"])
@pytest.mark.parametrize("inline", [False, True], ids=["file", "config"])
def test_every_answer_follows_the_tokens_that_generation_sees(
    folders: dict[str, Path], tmp_path: Path, template: str, inline: bool
) -> None:
    """Each answer is learned with its end token, behind transformers' own tokens of the conversation before it."""
    folder = adopted(folders, tmp_path, template, inline)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    if inline:
        theirs.chat_template = template
    form = Chat(load_tokenizer(folder), Limits(256))
    example = form.example(conversation(MESSAGES))
    assert form.notes == []
    whole = theirs.apply_chat_template(MESSAGES, return_dict=False)
    assert example.ids == whole[: len(example.ids)] and theirs.decode(whole[len(example.ids) :]) == "\n"
    for (begin, end), index in zip(example.answers, (2, 4), strict=True):
        prompt = theirs.apply_chat_template(MESSAGES[:index], add_generation_prompt=True, return_dict=False)
        assert example.ids[:begin] == prompt
        assert theirs.decode(example.ids[begin:end]) == MESSAGES[index]["content"] + "<|im_end|>"


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (PLAIN, [MESSAGES[1], {"role": "assistant", "content": "a<|im_end|>"}], "message 2 has the special token '<|im_end|>'"),
        (PLAIN, [MESSAGES[1], {"role": "assistant", "content": "\n\na"}], "a token of the conversation lies across the place"),
        (FORGETFUL, MESSAGES, "the chat template writes message 3, or one before it, differently in the whole"),
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN,
            MESSAGES,
            "the chat template fails: TemplateError: no system",
        ),
        (PLAIN.replace("{{ message.content }}", ""), MESSAGES[1:3], None),
        ("{% generation %}{% endgeneration %}", MESSAGES, "the chat template writes nothing for an answer"),
        ("{% if no %}{% generation %}a{% endgeneration %}{% endif %}", MESSAGES, "the chat template marks nothing"),
    ],
)
def test_conversations_without_an_exact_place(
    folders: dict[str, Path], tmp_path: Path, template: str, messages: list[dict[str, str]], message: str | None
) -> None:
    form = Chat(load_tokenizer(adopted(folders, tmp_path, template)), Limits(256))
    if message is None:
        assert form.example(conversation(messages)).answers
        return
    with pytest.raises(ValueError, match=message):
        form.example(conversation(messages))


def test_templates_that_are_refused_or_doubtful(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = adopted(folders, tmp_path, "{% for %}")
    with pytest.raises(ValueError, match=r"qwen/chat_template.jinja: the chat template is not Jinja \(line 1: "):
        Chat(load_tokenizer(folder), Limits(256))
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"qwen/chat_template.jinja is not UTF-8"):
        Chat(load_tokenizer(folder), Limits(256))
    (folder / "chat_template.jinja").write_text(UNENDED)
    (note,) = Chat(load_tokenizer(folder), Limits(256)).notes
    assert "ends answers with" in note and "generation stops at '<|im_end|>', '<|endoftext|>'" in note
    (folder / "chat_template.jinja").write_text("{{ ''.__class__.__mro__ }}")
    with pytest.raises(ValueError, match="the chat template fails: SecurityError"):
        Chat(load_tokenizer(folder), Limits(256)).example(conversation(MESSAGES))
