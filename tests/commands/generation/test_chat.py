"""`megatape generate --chat`: history, commands, interrupts, and the file of a conversation."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig

from megatape.commands.generation.chat import Chat
from megatape.commands.generation.prompts import read_conversation
from megatape.errors import UserError
from megatape.hf.generation.sampling import Sampling
from megatape.hf.loading.exact_tokenizer import read_tokenizer
from megatape.hf.loading.loaded_model import LoadedModel
from tests.helpers.data.conversations import MESSAGES, PLAIN, adopted
from tests.helpers.models.imported import write_qwen
from tests.helpers.models.tiny_models import save_tiny
from tests.helpers.processes.workers import ROOT

NO_SYSTEM = "{{ raise_exception('no system prompts') if messages[0].role == 'system' }}"
HOSTILE = "\x1b[2Ja\x07\r\tb\x9b31m\n\x7f é"
# Makes the terminal the controlling one, turning Ctrl-C into a signal
IN_A_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from megatape.commands.cli.main import main
sys.exit(main())
"""


class Script:
    """Model that writes scripted answers one after the other and remembers its prompts.

    None instead of a token is Ctrl-C, and a negative token raises an out-of-memory error.
    """

    device = torch.device("cpu")

    def __init__(self, answers: list[list[int | None]], max_positions: int = 256) -> None:
        self.answers = answers
        self.prompts: list[list[int]] = []
        self.limits: list[int] = []
        self.generation_config = GenerationConfig(eos_token_id=600)
        self.config = SimpleNamespace(max_position_embeddings=max_positions)
        self.base_model = None

    def generate(self, tokens: Tensor, stopping_criteria: list[Any], max_new_tokens: int, **options: Any) -> None:
        self.prompts.append(tokens[0].tolist())
        self.limits.append(max_new_tokens)
        for token in self.answers.pop(0)[:max_new_tokens]:
            if token is None:
                raise KeyboardInterrupt
            if token < 0:
                raise torch.OutOfMemoryError
            tokens = torch.cat([tokens, torch.tensor([[token]])], dim=1)
            if stopping_criteria[0](tokens, None).all():
                return


class Talk:
    """Chat with a scripted model."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = monkeypatch
        self.tokenizer = read_tokenizer(folder)

    def answer(self, text: str) -> list[int | None]:
        """Return an answer's tokens, including its end token."""
        return [*self.tokenizer(text).input_ids, 602]

    def run(
        self,
        typed: str,
        answers: list[list[int | None]],
        messages: list[dict[str, str]] | None = None,
        file: Path | None = None,
        **limits: int,
    ) -> tuple[Chat, Script]:
        model = Script(answers, limits.get("max_positions", 256))
        loaded = LoadedModel("a model", model, self.tokenizer, self.folder)
        self._patch.setattr(sys, "stdin", io.StringIO(typed))
        chat = Chat(loaded, Sampling(max_new_tokens=limits.get("max_new_tokens", 100)), messages or [], file)
        chat.run()
        return chat, model


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen(tmp_path_factory.mktemp("source") / "qwen")


@pytest.fixture
def talk(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Talk:
    return Talk(adopted({"qwen": source}, tmp_path, PLAIN), monkeypatch)


def contents(chat: Chat) -> list[str]:
    return [message["content"] for message in chat.messages]


def test_a_conversation_has_a_history(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    """Each prompt starts with the previous one and its answer's tokens. Only answers are on the standard output."""
    answers = [talk.answer("one\n two"), talk.answer("three")]
    chat, model = talk.run("Hello.\n\nAnd?\n", [*answers], MESSAGES[:1])
    assert chat.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "one\n two"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "three"},
    ]
    first, second = model.prompts
    assert second[: len(first) + len(answers[0])] == [*first, *answers[0]]
    assert capsys.readouterr() == ("one\n two\nthree\n", "")


@pytest.mark.parametrize(
    ("stdout", "shown"), [(Terminal, "\\x1b[2Ja\\x07\\x0d\tb\\x9b31m\n\\x7f é\n"), (io.StringIO, HOSTILE + "\n")]
)
def test_control_characters_do_not_drive_the_terminal(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, stdout: type[io.StringIO], shown: str
) -> None:
    """A terminal shows control characters as escapes. Pipes, files and the conversation get the model's text."""
    output = stdout()
    monkeypatch.setattr(sys, "stdout", output)
    chat, _ = talk.run("a\n", [talk.answer(HOSTILE)])
    assert contents(chat) == ["a", HOSTILE]
    assert output.getvalue() == shown


def test_blank_lines_and_leading_spaces(talk: Talk) -> None:
    """Blank lines are no messages, and a leading space turns a command into a message."""
    chat, _ = talk.run("\n   \na\n /reset\n", [talk.answer("x"), talk.answer("y")])
    assert contents(chat) == ["a", "x", " /reset", "y"]


def test_an_answer_begins_with_its_text(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    """Leading space belongs to the template: keeping it would double it in the next prompt."""
    chat, _ = talk.run("a", [talk.answer("\n  b c ")])
    assert contents(chat) == ["a", "b c "]
    assert capsys.readouterr().out == "b c \n"


def test_an_interrupt_ends_an_answer(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    """The conversation keeps the part already shown. If there is none, it drops the message."""
    chat, model = talk.run("a\nb\nc", [[*talk.answer("begun")[:-1], None], [None], talk.answer("x")])
    assert contents(chat) == ["a", "begun", "c", "x"]
    assert talk.tokenizer.decode(model.prompts[-1]).count("begun") == 1
    assert capsys.readouterr() == ("begun\n\nx\n", "(no answer: the message was not added to the conversation)\n")


def type_lines(monkeypatch: pytest.MonkeyPatch, lines: list[str | type[BaseException]]) -> None:
    """Replace `input`, which returns the lines one after the other, and raises exceptions among them."""
    remaining = iter(lines)

    def typed(prompt: str) -> str:
        line = next(remaining)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", typed)


def test_an_interrupt_at_the_prompt_of_a_pipe_ends_the_command(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    type_lines(monkeypatch, ["a", KeyboardInterrupt, "b", EOFError])
    with pytest.raises(KeyboardInterrupt):
        talk.run("", [talk.answer("x")])


def test_an_interrupt_at_the_prompt_of_a_terminal_shows_the_help(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines(monkeypatch, ["a", KeyboardInterrupt, "b", EOFError])
    monkeypatch.setattr(io, "StringIO", Terminal)
    chat, _ = talk.run("", [talk.answer("x"), talk.answer("y")])
    assert contents(chat) == ["a", "x", "b", "y"]
    errors = capsys.readouterr().err
    assert "(Ctrl-D ends)" in errors
    assert "/reset" in errors
    assert "/system TEXT" in errors


def turn(role: str, text: str) -> str:
    """Return a message as the template PLAIN writes it."""
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def test_reset_drops_messages_and_system_keeps_them(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    """/reset keeps the system prompt. /system replaces it."""
    typed = "a\n/reset\nb\n/system Be long.\nc\n/system\n/reset\nd"
    brief = turn("system", "Be brief.")
    long = turn("system", "Be long.")
    exchange = turn("user", "b") + turn("assistant", "x")
    generated = "<|im_start|>assistant\n"

    chat, model = talk.run(typed, [talk.answer("x") for _ in range(4)], MESSAGES[:1])

    assert chat.messages == conversation_of("d", "x")
    assert [talk.tokenizer.decode(ids) for ids in model.prompts] == [
        brief + turn("user", "a") + generated,
        brief + turn("user", "b") + generated,
        long + exchange + turn("user", "c") + generated,
        turn("user", "d") + generated,
    ]
    errors = capsys.readouterr().err
    assert "(system prompt: Be long.)" in errors
    assert "(system prompt: none)" in errors


def test_a_system_prompt_that_the_template_refuses(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    """The prompt is refused immediately, and the conversation continues without it."""
    (talk.folder / "chat_template.jinja").write_text(NO_SYSTEM + PLAIN)
    chat, _ = talk.run("a\n/system Be brief.\nb", [talk.answer("x"), talk.answer("y")])
    assert contents(chat) == ["a", "x", "b", "y"]
    assert capsys.readouterr().err == "error: the chat template fails: TemplateError: no system prompts\n"
    with pytest.raises(UserError, match="no system prompts"):
        talk.run("a", [], MESSAGES[:1])


def conversation_of(*contents: str) -> list[dict[str, str]]:
    """Return messages of the user and the assistant in turn."""
    messages = []
    for index, text in enumerate(contents):
        role = "user"
        if index % 2 == 1:
            role = "assistant"
        messages.append({"role": role, "content": text})
    return messages


def test_a_missing_conversation_is_empty(tmp_path: Path) -> None:
    assert read_conversation(tmp_path / "talk.json") == []


def test_the_file_of_a_conversation_is_fine_tuning_data(talk: Talk, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    chat, _ = talk.run("größer\nb", [talk.answer("x"), talk.answer("y")], MESSAGES[:1], path)
    content = path.read_text(encoding="utf-8")
    assert content.count("\n") == 1
    assert "größer" in content
    assert json.loads(content) == {"messages": chat.messages}
    assert len(chat.messages) == 5
    assert read_conversation(path) == chat.messages


def test_messages_after_a_reset_are_not_saved(talk: Talk, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    earlier = conversation_of("a", "x")
    talk.run("c\n/reset\nd", [talk.answer("z"), talk.answer("z")], earlier, path)
    assert read_conversation(path) == [*earlier, *conversation_of("c", "z")]
    assert list(tmp_path.glob("*.tmp")) == []


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("/rese", "/rese is not a command: give /reset or /system TEXT, or begin a message with a space"),
        ("/etc/passwd holds what?", "/etc/passwd is not a command: give /reset"),
        ("\udcff", "the message '\\udcff' is not valid UTF-8"),
        ("/system \udcff", "the system prompt '\\udcff' is not valid UTF-8"),
    ],
)
def test_errors_lose_nothing(talk: Talk, capsys: pytest.CaptureFixture[str], typed: str, message: str) -> None:
    """Errors are one line, and the conversation continues."""
    chat, _ = talk.run(f"a\n{typed}\nb", [talk.answer("x"), talk.answer("y")])
    assert chat.messages == conversation_of("a", "x", "b", "y")
    error = capsys.readouterr().err
    assert error.startswith("error: "), error
    assert error.count("\n") == 1, error
    assert message in error, error


def test_a_file_that_cannot_be_written(talk: Talk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The conversation continues without it."""
    chat, _ = talk.run("a\nb", [talk.answer("x"), talk.answer("y")], file=tmp_path / "nowhere" / "talk.json")
    assert chat.messages == conversation_of("a", "x", "b", "y")
    assert capsys.readouterr().err.count("No such file or directory") == 2


def test_a_conversation_longer_than_the_model(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers use the remaining positions. If hardly any remain, a warning says what to do."""
    long = " ".join(str(number) for number in range(40))
    answers: list[list[int | None]] = [talk.answer("x"), [5] * 100, talk.answer("y")]

    chat, model = talk.run(f"a\n{long}\nb", answers, max_positions=200)

    expected_limits = [100] + [max(200 - len(prompt), 64) for prompt in model.prompts[1:]]
    assert model.limits == expected_limits
    errors = capsys.readouterr().err
    num_warnings = errors.count("is made for 200 (max_positions)")
    assert num_warnings >= 1
    assert errors.count("/reset starts a new conversation") == num_warnings
    assert f"(cut after {model.limits[1]} tokens; --max-new-tokens and the model's positions limit an answer)" in errors
    assert len(chat.messages) == 6


def test_a_conversation_larger_than_memory(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    chat, _ = talk.run("a\nb\nc", [talk.answer("x"), [-1], talk.answer("y")])
    assert chat.messages == conversation_of("a", "x", "c", "y")
    assert capsys.readouterr().err == "error: the conversation does not fit into memory: /reset starts a new one\n"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_terminal(talk: Talk, tmp_path: Path) -> None:
    """Pasted lines are one message. Ctrl-C ends only the answer, and Ctrl-D ends the command."""
    generation = (talk.folder / "generation_config.json").read_bytes()
    # This model never ends an answer.
    save_tiny("qwen2", talk.folder, vocab_size=640, max_position_embeddings=10_000)
    (talk.folder / "generation_config.json").write_bytes(generation)
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", IN_A_TERMINAL, "generate", str(talk.folder), "--chat"]
    command += ["--max-new-tokens", "9000", "--conversation", "talk.json"]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env=os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    os.close(theirs)

    unread = b""

    def wait_for(text: bytes) -> None:
        nonlocal unread
        while text not in unread:
            unread += os.read(ours, 1000)
        unread = unread.partition(text)[2]

    prompt = b"\x1b[?2004h> "  # Then the line editor has the terminal. An earlier Ctrl-D would not reach it.

    try:
        wait_for(prompt)
        os.write(ours, b"\x1b[200~one\ntwo\n\x1b[201~\r")
        wait_for(b"two")
        wait_for(b"\x1b[?2004l")  # the line editor has drawn both lines and given the terminal back
        for _ in range(10):  # Read pieces of the answer.
            os.read(ours, 1000)
        os.write(ours, b"\x03")
        wait_for(prompt)
        os.write(ours, b"\x04")
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(ours)
    user, assistant = read_conversation(tmp_path / "talk.json")
    assert user["content"] == "one\ntwo"
    assert assistant["content"]
