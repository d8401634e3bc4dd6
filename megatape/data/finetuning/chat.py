"""Conversations, of which every message of the assistant is learned.

A record is {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}. The chat template of
the tokenizer (chat_template.py) writes the text around the messages, or a plain one if it has none.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from megatape.data.finetuning.chat_rendering import Message, Spans
from megatape.data.finetuning.chat_template import ChatTemplate
from megatape.data.finetuning.prompt_format import Example, Format, Limits, RecordDropped, missing_field
from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import RecordError, UserError

NAMES = {"system": ["system"], "user": ["human", "user"], "assistant": ["gpt", "chatgpt", "assistant"]}  # of each role


class MessageFields(NamedTuple):
    """Names in a record of messages.

    Attributes:
        messages: Field of the list.
        role: Field of a message that says whose it is.
        content: Field of its text.
        roles: Values of `role` -> the role that a template knows.
    """

    messages: str
    role: str
    content: str
    roles: Mapping[str, str]


FIELDS = MessageFields("messages", "role", "content", {role: role for role in ("system", "user", "assistant")})


class Chat(Format):
    """A conversation up to its last message of the assistant; of a longer one than fits, as many exchanges as do."""

    fields: ClassVar[MessageFields] = FIELDS

    def __init__(self, tokenizer: Tokenizer, limits: Limits) -> None:
        super().__init__(tokenizer, limits)
        self.reads = (self.fields.messages,)
        for option, value in limits.options.items():
            if option != "sequence_length":
                raise UserError(f"{option} is {value}, but conversations are cut after whole messages only: remove it")
        self._template = None
        if isinstance(tokenizer, JsonTokenizer) and tokenizer.chat_template is not None:
            self._template = ChatTemplate(tokenizer, tokenizer.chat_template)
            self.notes = self._template.notes
        else:
            self.notes = ['the tokenizer has no chat template: conversations are written as "User: ...\\nAssistant: ..."']

    def example(self, record: dict[str, Any]) -> Example:
        messages = read_messages(record, self.fields)
        if not any(message["role"] == "assistant" for message in messages):
            raise RecordDropped("conversation without an assistant")
        if any(message["role"] == "assistant" and not message["content"].strip() for message in messages):
            raise RecordDropped("empty answer")
        ids, spans = self._template.tokens(messages) if self._template else plain_tokens(messages, self.tokenizer)
        limit = self.limits.sequence_length + 1
        answers = [span for span in spans if span[1] <= limit]
        if not answers:
            raise RecordDropped("first exchange longer than a sequence")
        counts = Counter[str]()
        if cut := len(spans) - len(answers):
            lost = spans[-1][1] - answers[-1][1]
            counts += Counter({"conversations cut": 1, "answers cut": cut, "tokens cut from conversations": lost})
        first = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
        prompt = "\n".join(message["content"] for message in messages[:first])
        return Example(ids[: answers[-1][1]], answers, prompt, counts)


def read_messages(record: dict[str, Any], fields: MessageFields = FIELDS) -> list[Message]:
    """The messages of a record, with role and content only. Raises RecordError."""
    if fields.messages not in record:
        raise missing_field(fields.messages, record)
    found = record[fields.messages]
    if not isinstance(found, list) or not found:
        raise RecordError(f"`{fields.messages}` is {found!r:.40}, not a list of messages")
    messages = []
    for number, message in enumerate(found, start=1):
        if not isinstance(message, dict):
            raise RecordError(f"message {number} is {message!r:.40}, not an object")
        role, content = message.get(fields.role), message.get(fields.content)
        if not isinstance(role, str) or role not in fields.roles:
            raise RecordError(f"message {number}: `{fields.role}` is {role!r:.40}, not one of {', '.join(fields.roles)}")
        if not isinstance(content, str):
            raise RecordError(f"message {number}: `{fields.content}` is {content!r:.40}, not a string")
        if others := [key for key, value in message.items() if key not in (fields.role, fields.content) and value]:
            known = f"`{fields.role}` and `{fields.content}`"
            raise RecordError(f"message {number} has `{'`, `'.join(others)}`: only {known} are known")
        messages.append({"role": fields.roles[role], "content": content})
    if messages[0]["role"] == "assistant":
        raise RecordError("message 1 is of the assistant: there is nothing that it answers")
    return messages


def plain_prompt(messages: list[Message], tokenizer: Tokenizer) -> list[int]:
    """The tokens of a conversation up to the answer that follows, as `plain_tokens` writes them."""
    ids, answers = plain_tokens([*messages, {"role": "assistant", "content": ""}], tokenizer)
    return ids[: answers[-1][0]]


def plain_tokens(messages: list[Message], tokenizer: Tokenizer) -> tuple[list[int], Spans]:
    r"""`<s>System: ...\nUser: ...\nAssistant:`, then ` ... </s>`, which is learned, and so on."""
    ids, answers = list(tokenizer.begin), []
    context = ""
    for message in messages:
        if message["role"] == "assistant":
            ids += tokenizer.encode(f"{context}Assistant:")
            answer = [*tokenizer.encode(f" {message['content']}"), tokenizer.eos_id]
            answers.append((len(ids), len(ids) + len(answer)))
            ids += answer
            context = ""
        else:
            context += f"{message['role'].title()}: {message['content']}\n"
    return ids, answers


class ShareGPT(Chat):
    """Conversations with other names of fields and roles than Chat's."""

    fields = MessageFields("conversations", "from", "value", {name: role for role, names in NAMES.items() for name in names})
