"""Renders conversations by chat templates in a separate process, and finds the answers in the text.

A template is an untrusted program. Jinja's sandbox protects files and Python's internals, but does not stop endless loops or
texts that fill the memory. So templates run in a process with limits on time, memory and output.

The mask of answers returned by transformers' apply_chat_template is not enough: it requires a template with marks, and does not
tell whether generation would have the same text before an answer.
"""

import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from typing import Any

from megatape.data.finetuning.conversation import Conversation, Message
from megatape.data.io.isolated import IsolatedProcess, ProcessEnded
from megatape.errors import RecordError, UserError
from megatape.utils.units import format_bytes

# [begin, end) of each answer, in characters of the text or in tokens.
Spans = list[tuple[int, int]]

# CPU time per conversation. Templates of pretrained models take milliseconds.
MAX_SECONDS = 60
# Memory of the process, bytes.
MAX_MEMORY = 4 * 2**30
# Length of a rendered conversation, characters.
MAX_TEXT = 2**26
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
# Number of characters quoted from each text where two texts differ.
QUOTED_CHARACTERS = 30


class NotJinja(UserError):
    """The template does not compile."""


class ChatRenderer:
    """Child process that renders conversations. It starts with the first conversation and ends with this process."""

    _process: IsolatedProcess | None = None

    def render(
        self, origin: str, template: str, variables: dict[str, str], conversation: Conversation, is_prompt: bool = False
    ) -> tuple[str, Spans]:
        """Render a conversation.

        Args:
            origin: File of the template, for errors.
            template: Text of the template.
            variables: Special tokens by their names in templates.
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
            self._process = IsolatedProcess(_rendered)
        limits = (MAX_SECONDS, MAX_MEMORY, MAX_TEXT)
        try:
            ((text, spans),) = self._process.ask(limits, template, variables, conversation, is_prompt)
        except (MemoryError, ProcessEnded) as error:
            if isinstance(error, ProcessEnded):
                self._process = None
                if error.status not in (-signal.SIGXCPU, -signal.SIGKILL):
                    raise ChildProcessError(f"the process that renders chat templates {error}") from None
            raise UserError(
                f"{origin}: the chat template takes more than {MAX_SECONDS} s of computation, "
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


def _rendered(
    limits: tuple[int, int, int], template: str, variables: dict[str, str], conversation: Conversation, is_prompt: bool
) -> Iterator[tuple[str, Spans]]:
    """Yield the result of `render`, or raise its error, within limits of seconds, bytes and characters."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template  # The import takes a second or two.

    max_seconds, max_memory, max_text = limits
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(time.process_time()) + 1 + max_seconds),
        (resource.RLIMIT_DATA, max_memory),
    ):
        # An unprivileged process cannot raise its soft limit above its hard limit.
        hard = resource.getrlimit(kind)[1]
        soft = most
        if hard != resource.RLIM_INFINITY:
            soft = min(most, hard)
        resource.setrlimit(kind, (soft, hard))
    answer: tuple[str, Spans] | Exception
    try:
        render = partial(render_jinja_template, chat_template=template, tools=conversation.tools or None, **variables)
        is_marked = not is_prompt and GENERATION.search(template) is not None
        (text,), marks = render(
            [conversation.messages], add_generation_prompt=is_prompt, return_assistant_tokens_mask=is_marked
        )
        if len(text) > max_text:
            raise MemoryError
        render_same = partial(render, add_generation_prompt=is_prompt)
        _check_tools(render_same, text, conversation)
        spans: Spans = []
        if not is_prompt:
            answer_marks = None
            if is_marked:
                answer_marks = marks[0]
            spans = _spans(render, text, conversation, answer_marks)
        _check_system_prompts(render_same, text, conversation.messages)
        answer = text, spans
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


def _check_tools(render: Any, text: str, conversation: Conversation) -> None:
    """Check that a template writes the tools of a conversation, the tool calls and their results.

    Args:
        render: Function that renders messages in the same way as `text`.
        text: Rendered conversation.
        conversation: Conversation.

    Raises:
        RecordError: The template drops some of them.
    """
    messages = conversation.messages
    if conversation.tools:
        (without_tools,), _ = render([messages], tools=None)
        if text == without_tools:
            raise RecordError("the chat template does not write `tools`: use one that does, or remove the tools")
    for index, message in enumerate(messages):
        for number, call in enumerate(message.get("tool_calls", [])):
            for key, value in _other_call(call["function"]).items():
                changed = deepcopy(message)
                changed["tool_calls"][number]["function"][key] = value
                part = f"the `tool_calls` of message {index + 1} with their {key}"
                _check_written(render, text, messages, index, changed, part)
        if message["role"] == "tool":
            _check_content(render, text, messages, index, "the result of a tool")


def _other_call(function: dict[str, Any]) -> dict[str, Any]:
    """Return another name, and other arguments if the call has any."""
    other: dict[str, Any] = {"name": f"{function['name']}_"}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        other["arguments"] = '{"other": "argument"}'
    elif arguments:
        other["arguments"] = {"other": "argument"}
    return other


def _check_system_prompts(render: Any, text: str, messages: list[Message]) -> None:
    """Check that a template writes the system prompts of a conversation. Arguments and errors as for `_check_tools`."""
    for index, message in enumerate(messages):
        if message["role"] == "system" and message["content"]:
            _check_content(render, text, messages, index, "the system prompt")


def _check_content(render: Any, text: str, messages: list[Message], index: int, what: str) -> None:
    changed = messages[index] | {"content": messages[index]["content"] + "."}
    _check_written(render, text, messages, index, changed, f"message {index + 1}, {what}")


def _check_written(render: Any, text: str, messages: list[Message], index: int, changed: Message, part: str) -> None:
    """Raise RecordError if another message in the place of one does not change the text: the template drops a part of it.

    A template may write the part in another form, as JSON for example, so looking for it in the text would not suffice.
    """
    (other,), _ = render([[*messages[:index], changed, *messages[index + 1 :]]])
    if other == text:
        raise RecordError(f"the chat template does not write {part}: use one that does")


def _spans(render: Any, text: str, conversation: Conversation, marks: Spans | None) -> Spans:
    """Return the span of each learned answer in a rendered conversation.

    Args:
        render: Function that renders messages by the template.
        text: Rendered conversation.
        conversation: Conversation.
        marks: Spans marked by {% generation %} in the template; None if it has no marks.

    Raises:
        RecordError: An answer does not follow generation's prompt, or its position is unknown.
    """
    messages = conversation.messages
    if marks is None:
        spans = []
        for index in conversation.learned:
            begin = _answer_begin(render, text, messages, index)
            end = _answer_end(render, text, messages, index)
            spans.append((begin, end))
        return spans
    begins: list[int] = []
    for index in conversation.answers:
        if index in conversation.not_learned:
            begin = _divergence(render, text, messages, index)
        else:
            begin = _answer_begin(render, text, messages, index)
        if begins and begin < begins[-1]:
            raise RecordError(
                f"the chat template writes messages before message {index + 1} differently in generation's prompt"
            )
        begins.append(begin)
    ignored = {number for number, index in enumerate(conversation.answers) if index in conversation.not_learned}
    marked = _marked_spans(marks, begins, ignored)
    learned = [span for number, span in sorted(marked.items()) if number not in ignored]
    if not learned:
        raise RecordError("the chat template marks no answer of weight 1 by {% generation %}")
    return learned


def _answer_begin(render: Any, text: str, messages: list[Message], index: int) -> int:
    """Return the beginning of an answer: the length of generation's prompt, which must be a prefix of the conversation."""
    (prompt,), _ = render([messages[:index]], add_generation_prompt=True)
    if text.startswith(prompt):
        return len(prompt)
    same = len(os.path.commonprefix([text, prompt]))
    wanted = prompt[same : same + QUOTED_CHARACTERS]
    found = text[same : same + QUOTED_CHARACTERS]
    raise RecordError(
        f"before the answer in message {index + 1} the chat template writes {found!r} where generation's prompt has "
        f"{wanted!r}: use a template that writes the same in both"
    )


def _divergence(render: Any, text: str, messages: list[Message], index: int) -> int:
    """Return where an answer and generation's prompt for it differ, which is near the beginning of the answer."""
    (prompt,), _ = render([messages[:index]], add_generation_prompt=True)
    return len(os.path.commonprefix([text, prompt]))


def _answer_end(render: Any, text: str, messages: list[Message], index: int) -> int:
    """Return the end of an answer: the length of the conversation rendered up to it, which must be a prefix of the whole."""
    (answered,), _ = render([messages[: index + 1]])
    if text.startswith(answered):
        return len(answered)
    raise RecordError(
        f"the chat template writes message {index + 1} differently once others follow it: "
        "make a record for each answer, ending with it, and give earlier answers weight 0"
    )


def _marked_spans(marks: Spans, begins: list[int], ignored: set[int]) -> dict[int, tuple[int, int]]:
    """Return the spans of the answers marked by a template, by the number of the answer, counting from 0.

    An answer begins where generation's prompt for it ends, even if its mark includes the header before it. A mark that
    begins later skips text that generation would have to write, so it is an error. Two marks of one answer with text between
    them are an error, too.

    Args:
        marks: Spans of the marks, in order.
        begins: Ends of generation's prompts, in order.
        ignored: Numbers of the answers that are not learned, whose marks need not begin exactly there.

    Raises:
        RecordError: The marks do not fit the prompts.
    """
    spans: dict[int, tuple[int, int]] = {}
    for mark_begin, mark_end in marks:
        if mark_begin == mark_end:
            continue
        prompts = [begin for begin in begins if begin < mark_end]
        if not prompts or any(begin >= mark_begin for begin in prompts[:-1]):
            raise RecordError("the chat template marks other text than one answer by one {% generation %}")
        begin = prompts[-1]
        number = len(prompts) - 1
        continues = number in spans and spans[number][1] == mark_begin
        if mark_begin > begin and not continues and number not in ignored:
            raise RecordError(
                f"the mark {{% generation %}} of answer {number + 1} begins {mark_begin - begin} characters after "
                "generation's prompt, so the model would not learn to write them: begin the mark where add_generation_prompt "
                "ends"
            )
        spans[number] = (begin, mark_end)
    if not spans:
        raise RecordError("the chat template marks nothing of this conversation by {% generation %}")
    return spans
