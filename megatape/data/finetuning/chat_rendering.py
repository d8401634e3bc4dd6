"""Renders conversations by chat templates in a sandboxed process.

A template is an untrusted program. Jinja's sandbox protects files and Python's internals, but does not stop endless loops or
texts that fill the memory. So templates run in a process with limits on time, memory and output.

rendered_conversation.py then finds the answers in the text. The answer mask of transformers' apply_chat_template is not enough:
it needs a template with marks, and does not tell whether generation would see the same text before an answer.
"""

import re
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from megatape.data.finetuning.conversation import Conversation, Message
from megatape.data.finetuning.rendered_conversation import RenderedConversation, Spans
from megatape.data.io.isolated import IsolatedProcess, ProcessEnded
from megatape.errors import RecordError, UserError
from megatape.utils.text.units import format_bytes

# CPU seconds per conversation. Templates of pretrained models take milliseconds.
MAX_SECONDS = 60
# Memory of the process in bytes.
MAX_MEMORY = 4 * 2**30
# Length of a rendered conversation in characters.
MAX_TEXT = 2**26
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class NotJinja(UserError):
    """The template does not compile."""


@dataclass(frozen=True)
class TemplateSource:
    """A chat template.

    Attributes:
        origin: File of the template, for errors.
        text: Jinja source.
        variables: Special tokens by their names in templates.
    """

    origin: str
    text: str
    variables: dict[str, str]


class RenderLimits(NamedTuple):
    """Limits for rendering one conversation: CPU seconds, bytes of memory, characters of text."""

    seconds: int
    memory: int
    text: int


class ChatRenderer:
    """Child process rendering conversations. It starts with the first conversation and ends with this process."""

    _process: IsolatedProcess | None = None

    def render(self, template: TemplateSource, conversation: Conversation, is_prompt: bool = False) -> tuple[str, Spans]:
        """Render a conversation.

        Args:
            template: Chat template.
            conversation: The conversation.
            is_prompt: Whether to render a prompt for the next answer. Earlier answers then need no exact position.

        Returns:
            The text, and the span of each learned answer in it (no spans for a prompt).

        Raises:
            NotJinja: The template does not compile.
            UserError: The template exceeds a limit.
            RecordError: The template refuses the conversation, or an answer has no exact position in it.
            ChildProcessError: The process ended for another reason.
        """
        if self._process is None:
            self._process = IsolatedProcess(_render_in_child)
        limits = RenderLimits(MAX_SECONDS, MAX_MEMORY, MAX_TEXT)
        try:
            ((text, spans),) = self._process.ask(limits, template, conversation, is_prompt)
        except (MemoryError, ProcessEnded) as error:
            if isinstance(error, ProcessEnded):
                self._process = None
                if error.status not in (-signal.SIGXCPU, -signal.SIGKILL):
                    raise ChildProcessError(f"the process that renders chat templates {error}") from None
            raise UserError(
                f"{template.origin}: the chat template takes more than {MAX_SECONDS} s of computation, "
                f"{format_bytes(MAX_MEMORY)} of memory or {MAX_TEXT:,} characters for one conversation: "
                "simplify its loops, or copy the file again"
            ) from None
        except KeyboardInterrupt:
            # Otherwise the next conversation would get the text of this one.
            self._process.end()
            self._process = None
            raise
        return text, spans


renderer = ChatRenderer()


def _render_in_child(
    limits: RenderLimits, template: TemplateSource, conversation: Conversation, is_prompt: bool
) -> Iterator[tuple[str, Spans]]:
    """Yield the result of `ChatRenderer.render`, or raise its error, within limits."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template

    # Limits start after the imports, which take a second or two of CPU time.
    _limit_resources(limits)
    render = partial(render_jinja_template, chat_template=template.text, tools=conversation.tools or None, **template.variables)
    is_marked = not is_prompt and GENERATION.search(template.text) is not None
    answer: tuple[str, Spans] | Exception
    try:
        (text,), marks = render(
            [conversation.messages], add_generation_prompt=is_prompt, return_assistant_tokens_mask=is_marked
        )
        if len(text) > limits.text:
            raise MemoryError
        rendered = RenderedConversation(conversation, text, partial(_render_text, render), is_prompt)
        answer_marks = None
        if is_marked:
            answer_marks = marks[0]
        answer = text, _checked_answers(rendered, answer_marks)
    except MemoryError:
        answer = MemoryError()
    except TemplateSyntaxError as error:
        answer = NotJinja(f"line {error.lineno}: {error}")
    except ValueError as error:
        answer = RecordError(str(error))
    except Exception as error:  # noqa: BLE001 (a template may raise any error)
        answer = RecordError(f"the chat template fails: {type(error).__name__}: {error}")
    # Raised only here: inside the handlers, the traceback would keep the objects that fill the memory.
    if isinstance(answer, Exception):
        raise answer
    yield answer


def _limit_resources(limits: RenderLimits) -> None:
    """Limit this process's CPU time for one more conversation, its memory, and core dumps."""
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(time.process_time()) + 1 + limits.seconds),
        (resource.RLIMIT_DATA, limits.memory),
    ):
        # An unprivileged process cannot raise its soft limit above its hard limit.
        hard = resource.getrlimit(kind)[1]
        soft = limit
        if hard != resource.RLIM_INFINITY:
            soft = min(limit, hard)
        resource.setrlimit(kind, (soft, hard))


def _render_text(render: Any, messages: list[Message], **options: Any) -> str:
    """Render messages. `render` is transformers' function, which takes a list of conversations."""
    (text,), _ = render([messages], **options)
    return str(text)


def _checked_answers(rendered: RenderedConversation, marks: Spans | None) -> Spans:
    """Check a rendered conversation. Returns the spans of its answers, none for a prompt."""
    rendered.check_tools()
    spans: Spans = []
    if not rendered.is_prompt:
        spans = rendered.answers(marks)
    rendered.check_system_prompts()
    return spans
