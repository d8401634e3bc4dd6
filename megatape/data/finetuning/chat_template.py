"""Converts conversations to tokens with the chat template of an imported tokenizer."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from secrets import token_hex

from tokenizers import AddedToken

from megatape.data.finetuning.chat_rendering import NotJinja, TemplateSource, renderer
from megatape.data.finetuning.conversation import Conversation, Message
from megatape.data.finetuning.rendered_conversation import Spans
from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.errors import RecordError, UserError

ANSWER = "An answer."
QUESTION = "Another question?"
EXCHANGE: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": ANSWER}]
# Some templates require a system prompt, others reject it.
PROBES: list[list[Message]] = [EXCHANGE, [{"role": "system", "content": "a"}, *EXCHANGE]]


class ChatTemplate:
    """Converts conversations to tokens.

    Each answer begins where generation's prompt for it ends, and ends at the template's {% generation %} mark, or else where
    the conversation rendered up to the answer ends. Each of these texts must be a prefix of the whole conversation, both as
    text and as tokens. So the model learns each answer after exactly the tokens that it would see while generating.

    Each learned answer includes the token at which generation stops. Some templates write this token only before the next
    message: in GLM-4's template, the mark of the next role ends an answer. The last answer of a conversation gets it as well.

    Attributes:
        notes: Notes for the user.
        ends: Set with the token ending answers: the first stop token that the template writes after an answer or at the
            beginning of the next message, or else the first special token there. Empty if it writes none.

    Raises:
        UserError: The template is not Jinja.
    """

    def __init__(self, tokenizer: JsonTokenizer, template: str) -> None:
        self._tokenizer = tokenizer
        variables: dict[str, str] = {}
        for role in ("bos", "eos", "unk", "pad"):
            text = tokenizer.special_token(role)
            if text is not None:
                variables[f"{role}_token"] = text
        self._render = partial(renderer.render, TemplateSource(tokenizer.chat_template_origin, template, variables))
        self.notes: list[str] = []
        self.ends: frozenset[int] = frozenset()
        # Text after an answer, up to and including the token in `ends`; empty if answers contain this token.
        self._closing = ""
        try:
            self._find_end()
        except NotJinja as error:
            raise UserError(
                f"{tokenizer.chat_template_origin}: the chat template is not Jinja ({error}): copy the file again"
            ) from None
        if not self.ends <= set(tokenizer.stop_ids):
            end = ", ".join(repr(tokenizer.piece(token)) for token in self.ends)
            self.notes.append(
                f"warning: the chat template ends answers with {end}, and generation stops at {self._stop_texts()}: "
                f"add {end} to eos_token_id in generation_config.json beside the tokenizer"
            )

    def _find_end(self) -> None:
        """Set the token ending answers, using the first probe in which the template writes one."""
        for messages in PROBES:
            alone, spans = self._try_to_render(messages)
            question = {"role": "user", "content": QUESTION}
            followed, _ = self._try_to_render([*messages, question], is_prompt=True)
            end = self._end_token(after_answer(alone), after_answer(followed))
            if end is not None:
                self.ends = frozenset([end])
                if spans:
                    self._closing = self._text_to_end(end, (alone, followed), *spans[-1])
                return

    def _try_to_render(self, messages: list[Message], is_prompt: bool = False) -> tuple[str, Spans]:
        """Render a probe. Returns an empty text if the template rejects it: rejected records are reported one by one."""
        try:
            return self._render(Conversation(messages), is_prompt=is_prompt)
        except RecordError:
            return "", []

    def _end_token(self, alone: str, followed: str) -> int | None:
        """Return the token ending an answer: the first stop token, or else the first special token.

        Args:
            alone: Text that the template writes after the answer.
            followed: The same if another message follows. Of its further special tokens only the next one counts, because it
                begins that message.
        """
        stops = self._tokenizer.stop_ids
        special = {self._tokenizer.token_id(text) for text in self._tokenizer.special_texts}.union(stops)
        candidates = [token for token in self._tokenizer.encode_rendered(alone) if token in special]
        before_next = [token for token in self._tokenizer.encode_rendered(followed) if token in special]
        candidates += before_next[len(candidates) : len(candidates) + 1]
        for token in candidates:
            if token in stops:
                return token
        if not candidates:
            return None
        return candidates[0]

    def _text_to_end(self, token: int, texts: tuple[str, ...], begin: int, end: int) -> str:
        """Return the text after an answer, up to and including its end token; empty if the answer contains that token.

        Args:
            token: Token ending answers.
            texts: Rendered conversation, without and with another message after it.
            begin: First character of the answer in both texts.
            end: End of the answer in both texts.
        """
        prompt = self._tokenizer.encode_rendered(texts[0][:begin])
        answer = self._tokenizer.encode_rendered(texts[0][:end])
        if token in answer[len(prompt) :]:
            return ""
        piece = str(self._tokenizer.piece(token))
        for text in texts:
            between, match, _ = text[end:].partition(piece)
            if text[:end] == texts[0][:end] and match:
                return between + piece
        return ""

    def _stop_texts(self) -> str:
        return ", ".join(repr(self._tokenizer.piece(token)) for token in self._tokenizer.stop_ids)

    def tokens(self, conversation: Conversation) -> tuple[list[int], Spans]:
        """Return the tokens of a conversation and the spans of its learned answers.

        An end token that the template writes only before another message is appended to the last answer.

        Raises:
            RecordError: An answer has no exact position, or no end token.
        """
        for number, text in self._typed(conversation.messages):
            raise RecordError(f"message {number} has the special token {text!r}, which would be one: remove it")
        self._check_tools(conversation)
        text, spans = self._with_closing(*self._render(conversation))
        ids = self._tokenizer.encode_rendered(text)
        token_spans = []
        for begin, end in spans:
            first = self._prefix(ids, text[:begin])
            last = self._prefix(ids, text[:end])
            token_spans.append((first, last))
        if any(not 0 < first < last for first, last in token_spans):
            raise RecordError("the chat template writes nothing for an answer, or nothing before it")
        return ids, [(first, self._answer_end(ids, first, last)) for first, last in token_spans]

    def _with_closing(self, text: str, spans: Spans) -> tuple[str, Spans]:
        """Extend the answers in a rendered conversation by the text up to their end tokens."""
        if spans:
            _, last_end = spans[-1]
            if self._closing.startswith(text[last_end:]):
                text = text[:last_end] + self._closing
        closed = []
        for begin, end in spans:
            if text.startswith(self._closing, end):
                end += len(self._closing)
            closed.append((begin, end))
        return text, closed

    def prompt(self, conversation: Conversation) -> list[int]:
        """Return the tokens of a conversation up to the next answer, exactly those before that answer in `tokens`.

        Special tokens spelled out in a message stay text.

        Raises:
            RecordError: The template rejects the conversation.
        """
        self._check_tools(conversation)
        if not any(self._typed(conversation.messages)):
            text, _ = self._render(conversation, is_prompt=True)
            return self._tokenizer.encode_rendered(text)
        messages = []
        for message in conversation.messages:
            messages.append(message | {"content": self._typed_tokens.hide(message["content"])})
        text, _ = self._render(replace(conversation, messages=messages), is_prompt=True)
        return self._typed_tokens.encode(text)

    def _check_tools(self, conversation: Conversation) -> None:
        """Raise RecordError if tools or tool calls spell out a special token."""
        calls = [{key: value for key, value in message.items() if key != "content"} for message in conversation.messages]
        for name, value in (("tools", conversation.tools), ("tool_calls", calls)):
            written = json.dumps(value, ensure_ascii=False)
            for text in self._tokenizer.special_texts:
                if text in written:
                    raise RecordError(f"`{name}` has the special token {text!r}, which would be one: remove it")

    def _typed(self, messages: list[Message]) -> Iterator[tuple[int, str]]:
        """Yield (message number, special token) for each special token spelled out in a message."""
        for number, message in enumerate(messages, start=1):
            for text in self._tokenizer.special_texts:
                if text in message["content"]:
                    yield number, text

    @cached_property
    def _typed_tokens(self) -> "TypedTokens":
        return TypedTokens(self._tokenizer)

    def _prefix(self, ids: list[int], text: str) -> int:
        """Return the number of tokens in the beginning of a rendered conversation, given all of its token ids."""
        prefix = self._tokenizer.encode_rendered(text)
        if ids[: len(prefix)] != prefix:
            raise RecordError(
                f"a token of the conversation lies across the position behind {text[-20:]!r}, where an answer begins or ends: "
                "remove spaces or newlines at that position from the message, or from the chat template"
            )
        return len(prefix)

    def _answer_end(self, ids: list[int], begin: int, end: int) -> int:
        """Return the end of an answer including the token at which generation stops, given the token span of its text.

        Raises:
            RecordError: There is no such token.
        """
        stops = self.ends.union(self._tokenizer.stop_ids)
        for index in range(end, begin, -1):
            if ids[index - 1] in stops:
                return index
        if end < len(ids) and ids[end] in stops:
            return end + 1
        answer = self._tokenizer.decode(ids[begin:end])
        raise RecordError(
            f"the chat template writes no token at which generation stops ({self._stop_texts()}) after the answer that ends "
            f"{answer[-20:]!r}, so the model would not learn where to stop: let the template end answers with one"
        )


def after_answer(text: str) -> str:
    """Return the text after the answer in a rendered probe, up to the following question; empty without the answer."""
    _, answer, after = text.rpartition(ANSWER)
    if not answer:
        return ""
    return after.partition(QUESTION)[0]


class TypedTokens:
    """Tokenizes rendered conversations, treating special tokens as text inside messages and as tokens elsewhere.

    Inside messages, special tokens are replaced by a form with a random number, which a template does not recognize and nobody
    can type. In a copy of the tokenizer, the text of each special token begins with this number. After rendering, the number is
    prepended to the template's special tokens, and those in messages are restored. So the copy recognizes only the template's.
    """

    def __init__(self, tokenizer: JsonTokenizer) -> None:
        self._number = token_hex(16)
        # Longer ones first, so that they win over their prefixes.
        self._texts = sorted(tokenizer.special_texts, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, self._texts)))
        self._hidden = re.compile(f"{self._number}([0-9]+){self._number}")
        self._backend = deepcopy(tokenizer.backend)
        self._ids = dict[int | None, int]()
        self._backend.encode_special_tokens = True
        for token_id, token in tokenizer.backend.get_added_tokens_decoder().items():
            if not token.special:
                continue
            name = self._number + token.content
            copy = AddedToken(name, lstrip=token.lstrip, rstrip=token.rstrip, normalized=token.normalized)
            self._backend.add_tokens([copy])
            self._ids[self._backend.token_to_id(name)] = token_id

    def hide(self, text: str) -> str:
        """Replace the special tokens in a message."""
        return self._special.sub(lambda match: f"{self._number}{self._texts.index(match[0])}{self._number}", text)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a rendered conversation whose messages were passed through `hide`."""
        named = self._special.sub(lambda match: self._number + match[0], text)
        shown = self._hidden.sub(lambda match: self._texts[int(match[1])], named)
        encoding = self._backend.encode(shown, add_special_tokens=False)
        return [self._ids.get(token, token) for token in encoding.ids]
