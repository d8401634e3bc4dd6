"""Text from a trained model, after a prompt or in a conversation.

transformers' TextIteratorStreamer is not used: it streams one text at a time, drops spaces after line ends with tokenizers that
put a space before a text, and shows the beginning of a stop string. Nor is its StopStringCriteria, which also ends a text at a
stop string that begins in the prompt.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import StoppingCriteria

from megatape.data.finetuning.chat import plain_prompt
from megatape.data.finetuning.chat_template import ChatTemplate
from megatape.data.finetuning.conversation import Conversation
from megatape.errors import UserError
from megatape.hf.loading import LoadedModel
from megatape.hf.sampling import Sampling

LOG = logging.getLogger(__name__)


class Prompt(NamedTuple):
    """Tokens to continue.

    Attributes:
        ids: The tokens.
        ends: Tokens that end the continuation, besides those of the model's generation_config.json.
    """

    ids: list[int]
    ends: frozenset[int] = frozenset()


class Continuation(NamedTuple):
    """The text after a prompt, and the reason for its end: "end token", "stop string" or "length"."""

    text: str
    end: str


def read_prompt(loaded: LoadedModel, text: str) -> Prompt:
    """The tokens of a text, after the token with which the model's texts begin; if it is empty, the beginning token alone.

    Raises:
        UserError: The text is empty, and the model has no beginning token.
    """
    ids: list[int] = loaded.tokenizer(text, verbose=False)["input_ids"]  # it warns of long texts, and so do we
    if not ids:
        tokenizer = loaded.text_tokenizer()
        begin = tokenizer.special_token("bos")
        if begin is None:
            raise UserError(f"prompt is empty, and {loaded.name} has no token to begin with: give at least one character")
        ids = [tokenizer.token_id(begin)]
    return Prompt(ids)


def check_room(loaded: LoadedModel, num_tokens: int, sampling: Sampling, hint: str = "") -> None:
    """Warn if a prompt of `num_tokens` and its continuation have more tokens than the model is made for.

    hint: the end of the warning. Raises UserError if the model cannot have so many.
    """
    total = num_tokens + sampling.max_new_tokens
    loaded.check_length(total)
    if total > loaded.max_positions:
        LOG.warning(
            f"warning: a prompt of {num_tokens} tokens and --max-new-tokens {sampling.max_new_tokens} make {total}, but "
            f"{loaded.name} is made for {loaded.max_positions} (max_positions): what comes after them may be worthless{hint}"
        )


@torch.no_grad()
def continue_prompts(
    loaded: LoadedModel, prompts: list[Prompt], sampling: Sampling, show: Callable[[str], object] | None = None
) -> list[list[Continuation]]:
    """`sampling.samples` continuations of each prompt; all in one batch, padded on the left.

    Without sampling they are what each prompt gives alone. show: is given the text of the first one as it comes. Samples are
    drawn by torch's generator, which the caller seeds.
    """
    model = loaded.model
    width = max(len(prompt.ids) for prompt in prompts)
    found = model.generation_config.eos_token_id
    ends = set(found if isinstance(found, list) else [] if found is None else [found])
    pad = model.generation_config.pad_token_id
    if pad is None:
        pad = min(ends, default=0)  # any token: it is masked
    padded = [([pad] * (width - len(ids)) + ids, [0] * (width - len(ids)) + [1] * len(ids)) for ids, _ in prompts]
    tokens, mask = torch.tensor(padded, device=model.device).unbind(1)
    texts = [_Text(loaded.tokenizer, ends | prompt.ends, sampling.stop) for prompt in prompts for _ in range(sampling.samples)]
    reader = _Reader(texts, width, show)
    model.generate(tokens, attention_mask=mask, pad_token_id=pad, stopping_criteria=[reader], **sampling.keywords())
    continuations = [text.finished() for text in texts]
    reader.show_rest()
    return [continuations[begin : begin + sampling.samples] for begin in range(0, len(texts), sampling.samples)]


class _Text:
    """A continuation that comes token by token; `text` is as much of it as later tokens do not change.

    end: why it ended, empty until then.
    """

    def __init__(self, tokenizer: Any, ends: set[int], stop: tuple[str, ...]) -> None:
        self.tokenizer = tokenizer
        self.ends = ends
        self.stop = stop
        self.text = ""
        self.end = ""
        # The last tokens, of which ids[:known] are in the text. A tokenizer may drop a space at the beginning of what it
        # decodes, so even the first are decoded after others.
        self.ids: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
        self.known = len(self.ids)

    def add(self, token: int) -> None:
        """Go on with a token; one after the end is ignored."""
        if self.end:
            return
        if token in self.ends:
            self._read(to_end=True)
            self.end = self.end or "end token"
            return
        self.ids.append(token)
        self._read(to_end=False)

    def finished(self) -> Continuation:
        """The continuation, of which no more comes."""
        if not self.end:
            self._read(to_end=True)
        self.end = self.end or "length"
        return Continuation(self.text, self.end)

    def num_settled(self) -> int:
        """The characters that are no beginning of a stop string."""
        if self.end:
            return len(self.text)
        begun = (size for stop in self.stop for size in range(len(stop) - 1, 0, -1) if self.text.endswith(stop[:size]))
        return len(self.text) - max(begun, default=0)

    def _read(self, to_end: bool) -> None:
        """Decode what came since the last whole character. to_end: what is left of a character that is cut, too."""
        before, now = (self.tokenizer.decode(ids, skip_special_tokens=True) for ids in (self.ids[: self.known], self.ids))
        if now.endswith("\ufffd") and not to_end:
            return
        if len(now) > len(before):
            self.text += now[len(before) :]
            self.ids = self.ids[self.known :]
            self.known = len(self.ids)
        places = [place for place in map(self.text.find, self.stop) if place >= 0]
        if places:
            self.text = self.text[: min(places)]
            self.end = "stop string"


class _Reader(StoppingCriteria):
    """Hands each text its tokens as `generate` appends them to prompts of `width` tokens, and ends those that have ended."""

    def __init__(self, texts: list[_Text], width: int, show: Callable[[str], object] | None) -> None:
        self.texts = texts
        self.num_read = width
        self.show = show
        self.num_shown = 0

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        for text, ids in zip(self.texts, input_ids[:, self.num_read :].tolist(), strict=True):
            for token in ids:
                text.add(token)
        self.num_read = input_ids.shape[1]
        self.show_rest()
        return torch.tensor([bool(text.end) for text in self.texts], device=input_ids.device)

    def show_rest(self) -> None:
        """Show what is settled of the first text and not shown yet."""
        if self.show is not None:
            num_settled = self.texts[0].num_settled()
            self.show(self.texts[0].text[self.num_shown : num_settled])
            self.num_shown = num_settled


class ConversationPrompts:
    """Makes prompts of conversations by the model's chat template, or as fine-tuning does without one.

    Args:
        loaded: The model.

    Raises:
        UserError: The chat template is not Jinja.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._tokenizer = loaded.text_tokenizer()
        template = self._tokenizer.chat_template
        if template is None:
            LOG.warning('%s has no chat template: conversations are written as "User: ...\\nAssistant: ..."', loaded.name)
        self._template = None if template is None else ChatTemplate(self._tokenizer, template)

    def prompt(self, conversation: Conversation) -> Prompt:
        """Return the prompt for the next answer in a conversation.

        Raises:
            RecordError: The template rejects the conversation, or the conversation has tools and there is no template.
        """
        if self._template is not None:
            return Prompt(self._template.prompt(conversation), self._template.ends)
        return Prompt(plain_prompt(conversation, self._tokenizer))
