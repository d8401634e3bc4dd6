"""The chat template of an imported tokenizer, rendered by transformers in Jinja's sandbox.

The mask of answers that transformers' apply_chat_template returns does not suffice: it needs a
template with marks, and does not tell whether generation would give the same tokens before an answer.
"""

from dataclasses import dataclass

from megatape.data.finetuning.chat_renderer import Message, NotJinja, renderer
from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.errors import RecordError, UserError

PROBE: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@dataclass(frozen=True)
class ConversationTokens:
    """The tokens of a conversation.

    Attributes:
        ids: All tokens.
        answers: [begin, end) of each answer in them.
    """

    ids: list[int]
    answers: list[tuple[int, int]]


class ChatTemplate:
    """Makes tokens of conversations.

    The position of an answer follows from the template's own {% generation %} marks, or else from rendering the conversation
    up to the answer, once as the prompt of the answer and once with it. Each of these must be the beginning of the whole
    conversation, as text and as tokens: so the model learns each answer after the very tokens that generation would give it.
    An answer ends with the first token after its text at which generation stops.

    Attributes:
        notes: For the user.

    Raises:
        UserError: The template is not Jinja.
    """

    def __init__(self, tokenizer: JsonTokenizer, template: str) -> None:
        self._tokenizer, self._template = tokenizer, template
        special = {f"{role}_token": tokenizer.special_token(role) for role in ("bos", "eos", "unk", "pad")}
        self._variables = {name: text for name, text in special.items() if text is not None}
        self.notes: list[str] = []
        try:
            probe = self.tokens(PROBE)
        except NotJinja as error:
            raise UserError(
                f"{tokenizer.chat_template_origin}: the chat template is not Jinja ({error}): copy the file again"
            ) from None
        except RecordError:
            return  # templates may refuse a conversation; each refused record is reported
        last = probe.ids[probe.answers[-1][1] - 1]
        if last not in tokenizer.stop_ids:
            stops = ", ".join(repr(tokenizer.piece(token)) for token in tokenizer.stop_ids)
            self.notes.append(
                f"warning: the chat template ends answers with {tokenizer.piece(last)!r}, and generation stops at {stops}: "
                "name the token that ends answers in eos_token_id of generation_config.json beside the tokenizer"
            )

    def tokens(self, messages: list[Message]) -> ConversationTokens:
        """The tokens of a conversation, up to its last answer. Raises RecordError for one whose answers have no exact place."""
        for number, message in enumerate(messages, start=1):
            for text in self._tokenizer.special_texts:
                if text in message["content"]:
                    raise RecordError(f"message {number} has the special token {text!r}, which would be one: remove it")
        origin = self._tokenizer.chat_template_origin
        text, spans = renderer.render(origin, self._template, self._variables, messages)
        ids = self._tokenizer.encode_rendered(text)
        answers = [(self._prefix(ids, text[:begin]), self._prefix(ids, text[:end])) for begin, end in spans]
        if any(not 0 < begin < end for begin, end in answers):
            raise RecordError("the chat template writes nothing for an answer, or nothing before it")
        return ConversationTokens(ids, [self._with_stop(ids, begin, end) for begin, end in answers])

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
