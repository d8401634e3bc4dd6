"""Tools, tool calls and their results in conversations with a chat template."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from megatape.data.finetuning.chat import Chat
from megatape.data.finetuning.conversation import Conversation, parse_conversation
from megatape.data.finetuning.format import Limits
from megatape.errors import RecordError
from tests.helpers.data.conversations import MESSAGES, PLAIN, adopted, conversation, open_template

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
WITH_TOOLS = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}" + PLAIN
CALLING = WITH_TOOLS.replace(
    "{{ message.content }}",
    "{{ message.content }}{% for call in message.tool_calls or [] %}<tool>{{ call.function | tojson }}{% endfor %}",
)
CALL: list[dict[str, Any]] = [
    {"role": "user", "content": "Find it."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "7", "type": "function", "function": {"name": "search", "arguments": '{"for": "it"}'}}],
    },
    {"role": "tool", "content": "Here.", "tool_call_id": "7", "name": "search"},
    {"role": "assistant", "content": "Found."},
]
ENCODING = CALLING.replace("{{ message.content }}", "{{ message.content|tojson }}")
WITHOUT_ARGUMENTS = CALLING.replace("call.function | tojson", "call.function.name")
WITHOUT_SYSTEM = PLAIN.replace("{% for message in messages %}", "{% for message in messages if message.role != 'system' %}")


@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS)], ids=["list", "text"])
def test_tools_of_a_record_go_through_the_template(folders: dict[str, Path], tmp_path: Path, tools: Any) -> None:
    """Tools before each answer are the same as in transformers and in generation."""
    folder = adopted(folders, tmp_path, WITH_TOOLS)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer, chat_template = open_template(folder)
    example = Chat(tokenizer, Limits(256)).example(conversation(MESSAGES[1:]) | {"tools": tools})
    for (begin, _), index in zip(example.answers, (2, 4), strict=True):
        asked = MESSAGES[1:index]
        expected = reference.apply_chat_template(asked, tools=TOOLS, add_generation_prompt=True, return_dict=False)
        assert example.ids[:begin] == expected
        assert chat_template.prompt(Conversation(asked, TOOLS)) == expected
    first_begin, _ = example.answers[0]
    assert "search" in tokenizer.decode(example.ids[:first_begin])


@pytest.mark.parametrize(
    ("template", "tools", "message"),
    [
        (PLAIN, TOOLS, "the chat template does not write `tools`"),
        (WITH_TOOLS, [{"description": "<|im_end|>"}], "`tools` has the special token '<|im_end|>'"),
    ],
)
def test_tools_that_a_template_cannot_write_are_refused(
    folders: dict[str, Path], tmp_path: Path, template: str, tools: list[dict[str, Any]], message: str
) -> None:
    tokenizer, chat_template = open_template(adopted(folders, tmp_path, template))
    with pytest.raises(RecordError, match=message):
        Chat(tokenizer, Limits(256)).example(conversation(MESSAGES[1:]) | {"tools": tools})
    with pytest.raises(RecordError, match=message):
        chat_template.prompt(Conversation(MESSAGES[1:2], tools))


def test_calls_of_tools_are_answers(folders: dict[str, Path], tmp_path: Path) -> None:
    """Arguments become objects for the template, even if they are JSON text as in OpenAI's format. Tool results are context."""
    tokenizer, chat_template = open_template(adopted(folders, tmp_path, CALLING))
    example = Chat(tokenizer, Limits(256)).example(conversation(CALL) | {"tools": TOOLS})
    (call_begin, call_end), (answer_begin, answer_end) = example.answers
    call = '<tool>{"name": "search", "arguments": {"for": "it"}}<|im_end|>'
    assert example.ids[call_begin:call_end] == tokenizer.encode_rendered(call)
    assert example.ids[answer_begin:answer_end] == tokenizer.encode_rendered("Found.<|im_end|>")

    asked = parse_conversation(conversation(CALL[:3]) | {"tools": TOOLS})
    assert chat_template.prompt(asked) == example.ids[:answer_begin]
    assert "Here." in tokenizer.decode(example.ids[call_end:answer_begin])


@pytest.mark.parametrize(
    ("template", "arguments", "message"),
    [
        (PLAIN, "{}", "the chat template does not write the `tool_calls` of message 2"),
        (
            CALLING.replace("{{ message.role }}\n{{ message.content }}", "{{ message.role }}\n"),
            "{}",
            "does not write message 3, the result of a tool",
        ),
        (CALLING, '{"a": "<|im_end|>"}', "`tool_calls` has the special token '<|im_end|>'"),
    ],
)
def test_calls_that_a_template_cannot_write_are_refused(
    folders: dict[str, Path], tmp_path: Path, template: str, arguments: str, message: str
) -> None:
    tokenizer, chat_template = open_template(adopted(folders, tmp_path, template))
    call = {"function": {"name": "search", "arguments": arguments}}
    messages = [CALL[0], {"role": "assistant", "tool_calls": [call]}, *CALL[2:]]
    with pytest.raises(RecordError, match=message):
        Chat(tokenizer, Limits(256)).example(conversation(messages))
    with pytest.raises(RecordError, match=message):
        chat_template.prompt(parse_conversation(conversation(messages[:3])))


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (WITHOUT_ARGUMENTS, CALL, "does not write the `tool_calls` of message 2 with their arguments"),
        (PLAIN, CALL, "does not write the `tool_calls` of message 2 with their name"),
        (WITHOUT_SYSTEM, MESSAGES, "does not write message 1, the system prompt"),
    ],
)
def test_conversations_with_parts_that_a_template_drops_are_refused(
    folders: dict[str, Path], tmp_path: Path, template: str, messages: list[Any], message: str
) -> None:
    """Looking for a tool's name does not tell whether a call is there, since the text has the name in any case."""
    written = template.replace("{% for message", "{% if tools %}{{ tools|tojson }}{% endif %}{% for message", 1)
    tokenizer, _ = open_template(adopted(folders, tmp_path, written))
    with pytest.raises(RecordError, match=message):
        Chat(tokenizer, Limits(512)).example(conversation(messages) | {"tools": TOOLS})


def test_a_template_may_write_tool_results_as_json(folders: dict[str, Path], tmp_path: Path) -> None:
    """JSON escapes quotes in a result, so the conversation does not contain the result's text literally."""
    tokenizer, _ = open_template(adopted(folders, tmp_path, ENCODING))
    messages = [*CALL[:2], CALL[2] | {"content": '{"t": 20}'}, {"role": "assistant", "content": "20 degrees."}]
    example = Chat(tokenizer, Limits(512)).example(conversation(messages) | {"tools": TOOLS})
    assert len(example.answers) == 2
