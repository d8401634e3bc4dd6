"""Finds the answers in a rendered conversation, and checks that the chat template wrote every part of it."""

import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from megatape.data.finetuning.conversation import Conversation, Message
from megatape.errors import RecordError

# [begin, end) of each answer, in characters of the text or in tokens.
Spans = list[tuple[int, int]]
# Renders messages by a chat template. Options: `add_generation_prompt` and `tools` of transformers' apply_chat_template.
RenderMessages = Callable[..., str]

# Number of characters to quote from each of two differing texts.
QUOTED_CHARACTERS = 30


@dataclass(frozen=True)
class RenderedConversation:
    """A conversation rendered by a chat template.

    Each check renders the conversation with one part changed: the text must change as well. Looking for the part in the text
    would not suffice, because a template may write it in another form, such as JSON.

    Attributes:
        conversation: The conversation.
        text: Rendered text.
        render: Renders other messages by the same template.
        is_prompt: Whether the text ends with generation's prompt for the next answer.
    """

    conversation: Conversation
    text: str
    render: RenderMessages
    is_prompt: bool

    @property
    def messages(self) -> list[Message]:
        return self.conversation.messages

    def check_tools(self) -> None:
        """Raise RecordError if the template drops tools, tool calls or their results."""
        if self.conversation.tools:
            without_tools = self.render(self.messages, tools=None, add_generation_prompt=self.is_prompt)
            if self.text == without_tools:
                raise RecordError("the chat template does not write `tools`: use one that does, or remove the tools")
        for index, message in enumerate(self.messages):
            for number, call in enumerate(message.get("tool_calls", [])):
                for key, value in _other_call(call["function"]).items():
                    changed = deepcopy(message)
                    changed["tool_calls"][number]["function"][key] = value
                    self._check_written(index, changed, f"the `tool_calls` of message {index + 1} with their {key}")
            if message["role"] == "tool":
                self._check_content(index, "the result of a tool")

    def check_system_prompts(self) -> None:
        """Raise RecordError if the template drops a system prompt."""
        for index, message in enumerate(self.messages):
            if message["role"] == "system" and message["content"]:
                self._check_content(index, "the system prompt")

    def answers(self, marks: Spans | None) -> Spans:
        """Return the span of each learned answer, in characters.

        Args:
            marks: Spans marked by {% generation %} in the template; None if it has no marks.

        Raises:
            RecordError: An answer does not follow generation's prompt, or its position is unknown.
        """
        if marks is None:
            return [(self._answer_begin(index), self._answer_end(index)) for index in self.conversation.learned]
        begins: list[int] = []
        ignored: set[int] = set()
        for number, index in enumerate(self.conversation.answers):
            if index in self.conversation.not_learned:
                ignored.add(number)
                begin = self._divergence(index)
            else:
                begin = self._answer_begin(index)
            if begins and begin < begins[-1]:
                raise RecordError(
                    f"the chat template writes messages before message {index + 1} differently in generation's prompt"
                )
            begins.append(begin)
        marked = _marked_spans(marks, begins, ignored)
        learned = [span for number, span in sorted(marked.items()) if number not in ignored]
        if not learned:
            raise RecordError("the chat template marks no answer of weight 1 by {% generation %}")
        return learned

    def _check_content(self, index: int, part: str) -> None:
        changed = self.messages[index] | {"content": self.messages[index]["content"] + "."}
        self._check_written(index, changed, f"message {index + 1}, {part}")

    def _check_written(self, index: int, changed: Message, part: str) -> None:
        """Raise RecordError if the text stays the same with a changed message."""
        messages = [*self.messages[:index], changed, *self.messages[index + 1 :]]
        if self.render(messages, add_generation_prompt=self.is_prompt) == self.text:
            raise RecordError(f"the chat template does not write {part}: use one that does")

    def _answer_begin(self, index: int) -> int:
        """Return where an answer begins: after generation's prompt, which must be a prefix of the conversation."""
        prompt = self.render(self.messages[:index], add_generation_prompt=True)
        if self.text.startswith(prompt):
            return len(prompt)
        same = len(os.path.commonprefix([self.text, prompt]))
        expected = prompt[same : same + QUOTED_CHARACTERS]
        actual = self.text[same : same + QUOTED_CHARACTERS]
        raise RecordError(
            f"before the answer in message {index + 1} the chat template writes {actual!r} where generation's prompt has "
            f"{expected!r}: use a template that writes the same in both"
        )

    def _divergence(self, index: int) -> int:
        """Return where the text and generation's prompt for an answer first differ, near the beginning of the answer."""
        prompt = self.render(self.messages[:index], add_generation_prompt=True)
        return len(os.path.commonprefix([self.text, prompt]))

    def _answer_end(self, index: int) -> int:
        """Return where an answer ends: where the conversation up to it ends, which must be a prefix of the text."""
        answered = self.render(self.messages[: index + 1])
        if self.text.startswith(answered):
            return len(answered)
        raise RecordError(
            f"the chat template writes message {index + 1} differently once others follow it: "
            "make a record for each answer, ending with it, and give earlier answers weight 0"
        )


def _other_call(function: dict[str, Any]) -> dict[str, Any]:
    """Return another name for a tool call, and other arguments if it has any."""
    other: dict[str, Any] = {"name": f"{function['name']}_"}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        other["arguments"] = '{"other": "argument"}'
    elif arguments:
        other["arguments"] = {"other": "argument"}
    return other


def _marked_spans(marks: Spans, begins: list[int], ignored: set[int]) -> dict[int, tuple[int, int]]:
    """Return the spans of the answers marked by a template, by answer number, counting from 0.

    An answer begins where generation's prompt for it ends, even if its mark includes the header before it. A mark beginning
    later skips text that generation would have to write, so it is an error. Two marks for one answer with text between them
    are an error, too.

    Args:
        marks: Spans of the marks, in order.
        begins: Ends of generation's prompts, in order.
        ignored: Numbers of the answers that are not learned. Their marks need not begin exactly there.

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
