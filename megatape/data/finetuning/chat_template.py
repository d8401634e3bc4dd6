"""The chat template of an imported tokenizer, rendered by transformers in Jinja's sandbox.

A template is a program of unknown origin. The sandbox keeps it from files and from Python's internals, not from endless loops
or texts that fill the memory: it runs in a process that ends at a limit of time, memory or output.

The mask of answers that transformers' apply_chat_template returns does not suffice: it needs a
template with marks, and does not tell whether generation would give the same tokens before an answer.
"""

import re
import resource
import signal
import time
from collections.abc import Iterator
from copy import deepcopy
from functools import cached_property, partial
from secrets import token_hex
from typing import Any

from tokenizers import AddedToken

from megatape.data.io.isolated import IsolatedProcess, ProcessEnded
from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.errors import RecordError, UserError
from megatape.units import format_bytes

Message = dict[str, str]  # role and content
Spans = list[tuple[int, int]]  # [begin, end) of each answer, in characters of the text or in tokens

MAX_SECONDS = 60  # of computation for one conversation; templates of pretrained models take milliseconds
MAX_MEMORY = 4 * 2**30  # bytes
MAX_TEXT = 2**26  # characters of a conversation
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class NotJinja(UserError):
    """A template that does not compile."""


class ChatRenderer:
    """A process that renders conversations, started by the first one. It ends with this process."""

    _process: IsolatedProcess | None = None

    def render(
        self, origin: str, template: str, variables: dict[str, str], messages: list[Message], is_prompt: bool = False
    ) -> tuple[str, Spans]:
        """Render a conversation.

        Args:
            origin: File of the template, for errors.
            template: Text of the template.
            variables: Special tokens by the names that templates have for them.
            messages: The conversation.
            is_prompt: Render it up to the answer that follows. Earlier answers need no exact place then.

        Returns:
            The text, and the span of each answer in it, none for a prompt.

        Raises:
            NotJinja: The template does not compile.
            UserError: The template exceeds a limit.
            RecordError: The template refuses the conversation, or an answer has no exact place in it.
            ChildProcessError: The process ended for another reason.
        """
        if self._process is None:
            self._process = IsolatedProcess(_rendered)
        try:
            ((text, spans),) = self._process.ask((MAX_SECONDS, MAX_MEMORY, MAX_TEXT), template, variables, messages, is_prompt)
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
        except KeyboardInterrupt:  # the next conversation must not be given the text of this one
            self._process.end()
            self._process = None
            raise
        return text, spans


renderer = ChatRenderer()


def _rendered(
    limits: tuple[int, int, int], template: str, variables: dict[str, str], messages: list[Message], is_prompt: bool
) -> Iterator[tuple[str, Spans]]:
    """The result or error of `render`, within limits of seconds, bytes and characters."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template  # takes a second or two to import

    max_seconds, max_memory, max_text = limits
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(time.process_time()) + 1 + max_seconds),
        (resource.RLIMIT_DATA, max_memory),
    ):
        hard = resource.getrlimit(kind)[1]  # what the user may set
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    answer: tuple[str, Spans] | Exception
    try:
        render = partial(render_jinja_template, chat_template=template, add_generation_prompt=is_prompt, **variables)
        marked = not is_prompt and GENERATION.search(template) is not None
        (text,), marks = render([messages], return_assistant_tokens_mask=marked)
        if len(text) > max_text:
            raise MemoryError
        answer = text, [] if is_prompt else _spans(render, text, messages, marks[0] if marked else None)
    except MemoryError:
        answer = MemoryError()
    except TemplateSyntaxError as error:
        answer = NotJinja(f"line {error.lineno}: {error}")
    except ValueError as error:
        answer = RecordError(str(error))
    except Exception as error:  # noqa: BLE001 (a template may raise any)
        answer = RecordError(f"the chat template fails: {type(error).__name__}: {error}")
    if isinstance(answer, Exception):  # not above, where its traceback would hold what fills the memory
        raise answer
    yield answer


def _spans(render: Any, text: str, messages: list[Message], marks: Spans | None) -> Spans:
    """The span of each answer in a rendered conversation. marks: those of a template that marks answers."""
    if marks is not None:
        if not marks:
            raise RecordError("the chat template marks nothing of this conversation by {% generation %}")
        return marks
    spans = []
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            (prompt,), _ = render([messages[:index]], add_generation_prompt=True)
            (answered,), _ = render([messages[: index + 1]])
            if not answered.startswith(prompt) or not text.startswith(answered):
                raise RecordError(
                    f"the chat template writes message {index + 1}, or one before it, differently in the whole "
                    "conversation, so its place is unknown: use a template that marks answers by {% generation %}"
                )
            spans.append((len(prompt), len(answered)))
    return spans


PROBE: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "An answer."}]


class ChatTemplate:
    """Makes tokens of conversations.

    The position of an answer follows from the template's own {% generation %} marks, or else from rendering the conversation
    up to the answer, once as the prompt of the answer and once with it. Each of these must be the beginning of the whole
    conversation, as text and as tokens: so the model learns each answer after the very tokens that generation would give it.
    An answer ends with the first token after its text at which generation stops.

    Attributes:
        notes: For the user.
        ends: The first special token that the template writes after an answer; empty if it writes none.

    Raises:
        UserError: The template is not Jinja.
    """

    def __init__(self, tokenizer: JsonTokenizer, template: str) -> None:
        self._tokenizer = tokenizer
        special = {f"{role}_token": tokenizer.special_token(role) for role in ("bos", "eos", "unk", "pad")}
        variables = {name: text for name, text in special.items() if text is not None}
        self._render = partial(renderer.render, tokenizer.chat_template_origin, template, variables)
        self.notes: list[str] = []
        self.ends: frozenset[int] = frozenset()
        try:
            ids, answers = self.tokens(PROBE)
        except NotJinja as error:
            raise UserError(
                f"{tokenizer.chat_template_origin}: the chat template is not Jinja ({error}): copy the file again"
            ) from None
        except RecordError:
            return  # templates may refuse a conversation; each refused record is reported
        rendered, _ = self._render(PROBE)
        rest = tokenizer.encode_rendered(rendered.rpartition(PROBE[-1]["content"])[2])
        special_ids = [tokenizer.token_id(text) for text in tokenizer.special_texts]
        self.ends = frozenset([token for token in rest if token in special_ids][:1])
        last = ids[answers[-1][1] - 1]
        if last not in tokenizer.stop_ids:
            stops = ", ".join(repr(tokenizer.piece(token)) for token in tokenizer.stop_ids)
            self.notes.append(
                f"warning: the chat template ends answers with {tokenizer.piece(last)!r}, and generation stops at {stops}: "
                "name the token that ends answers in eos_token_id of generation_config.json beside the tokenizer"
            )

    def tokens(self, messages: list[Message]) -> tuple[list[int], Spans]:
        """The tokens of a conversation, and the span of each answer in them.

        Raises RecordError for a conversation whose answers have no exact place.
        """
        for number, text in self._typed(messages):
            raise RecordError(f"message {number} has the special token {text!r}, which would be one: remove it")
        text, spans = self._render(messages)
        ids = self._tokenizer.encode_rendered(text)
        answers = [(self._prefix(ids, text[:begin]), self._prefix(ids, text[:end])) for begin, end in spans]
        if any(not 0 < begin < end for begin, end in answers):
            raise RecordError("the chat template writes nothing for an answer, or nothing before it")
        return ids, [self._with_stop(ids, begin, end) for begin, end in answers]

    def prompt(self, messages: list[Message]) -> list[int]:
        """The tokens of a conversation up to the answer that follows.

        They are those that `tokens` gives before that answer. A special token that is written out in a message stays text.
        Raises RecordError if the template refuses the conversation.
        """
        if not any(self._typed(messages)):
            return self._tokenizer.encode_rendered(self._render(messages, is_prompt=True)[0])
        hidden = [message | {"content": self._typed_tokens.hide(message["content"])} for message in messages]
        return self._typed_tokens.encode(self._render(hidden, is_prompt=True)[0])

    def _typed(self, messages: list[Message]) -> Iterator[tuple[int, str]]:
        """Number of the message and text of each special token that is written out in a message."""
        for number, message in enumerate(messages, start=1):
            for text in self._tokenizer.special_texts:
                if text in message["content"]:
                    yield number, text

    @cached_property
    def _typed_tokens(self) -> "TypedTokens":
        return TypedTokens(self._tokenizer)

    def _prefix(self, ids: list[int], text: str) -> int:
        """The number of tokens of the beginning of a rendered conversation that has these tokens."""
        prefix = self._tokenizer.encode_rendered(text)
        if ids[: len(prefix)] != prefix:
            raise RecordError(
                f"a token of the conversation lies across the place behind {text[-20:]!r}, where an answer begins or ends: "
                "remove spaces or newlines at that place"
            )
        return len(prefix)

    def _with_stop(self, ids: list[int], begin: int, end: int) -> tuple[int, int]:
        """An answer up to its last stop token, or with the one that follows it."""
        stops = self._tokenizer.stop_ids
        inside = [index for index in range(begin, end) if ids[index] in stops]
        if inside:
            return begin, inside[-1] + 1
        return begin, end + (end < len(ids) and ids[end] in stops)


class TypedTokens:
    """Tokenizes rendered conversations in which special tokens are text where a message has them, and tokens elsewhere.

    In messages they are hidden behind a random number, so that a template does not see them and no one can type what hides
    them. A copy of the tokenizer has the special tokens with that number before their text. So it finds those of the template,
    to which the number is added after rendering, as the tokenizer finds its own, and takes the others for text.
    """

    def __init__(self, tokenizer: JsonTokenizer) -> None:
        self._number = token_hex(16)
        self._texts = sorted(tokenizer.special_texts, key=len, reverse=True)  # of two at one place the longer one counts
        self._special = re.compile("|".join(map(re.escape, self._texts)))
        self._hidden = re.compile(f"{self._number}([0-9]+){self._number}")
        self._backend, self._ids = deepcopy(tokenizer.backend), dict[int | None, int]()
        self._backend.encode_special_tokens = True
        for token_id, token in tokenizer.backend.get_added_tokens_decoder().items():
            if token.special:
                name, kinds = self._number + token.content, ("lstrip", "rstrip", "normalized")
                self._backend.add_tokens([AddedToken(name, **{kind: getattr(token, kind) for kind in kinds})])
                self._ids[self._backend.token_to_id(name)] = token_id

    def hide(self, text: str) -> str:
        """A message's text without special tokens."""
        return self._special.sub(lambda found: f"{self._number}{self._texts.index(found[0])}{self._number}", text)

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendered conversation, in whose messages special tokens are hidden."""
        named = self._special.sub(lambda found: self._number + found[0], text)
        shown = self._hidden.sub(lambda found: self._texts[int(found[1])], named)
        return [self._ids.get(token, token) for token in self._backend.encode(shown, add_special_tokens=False).ids]
