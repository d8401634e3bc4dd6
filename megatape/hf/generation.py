"""Text from a trained model.

transformers' TextIteratorStreamer is not used: it streams one text at a time, drops spaces after line ends with tokenizers that
put a space before a text, and shows the beginning of a stop string. Nor is its StopStringCriteria, which also ends a text at a
stop string that begins in the prompt.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import StoppingCriteria

from megatape.errors import UserError
from megatape.hf.loading import LoadedModel

MAX_NEW_TOKENS = 2**20  # guards against typos
MAX_SAMPLES = 2**14  # of a prompt, which are made in one batch
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-6, 1e6  # between which logits / temperature is finite in float32


@dataclass(frozen=True)
class Sampling:
    """How texts are continued; the options of `megatape generate`. Raises UserError for values that make no sense.

    temperature: 0 takes the likeliest token each time; above 0 samples from softmax(logits / temperature), of which top_k keeps
    the likeliest tokens and top_p the fewest with that probability together. stop: strings that end a text.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    samples: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.max_new_tokens <= MAX_NEW_TOKENS:
            bound = "at least 1" if self.max_new_tokens < 1 else f"at most {MAX_NEW_TOKENS}"
            raise UserError(f"max_new_tokens is {self.max_new_tokens}: give {bound}")
        if self.temperature and not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            raise UserError(
                f"temperature is {self.temperature}: give 0 for the likeliest text, or {MIN_TEMPERATURE:g} to "
                f"{MAX_TEMPERATURE:g} to sample"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k is {self.top_k}: give at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}: give a probability above 0, at most 1")
        if not 1 <= self.samples <= MAX_SAMPLES:
            raise UserError(f"samples is {self.samples}: give 1 to {MAX_SAMPLES:,}")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed is {self.seed}: give 0 to {2**63 - 1}")
        for text in self.stop:
            check_text(text, "stop")
        chosen = {"top_k": self.top_k, "top_p": self.top_p, "samples": self.samples if self.samples > 1 else None}
        for option, value in chosen.items():
            if value is not None and not self.temperature:
                raise UserError(f"{option} {value} has no effect on the likeliest text: give `temperature` above 0")

    def options(self) -> dict[str, Any]:
        """The same for transformers' generate."""
        if not self.temperature:
            return {"max_new_tokens": self.max_new_tokens, "do_sample": False}
        # top_k 0 and top_p 1: sample from the model's own distribution, not from transformers' default cut of it.
        return {
            "max_new_tokens": self.max_new_tokens,
            "do_sample": True,
            "temperature": self.temperature,
            "top_k": self.top_k or 0,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "num_return_sequences": self.samples,
        }


class Continuation(NamedTuple):
    """What follows a prompt, and why it ends: "end token", "stop string" or "length"."""

    text: str
    end: str


def check_text(text: str, what: str) -> None:
    """Raise UserError if a text of the user's is empty, or was not in the encoding of the terminal."""
    if not text:
        raise UserError(f"{what} is empty: give at least one character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{what} {text!r} is not valid UTF-8: give it in the encoding of the terminal") from None


def prompt_ids(loaded: LoadedModel, prompt: str) -> list[int]:
    """The tokens of a prompt, with what the model's texts begin with."""
    ids: list[int] = loaded.tokenizer(prompt, verbose=False)["input_ids"]  # it warns of long texts, and so do we
    return ids


def too_long(loaded: LoadedModel, num_tokens: int, sampling: Sampling) -> str | None:
    """A warning if a prompt of `num_tokens` and its continuation have more tokens than the model is made for."""
    total, limit = num_tokens + sampling.max_new_tokens, loaded.model.config.max_position_embeddings
    if total <= limit:
        return None
    return (
        f"warning: a prompt of {num_tokens} tokens and --max-new-tokens {sampling.max_new_tokens} make {total}, but "
        f"{loaded.name} is made for {limit} (max_positions): what comes after them may be worthless"
    )


@torch.no_grad()
def continue_prompts(
    loaded: LoadedModel, prompts: list[list[int]], sampling: Sampling, show: Callable[[str], object] | None = None
) -> list[list[Continuation]]:
    """`sampling.samples` continuations of each prompt, which is a list of tokens; all in one batch, padded on the left.

    Without sampling they are what each prompt gives alone. show: is given the text of the first one as it comes. Samples are
    drawn by torch's generator, which the caller seeds.
    """
    model, width = loaded.model, max(map(len, prompts))
    found = model.generation_config.eos_token_id
    ends = set(found if isinstance(found, list) else [] if found is None else [found])
    pad = model.generation_config.pad_token_id
    if pad is None:
        pad = min(ends, default=0)  # any token: it is masked
    tokens = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    texts = [_Text(loaded.tokenizer, ends, sampling.stop) for _ in range(len(prompts) * sampling.samples)]
    reader = _Reader(texts, width, show)
    model.generate(tokens, attention_mask=mask, pad_token_id=pad, stopping_criteria=[reader], **sampling.options())
    continuations = [text.finished() for text in texts]
    reader.show_rest()
    return [continuations[begin : begin + sampling.samples] for begin in range(0, len(texts), sampling.samples)]


class _Text:
    """A continuation that comes token by token; `text` is as much of it as later tokens do not change.

    end: why it ended, empty until then.
    """

    def __init__(self, tokenizer: Any, ends: set[int], stop: tuple[str, ...]) -> None:
        self.tokenizer, self.ends, self.stop = tokenizer, ends, stop
        self.text, self.end = "", ""
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
            self.text, self.end = self.text[: min(places)], "stop string"


class _Reader(StoppingCriteria):
    """Hands each text its tokens as `generate` appends them to prompts of `width` tokens, and ends those that have ended."""

    def __init__(self, texts: list[_Text], width: int, show: Callable[[str], object] | None) -> None:
        self.texts, self.num_read, self.show, self.num_shown = texts, width, show, 0

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
