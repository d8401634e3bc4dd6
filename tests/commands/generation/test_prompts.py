"""Files of prompts are checked before the model is loaded."""

from pathlib import Path

import pytest

from tests.helpers.processes.command import Command


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.jsonl", b"", "is empty: give at least one prompt"),
        ("in.txt", b"\n\n", "is empty: give at least one prompt"),
        ("in.txt", b"a\xff\n", "is not UTF-8 text"),
        (
            "in.jsonl",
            b'{"prompt": "a"}\n{"text": "a"}\n',
            'in.jsonl:2: no object with either a text "prompt" or "messages": {',
        ),
        ("in.jsonl", b'{"prompt": "a", "messages": []}\n', "in.jsonl:1: no object with either"),
        ("in.jsonl", b'\n{"messages": []}\n', "in.jsonl:1: not JSON"),
        ("in.jsonl", b'{"messages": []}\n', "in.jsonl:1: `messages` is [], not a list of messages"),
        (
            "in.jsonl",
            b'{"prompt": "a"}\n{"messages": [{"role": "function", "content": "a"}]}',
            "in.jsonl:2: message 1: `role` is 'function', not one of system, user, assistant, tool",
        ),
        ("in.jsonl", b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "in.jsonl:1: message 1 '\\ud800' is not valid"),
        (
            "in.jsonl",
            b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
            "in.jsonl:1: the last message is from the assistant: end with a message from the user",
        ),
        ("in.jsonl", b'{"prompt": 7}\n', "in.jsonl:1: no object"),
        ("in.jsonl", b'{"prompt": "\\ud800"}\n', "in.jsonl:1: the prompt '\\ud800' is not valid UTF-8"),
        ("in.jsonl", b'["prompt"]\n', "in.jsonl:1: no object"),
        ("in.jsonl", b"{prompt\n", "in.jsonl:1: not JSON"),
    ],
)
def test_invalid_files_are_refused(command: Command, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """Files are checked before the model is loaded."""
    (tmp_path / name).write_bytes(content)
    status, printed, errors = command("generate", "nowhere", "--prompts", tmp_path / name)
    assert (status, printed, errors.count("\n")) == (2, "", 1), errors
    assert message in errors, errors
