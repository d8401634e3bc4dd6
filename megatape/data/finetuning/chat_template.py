"""The chat template that an adopted tokenizer brings along, run as transformers runs it: by Jinja, in its sandbox."""

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from megatape.data.tokenizer_json import JsonTokenizer

Message = dict[str, str]  # role and content
PROBE: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Tokens:
    """The tokens of a conversation. answers: [begin, end) of each answer in them."""

    ids: list[int]
    answers: list[tuple[int, int]]


class ChatTemplate:
    """Makes tokens of conversations.

    Where an answer lies follows from the template's own {% generation %} marks, or else from rendering the conversation up to
    the answer, once as the prompt of the answer and once with it. Each of these must be the beginning of the whole
    conversation, as text and as tokens: so the model learns each answer behind the very tokens that generation would give it.
    An answer ends with the first token after its text at which generation stops.

    Attributes: notes, for the user. Raises ValueError for a template that is not Jinja."""

    def __init__(self, tokenizer: JsonTokenizer, template: str) -> None:
        import jinja2
        from transformers.utils import chat_template_utils  # takes a second or two to import

        self._tokenizer, self._template = tokenizer, template
        self._render_all: Any = chat_template_utils.render_jinja_template
        self._marked = GENERATION.search(template) is not None
        special = {f"{role}_token": tokenizer.special_token(role) for role in ("bos", "eos", "unk", "pad")}
        self._variables: dict[str, Any] = {name: text for name, text in special.items() if text is not None}
        try:
            self._render(PROBE)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(
                f"{tokenizer.origin}: the chat template is not Jinja (line {error.lineno}: {error}): copy the file again"
            ) from None
        except Exception:  # noqa: BLE001, S110 (templates may refuse a conversation, which is told of each that they do)
            pass
        self.notes: list[str] = []
        with suppress(ValueError):
            probe = self.tokens(PROBE)
            last = probe.ids[probe.answers[-1][1] - 1]
            if last not in tokenizer.stop_ids:
                stops = ", ".join(repr(tokenizer.piece(token)) for token in tokenizer.stop_ids)
                self.notes.append(
                    f"warning: the chat template ends answers with {tokenizer.piece(last)!r}, and generation stops at {stops}: "
                    "name the token that ends answers in eos_token_id of generation_config.json beside the tokenizer"
                )

    def tokens(self, messages: list[Message]) -> Tokens:
        """The tokens of a conversation, up to its last answer. Raises ValueError for one whose answers have no exact place."""
        for number, message in enumerate(messages, start=1):
            for text in self._tokenizer.special_texts:
                if text in message["content"]:
                    raise ValueError(f"message {number} has the special token {text!r}, which would be one: remove it")
        try:
            text, places = self._places(messages)
        except ValueError:
            raise
        except Exception as error:  # noqa: BLE001 (whatever a template raises)
            raise ValueError(f"the chat template fails: {type(error).__name__}: {error}") from None
        ids = self._tokenizer.encode_rendered(text)
        answers = [(self._prefix(ids, text[:begin]), self._prefix(ids, text[:end])) for begin, end in places]
        if any(not 0 < begin < end for begin, end in answers):
            raise ValueError("the chat template writes nothing for an answer, or nothing before it")
        return Tokens(ids, [self._with_stop(ids, begin, end) for begin, end in answers])

    def _places(self, messages: list[Message]) -> tuple[str, list[tuple[int, int]]]:
        """The rendered conversation, and where in it each answer begins and ends."""
        if self._marked:
            text, places = self._render(messages, marked=True)
            if not places:
                raise ValueError("the chat template marks nothing of this conversation by {% generation %}")
            return text, places
        text, _ = self._render(messages)
        places = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                prompt, _ = self._render(messages[:index], add_generation_prompt=True)
                answered, _ = self._render(messages[: index + 1])
                if not answered.startswith(prompt) or not text.startswith(answered):
                    raise ValueError(
                        f"the chat template writes message {index + 1}, or one before it, differently in the whole "
                        "conversation, so its place is unknown: use a template that marks answers by {% generation %}"
                    )
                places.append((len(prompt), len(answered)))
        return text, places

    def _prefix(self, ids: list[int], text: str) -> int:
        """The number of tokens of the beginning of a rendered conversation that has these tokens."""
        prefix = self._tokenizer.encode_rendered(text)
        if ids[: len(prefix)] != prefix:
            raise ValueError(
                f"a token of the conversation lies across the place behind {text[-20:]!r}, where an answer begins or ends: "
                "remove spaces or newlines at that place"
            )
        return len(prefix)

    def _with_stop(self, ids: list[int], begin: int, end: int) -> tuple[int, int]:
        """An answer up to its last stop token, or with the one that follows it."""
        stops = set(self._tokenizer.stop_ids)
        inside = [place for place in range(begin, end) if ids[place] in stops]
        if inside:
            return begin, inside[-1] + 1
        return begin, end + (end < len(ids) and ids[end] in stops)

    def _render(
        self, messages: list[Message], marked: bool = False, add_generation_prompt: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        """The text of a conversation, and the marked places in it."""
        texts: list[str]
        places: list[list[tuple[int, int]]]
        texts, places = self._render_all(
            conversations=[messages],
            chat_template=self._template,
            return_assistant_tokens_mask=marked,
            add_generation_prompt=add_generation_prompt,
            **self._variables,
        )
        return texts[0], places[0] if marked else []
