"""The sandboxed process rendering chat templates: its limits, and interrupted renderings."""

import signal
import threading
from pathlib import Path

import pytest

from megatape.data.finetuning import chat_rendering
from megatape.data.finetuning.chat import Chat
from megatape.data.finetuning.chat_rendering import ChatRenderer, TemplateSource
from megatape.data.finetuning.conversation import Conversation
from megatape.data.finetuning.example_source import ExampleSource
from megatape.data.finetuning.format import Limits
from megatape.data.finetuning.prepare import prepare_examples
from megatape.data.tokenizers.files import load_tokenizer
from megatape.errors import UserError
from tests.helpers.data.conversations import MESSAGES, adopted, conversation
from tests.helpers.data.examples import write_lines

LONG_LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
MUCH_MEMORY = "{{ ('a' * 2 * 10 ** 9) | length }}"
MUCH_OUTPUT = "{{ 'a' * 300 }}"


def test_a_template_that_reaches_for_pythons_internals_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = adopted(folders, tmp_path, "{{ ''.__class__.__mro__ }}")
    with pytest.raises(ValueError, match="the chat template fails: SecurityError"):
        Chat(load_tokenizer(folder), Limits(256)).example(conversation(MESSAGES))


@pytest.mark.parametrize(
    ("template", "inline"),
    [(LONG_LOOPS, False), (MUCH_MEMORY, True), (MUCH_OUTPUT, False)],
    ids=["loops", "memory", "output"],
)
@pytest.mark.timeout(60)
def test_a_template_beyond_its_limits_ends_the_command(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, inline: bool
) -> None:
    """The error names the template's file."""
    monkeypatch.setattr(chat_rendering, "MAX_SECONDS", 1)  # with 0, the limit may be too low for any template
    monkeypatch.setattr(chat_rendering, "MAX_MEMORY", 2**30)
    monkeypatch.setattr(chat_rendering, "MAX_TEXT", 200)
    folder = adopted(folders, tmp_path, "{% if messages | length > 4 %}" + template + "{% endif %}", inline)
    output = tmp_path / "out"
    path = write_lines(tmp_path / "in.jsonl", [conversation(MESSAGES)])
    source = ExampleSource("chat", (str(path),), (), Limits(256), 0.5)
    name = "tokenizer_config.json" if inline else "chat_template.jinja"
    with pytest.raises(UserError, match=f"in.jsonl:1: .*/qwen/{name}: the chat template takes more than"):
        prepare_examples(source, output, load_tokenizer(folder), lambda counts, tokens: None)
    assert not output.exists()


@pytest.mark.timeout(60)
def test_an_interrupted_rendering_does_not_reach_the_next_one() -> None:
    """The process may still send the text from the interrupted rendering."""
    renderer = ChatRenderer()
    content = "{{ messages[0].content }}"
    slow = "{% for a in range(3000) %}{% for b in range(3000) %}{% endfor %}{% endfor %}" + content

    def render(template: str, content: str) -> str:
        conversation = Conversation([{"role": "user", "content": content}])
        text, *_ = renderer.render(TemplateSource("template", template, {}), conversation, is_prompt=True)
        return text

    assert render(content, "first") == "first"
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        render(slow, "second")
    timer.join()
    assert render(content, "third") == "third"
