"""Parses conversations in records from OpenAI, TRL, Axolotl and LLaMA-Factory.

Fields affecting what is learned are either read or rejected by name, never ignored.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from megatape.data.finetuning.fields import missing_field
from megatape.errors import RecordError

# Role and content (a text). Messages from the assistant may have `tool_calls`, those from tools `tool_call_id` and `name`.
Message = dict[str, Any]
# JSON schema of a function.
Tool = dict[str, Any]

# Fields saying whether an answer is learned: OpenAI's and Axolotl's.
WEIGHTS = ("weight", "train")
# Role -> fields about tools, in OpenAI's records only.
TOOL_FIELDS = {"assistant": ("tool_calls",), "tool": ("tool_call_id", "name")}
# Unsupported fields, which would change the text of the conversation.
UNSUPPORTED = ("functions", "documents", "images", "videos", "audios", "chat_template_kwargs")
# Roles in templates.
ROLES = ("system", "user", "assistant", "tool")
# Role in ShareGPT -> role in templates.
SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
}


@dataclass(frozen=True)
class Conversation:
    """A conversation.

    Attributes:
        messages: Messages with role, content and tool calls.
        tools: Tools offered to the assistant.
        not_learned: Indices of answers excluded from learning.
    """

    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    not_learned: frozenset[int] = frozenset()

    @property
    def answers(self) -> list[int]:
        """Indices of all answers in `messages`."""
        return [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]

    @property
    def learned(self) -> list[int]:
        """Indices of the learned answers in `messages`."""
        return [index for index in self.answers if index not in self.not_learned]


class MessageFields(NamedTuple):
    """Field names in a record with messages.

    Attributes:
        messages: Field with the list of messages.
        role: Field of a message with its role.
        content: Field of a message with its text.
        roles: Value of `role` -> role in templates.
    """

    messages: str
    role: str
    content: str
    roles: Mapping[str, str]


OPENAI = MessageFields("messages", "role", "content", {role: role for role in ROLES})
SHAREGPT = MessageFields("conversations", "from", "value", SHAREGPT_ROLES)


def parse_conversation(record: dict[str, Any], fields: MessageFields = OPENAI) -> Conversation:
    """Parse the conversation in a record.

    Args:
        record: Record with messages, and optionally `tools` and a system prompt in `system`.
        fields: Field names.

    Raises:
        RecordError: A message is malformed, or a field is not supported.
    """
    if fields.messages not in record:
        raise missing_field(fields.messages, record)
    values = record[fields.messages]
    if not isinstance(values, list) or not values:
        raise RecordError(f"`{fields.messages}` is {values!r:.40}, not a list of messages")
    others = [name for name in UNSUPPORTED if record.get(name)]
    if others:
        raise RecordError(f"the record has `{'`, `'.join(others)}`, which is not supported: remove it")
    messages = []
    not_learned = set()
    for number, value in enumerate(values, start=1):
        if not isinstance(value, dict):
            raise RecordError(f"message {number} is {value!r:.40}, not an object")
        message = _read_message(value, number, fields)
        if not _is_learned(value, number, message["role"]):
            not_learned.add(number - 1)
        messages.append(message)
    if messages[0]["role"] in ("assistant", "tool"):
        raise RecordError(f"message 1 is of the {messages[0]['role']}: there is nothing for it to answer")
    system = _read_system(record, messages)
    if system is not None:
        messages.insert(0, system)
        not_learned = {index + 1 for index in not_learned}
    return Conversation(messages, _read_tools(record), frozenset(not_learned))


def _read_message(value: dict[str, Any], number: int, fields: MessageFields) -> Message:
    name = value.get(fields.role)
    if not isinstance(name, str) or name not in fields.roles:
        raise RecordError(f"message {number}: `{fields.role}` is {name!r:.40}, not one of {', '.join(fields.roles)}")
    role = fields.roles[name]
    tool_fields: tuple[str, ...] = ()
    if fields is OPENAI:
        tool_fields = TOOL_FIELDS.get(role, ())
    known = (fields.role, fields.content, *WEIGHTS, *tool_fields)
    filled = {key: content for key, content in value.items() if content not in (None, "", [], {})}
    others = [key for key in filled if key not in known]
    if others:
        names = "`, `".join(known)
        raise RecordError(f"message {number} has `{'`, `'.join(others)}`: only `{names}` are known")
    content = value.get(fields.content)
    if content is None and "tool_calls" in filled:
        content = ""
    message: Message = {"role": role, "content": _read_content(content, f"message {number}: `{fields.content}`")}
    for key in tool_fields:
        if key == "tool_calls" and key in filled:
            message[key] = _read_calls(filled[key], f"message {number}: `{key}`")
        elif key in filled:
            message[key] = str(filled[key])
    return message


def _read_calls(value: Any, path: str) -> list[dict[str, Any]]:
    """Return tool calls in the form expected by templates: arguments as an object, where OpenAI has JSON text."""
    if not isinstance(value, list):
        raise RecordError(f"{path} is {value!r:.40}, not a list of calls")
    calls = []
    for call in value:
        function = None
        if isinstance(call, dict):
            function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RecordError(f'{path} has the call {call!r:.40}, without {{"function": {{"name": "...", "arguments": ...}}}}')
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            with suppress(ValueError):
                arguments = json.loads(arguments)
        if not isinstance(arguments, dict | None):
            raise RecordError(f"{path} calls {function['name']} with {arguments!r:.40}, not an object")
        read = {"type": "function", "function": {"name": function["name"], "arguments": arguments or {}}}
        if isinstance(call.get("id"), str):
            read["id"] = call["id"]
        calls.append(read)
    return calls


def _read_content(value: Any, path: str) -> str:
    """Return the text of a message, joining OpenAI's text parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RecordError(f"{path} is {value!r:.40}, not a string")
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RecordError(f'{path} has the part {part!r:.40}: only parts {{"type": "text", "text": "..."}} are known')
        texts.append(part["text"])
    return "".join(texts)


def _is_learned(value: dict[str, Any], number: int, role: str) -> bool:
    """Whether a message, if it is an answer, is learned: not with weight 0. Raises RecordError for unsupported weights."""
    learned = True
    for name in WEIGHTS:
        weight = value.get(name)
        if weight is None:
            continue
        if not isinstance(weight, bool | int | float) or weight not in (0, 1):
            raise RecordError(f"message {number}: `{name}` is {weight!r:.40}: only 0, not learned, and 1 are known")
        if weight and role != "assistant":
            raise RecordError(
                f"message {number}: `{name}` is {weight!r}, but only messages of the assistant are learned: remove it"
            )
        learned = learned and bool(weight)
    return learned


def _read_system(record: dict[str, Any], messages: list[Message]) -> Message | None:
    """Return the system prompt in the field `system`, or None if it is missing or also among the messages."""
    content = record.get("system")
    if content in (None, ""):
        return None
    if not isinstance(content, str):
        raise RecordError(f"`system` is {content!r:.40}, not a string")
    message = {"role": "system", "content": content}
    if message in messages:
        return None
    if messages[0]["role"] == "system":
        raise RecordError("the record has a system prompt in `system` and another one in its messages: remove one")
    return message


def _read_tools(record: dict[str, Any]) -> list[Tool]:
    """Return the tools in the field `tools`: a list of JSON schemas, or that list as JSON text."""
    value = record.get("tools")
    if value in (None, ""):
        return []
    tools = value
    if isinstance(value, str):
        with suppress(ValueError):
            tools = json.loads(value)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RecordError(f"`tools` is {value!r:.40}, not a list of JSON schemas")
    return tools
