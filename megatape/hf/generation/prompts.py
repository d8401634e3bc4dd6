"""Prompts in tokens, made from texts and conversations."""

import logging
from typing import NamedTuple

from megatape.data.finetuning.chat import plain_prompt
from megatape.data.finetuning.chat_template import ChatTemplate
from megatape.data.finetuning.conversation import Conversation
from megatape.errors import UserError
from megatape.hf.generation.sampling import Sampling
from megatape.hf.loading.loaded_model import LoadedModel

LOG = logging.getLogger(__name__)


class Prompt(NamedTuple):
    """Tokens to continue.

    Attributes:
        ids: Token ids.
        ends: Token ids that end the continuation, besides those of the model's generation_config.json.
    """

    ids: list[int]
    ends: frozenset[int] = frozenset()


def read_prompt(loaded: LoadedModel, text: str) -> Prompt:
    """Tokenize a text, with the beginning token if the model's texts have one. An empty text is the beginning token alone.

    Raises:
        UserError: The text is empty, and the model has no beginning token.
    """
    # verbose=False, because we print our own warning about long texts.
    ids: list[int] = loaded.tokenizer(text, verbose=False)["input_ids"]
    if not ids:
        tokenizer = loaded.text_tokenizer()
        begin = tokenizer.special_token("bos")
        if begin is None:
            raise UserError(f"prompt is empty, and {loaded.name} has no token to begin with: give at least one character")
        ids = [tokenizer.token_id(begin)]
    return Prompt(ids)


def check_room(loaded: LoadedModel, num_tokens: int, sampling: Sampling, hint: str = "") -> None:
    """Warn if a prompt and its continuation are longer than the texts that the model is made for.

    Args:
        loaded: The model.
        num_tokens: Number of tokens of the prompt.
        sampling: Options of the continuation.
        hint: End of the warning.

    Raises:
        UserError: The model cannot have so many tokens.
    """
    total = num_tokens + sampling.max_new_tokens
    loaded.check_length(total)
    if total > loaded.max_positions:
        LOG.warning(
            f"warning: a prompt of {num_tokens} tokens and --max-new-tokens {sampling.max_new_tokens} make {total}, but "
            f"{loaded.name} is made for {loaded.max_positions} (max_positions): what comes after them may be worthless{hint}"
        )


class ConversationPrompts:
    """Makes prompts from conversations by the model's chat template. Without a template, as fine-tuning does.

    Args:
        loaded: The model.

    Raises:
        UserError: The chat template is not Jinja.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._tokenizer = loaded.text_tokenizer()
        self._template: ChatTemplate | None = None
        template = self._tokenizer.chat_template
        if template is None:
            LOG.warning('%s has no chat template: conversations are written as "User: ...\\nAssistant: ..."', loaded.name)
        else:
            self._template = ChatTemplate(self._tokenizer, template)

    def prompt(self, conversation: Conversation) -> Prompt:
        """Return the prompt for the next answer in a conversation.

        Raises:
            RecordError: The template rejects the conversation, or the conversation has tools and there is no template.
        """
        if self._template is None:
            return Prompt(plain_prompt(conversation, self._tokenizer))
        return Prompt(self._template.prompt(conversation), self._template.ends)
