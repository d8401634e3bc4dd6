"""Makes tokens of conversations by the chat template of an imported tokenizer."""

import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cached_property, partial
from secrets import token_hex

from tokenizers import AddedToken

from megatape.data.finetuning.chat_rendering import Message, NotJinja, Spans, renderer
from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.errors import RecordError, UserError

PROBE: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "An answer."}]


class ChatTemplate:
    """Makes tokens of conversations.

    Each answer begins where generation's prompt for it ends, and ends at the template's {% generation %} mark, or else where
    the conversation rendered up to the answer ends. Each of these must be the beginning of the whole conversation, as text and
    as tokens: so the model learns each answer after the very tokens that generation would give it. An answer ends with the
    first token after its text at which generation stops.

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
