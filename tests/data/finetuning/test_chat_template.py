"""Chat templates: answers follow the tokens in generation's prompts, and broken templates are refused."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from megatape.data.finetuning.chat import Chat
from megatape.data.finetuning.conversation import Conversation
from megatape.data.finetuning.format import Limits
from megatape.data.tokenizers.files import load_tokenizer
from megatape.errors import UserError
from tests.helpers.data.conversations import FICKLE, MARKED, MESSAGES, PLAIN, adopted, conversation, open_template

# Only writes the beginning of every message but the last
FORGETFUL = PLAIN.replace("{{ message.content }}", "{{ message.content if loop.last else message.content[:2] }}")
REFUSES_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["plain", "marked"])
@pytest.mark.parametrize("inline", [False, True], ids=["file", "config"])
def test_every_answer_follows_the_tokens_that_generation_sees(
    folders: dict[str, Path], tmp_path: Path, template: str, inline: bool
) -> None:
    """Each answer is learned with its end token, behind transformers' own tokens of the conversation before it."""
    folder = adopted(folders, tmp_path, template, inline)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    if inline:
        reference.chat_template = template
    form = Chat(load_tokenizer(folder), Limits(256))
    example = form.example(conversation(MESSAGES))
    assert form.notes == []

    expected = reference.apply_chat_template(MESSAGES, return_dict=False)
    num_tokens = len(example.ids)
    assert example.ids == expected[:num_tokens]
    assert reference.decode(expected[num_tokens:]) == "\n"
    for (begin, end), index in zip(example.answers, (2, 4), strict=True):
        prompt = reference.apply_chat_template(MESSAGES[:index], add_generation_prompt=True, return_dict=False)
        assert example.ids[:begin] == prompt
        assert reference.decode(example.ids[begin:end]) == MESSAGES[index]["content"] + "<|im_end|>"


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (PLAIN, [MESSAGES[1], {"role": "assistant", "content": "a<|im_end|>"}], "message 2 has the special token '<|im_end|>'"),
        (
            PLAIN,
            [MESSAGES[1], {"role": "assistant", "content": "\n\na"}],
            "a token of the conversation lies across the position",
        ),
        (
            FORGETFUL,
            MESSAGES,
            "before the answer in message 3 the chat template writes '<|im_end|>.*' where .* prompt has 'at is",
        ),
        (FICKLE, MESSAGES, "writes message 3 differently once others follow it: make a record for each answer"),
        (REFUSES_SYSTEM, MESSAGES, "the chat template fails: TemplateError: no system"),
        ("{% generation %}{% endgeneration %}", MESSAGES, "the chat template marks nothing"),
        ("{% if no %}{% generation %}a{% endgeneration %}{% endif %}", MESSAGES, "the chat template marks nothing"),
    ],
)
def test_conversations_whose_answers_have_no_exact_position_are_refused(
    folders: dict[str, Path], tmp_path: Path, template: str, messages: list[dict[str, str]], message: str
) -> None:
    form = Chat(load_tokenizer(adopted(folders, tmp_path, template)), Limits(256))
    with pytest.raises(ValueError, match=message):
        form.example(conversation(messages))


def test_a_template_that_writes_no_content_has_answers(folders: dict[str, Path], tmp_path: Path) -> None:
    template = PLAIN.replace("{{ message.content }}", "")
    form = Chat(load_tokenizer(adopted(folders, tmp_path, template)), Limits(256))
    assert form.example(conversation(MESSAGES[1:3])).answers


def test_a_template_that_is_not_jinja_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = adopted(folders, tmp_path, "{% for %}")
    with pytest.raises(ValueError, match=r"qwen/chat_template.jinja: the chat template is not Jinja \(line 1: "):
        Chat(load_tokenizer(folder), Limits(256))


def test_a_template_that_is_not_utf8_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = adopted(folders, tmp_path, PLAIN)
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"qwen/chat_template.jinja is not UTF-8"):
        Chat(load_tokenizer(folder), Limits(256))


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["plain", "marked"])
def test_a_prompt_has_the_tokens_before_the_answer_that_is_learned(
    folders: dict[str, Path], tmp_path: Path, template: str
) -> None:
    """Without the answer's beginning, or with another one, the prompt would not be what the model has learned to answer."""
    tokenizer, chat_template = open_template(adopted(folders, tmp_path, template))
    example = Chat(tokenizer, Limits(256)).example(conversation(MESSAGES))
    for (begin, _), index in zip(example.answers, (2, 4), strict=True):
        assert chat_template.prompt(Conversation(MESSAGES[:index])) == example.ids[:begin]
    assert chat_template.ends == {tokenizer.token_id("<|im_end|>")}


def test_a_prompt_needs_no_position_of_earlier_answers(folders: dict[str, Path], tmp_path: Path) -> None:
    """Generation works with templates dropping earlier thoughts, although fine-tuning skips their conversations."""
    tokenizer, chat_template = open_template(adopted(folders, tmp_path, FORGETFUL))
    expected = "<|im_start|>user\nWh<|im_end|>\n<|im_start|>assistant\nA <|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n"
    asked = [*MESSAGES[1:3], {"role": "user", "content": "And?"}]
    assert chat_template.prompt(Conversation(asked)) == tokenizer.encode_rendered(expected + "<|im_start|>assistant\n")
