"""Prompts and conversations of `megatape generate`, read from files and checked before a model is loaded."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatape.errors import MissingPath, UserError, content_errors, flag, path_errors
from megatape.errors.text_checks import check_text
from megatape.utils.files.json_files import parse_json, read_json
from megatape.utils.values.validation import as_type

if TYPE_CHECKING:
    from megatape.data.finetuning.conversation import Conversation, Message

# Maximum number of characters to show from a line in an error message.
SHOWN_CHARACTERS = 80


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Read prompts from a .txt file with one prompt per line, or a .jsonl file of objects with `prompt` or `messages`.

    Returns:
        An object with `prompt` or `messages` for each line.

    Raises:
        MissingPath: The file is missing.
        UserError: A line has no valid prompt. The message names the line.
    """
    if path.suffix not in (".jsonl", ".txt"):
        raise UserError(f"{flag('prompts')} {path}: give a .jsonl file, or a .txt file with one prompt per line")
    if not path.exists():
        raise MissingPath(f"{flag('prompts')} {path}: no such file: give a .jsonl or .txt file")
    with content_errors(f"{flag('prompts')} {path} is not UTF-8 text", "convert it"):
        text = path.read_text(encoding="utf-8").rstrip("\n")
    if not text:
        raise UserError(f"{flag('prompts')} {path} is empty: give at least one prompt")
    records = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            record = _parse_record(line) if path.suffix == ".jsonl" else {"prompt": line}
            _check_record(record)
        except UserError as error:
            raise UserError(f"{flag('prompts')} {path}:{number}: {error}") from None
        records.append(record)
    return records


def _parse_record(line: str) -> dict[str, Any]:
    """Parse a line of a .jsonl file: an object with either `prompt` or `messages`."""
    try:
        record = parse_json(line)
    except ValueError as error:
        raise UserError(f"not JSON ({error})") from None
    is_valid = False
    if isinstance(record, dict):
        has_messages = "messages" in record
        has_prompt = isinstance(record.get("prompt"), str)
        is_valid = has_messages != has_prompt
    if not is_valid:
        raise UserError(f'no object with either a text "prompt" or "messages": {line[:SHOWN_CHARACTERS]}')
    return record


def _check_record(record: dict[str, Any]) -> None:
    """Check that a prompt is valid text, or that a conversation ends with a message to answer."""
    if "messages" not in record:
        check_text(record["prompt"], "the prompt")
        return
    last_role = checked_conversation(record).messages[-1]["role"]
    if last_role not in ("user", "tool"):
        raise UserError(f"the last message is from the {last_role}: end with a message from the user or a tool, for an answer")


def checked_conversation(record: dict[str, Any]) -> "Conversation":
    """Return the conversation of a record.

    Raises:
        UserError: The record is not a conversation.
    """
    from megatape.data.finetuning.conversation import parse_conversation

    conversation = parse_conversation(record)
    for number, message in enumerate(conversation.messages, start=1):
        check_text(message["content"], f"message {number}")
    return conversation


@path_errors()
def read_conversation(path: Path) -> "list[Message]":
    """Return the messages of a saved conversation, empty if the file does not exist yet.

    Raises:
        MissingPath: The file's folder is missing.
        UserError: The file is not a conversation, or ends without an answer.
    """
    if not path.parent.is_dir():
        raise MissingPath(f"{flag('conversation')} {path}: {path.parent} is not a folder: create it, or give another file")
    if not path.exists():
        return []
    with content_errors(f'{path} is not a conversation {{"messages": [...]}}', "give another file"):
        conversation = checked_conversation(as_type(read_json(path), dict[str, Any]))
        messages = conversation.messages
        if conversation.tools or conversation.not_learned:
            raise UserError(
                f"it has tools or weights, which would be lost when the chat is saved: give it to {flag('prompts')} instead"
            )
        if messages[-1]["role"] == "user":
            raise UserError(
                f"its last message is from the user and has no answer yet: answer it with {flag('prompts')}, or remove it"
            )
    return messages


def with_system(messages: "list[Message]", text: str) -> "list[Message]":
    """Return a conversation with another system prompt, or without one if `text` is empty."""
    if messages and messages[0]["role"] == "system":
        messages = messages[1:]
    if not text:
        return messages
    return [{"role": "system", "content": text}, *messages]


def conversation_with(messages: "list[Message]", text: str) -> "Conversation":
    """Return a conversation with one more message from the user."""
    from megatape.data.finetuning.conversation import Conversation

    return Conversation([*messages, {"role": "user", "content": text}])
