"""Tokenizes prompts and conversations."""

import logging
from typing import NamedTuple

from megatape.data.finetuning.chat import plain_prompt
from megatape.data.finetuning.chat_template import ChatTemplate
from megatape.data.finetuning.conversation import Conversation
from megatape.errors import UserError, flag
from megatape.hf.generation.sampling import Sampling
from megatape.hf.loading.loaded_model import LoadedModel

LOG = logging.getLogger(__name__)


class Prompt(NamedTuple):
    """Tokens to continue.

    Attributes:
        ids: Token ids.
        ends: Token ids that end the continuation, in addition to those in generation_config.json.
    """

    ids: list[int]
    ends: frozenset[int] = frozenset()


def read_prompt(loaded: LoadedModel, text: str) -> Prompt:
    """Tokenize a text, after a begin token if the model uses one. An empty text consists of the begin token.

    Raises:
        UserError: The text is empty, and the model has no begin token.
    """
    # verbose=False, because check_room prints a warning about long texts.
    ids: list[int] = loaded.tokenizer(text, verbose=False)["input_ids"]
    if not ids:
        tokenizer = loaded.text_tokenizer()
        begin = tokenizer.special_token("bos")
        if begin is None:
            raise UserError(
                f"{flag('prompt')} is empty, and {loaded.name} has no token to begin with: give at least one character"
            )
        ids = [tokenizer.token_id(begin)]
    return Prompt(ids)


def check_room(loaded: LoadedModel, num_tokens: int, sampling: Sampling, hint: str = "") -> None:
    """Warn if a prompt and its continuation may exceed the text length that the model was made for.

    Args:
        loaded: Loaded model.
        num_tokens: Length of the prompt in tokens.
        sampling: Sampling options, for the maximum length of the continuation.
        hint: End of the warning.

    Raises:
        UserError: The model does not support a text of this length.
    """
    total = num_tokens + sampling.max_new_tokens
    loaded.check_length(total)
    if total > loaded.max_positions:
        LOG.warning(
            f"warning: a prompt of {num_tokens} tokens and {sampling.max_new_tokens} new ones make {total}, but "
            f"{loaded.name} is made for {loaded.max_positions} (max_positions): output beyond that may be poor{hint}"
        )


class ConversationPrompts:
    """Turns conversations into prompts, with the model's chat template or, if it has none, in the format of fine-tuning.

    Args:
        loaded: Loaded model.

    Raises:
        UserError: The chat template is not valid Jinja.
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
