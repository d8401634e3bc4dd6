"""Sampling options of text generation. Importing them needs no torch."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from megatape.errors import UserError
from megatape.errors.text_checks import check_text
from megatape.utils.values.options import CommandOptions, Count, option

# Default maximum number of new tokens: for a text, and for an answer in a chat.
NEW_TOKENS = 64
CHAT_TOKENS = 1024
# Range of temperatures for which logits / temperature is finite in float32.
MIN_TEMPERATURE = 1e-6
MAX_TEMPERATURE = 1e6


def check_temperature(value: float) -> float:
    """Return the temperature. Raises UserError if dividing logits by it could overflow."""
    if value != 0 and not MIN_TEMPERATURE <= value <= MAX_TEMPERATURE:
        raise UserError(f"give 0 for the likeliest text, or {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g} to sample")
    return value


def check_stop(text: str) -> str:
    """Return the stop string. Raises UserError if it is empty or not valid UTF-8."""
    if not check_text(text, "the text"):
        raise UserError("give at least one character")
    return text


class Sampling(CommandOptions):
    """Sampling options of text generation.

    At temperature 0, each token is the likeliest one. Above 0, it is drawn from softmax(logits / temperature), restricted to
    the likeliest tokens by top_k and top_p.

    Attributes:
        temperature: sampling temperature; 0 always takes the likeliest token
        top_k: sample from the K likeliest tokens
        top_p: sample from the smallest set of tokens with a total probability of at least P
        stop: end a text before this string; repeatable
        samples: samples per prompt
        seed: random seed
    """

    # The upper limits guard against typos: all samples are generated in one batch.
    max_new_tokens: Annotated[int, Field(le=2**20)] = option(
        NEW_TOKENS, description=f"maximum number of new tokens; with --chat {CHAT_TOKENS} by default", ge=1, metavar="N"
    )
    temperature: Annotated[float, AfterValidator(check_temperature)] = option(0.0, metavar="T")
    top_k: Count | None = option(None, metavar="K")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = option(None, metavar="P")
    stop: tuple[Annotated[str, AfterValidator(check_stop)], ...] = option((), metavar="TEXT", repeatable=True)
    samples: Annotated[int, Field(le=2**14)] = option(1, ge=1, metavar="K")
    seed: Annotated[int, Field(lt=2**63)] = option(0, ge=0)

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of transformers' generate."""
        if not self.temperature:
            return {"max_new_tokens": self.max_new_tokens, "do_sample": False}
        # transformers restricts the distribution by default. Setting top_k to 0 and top_p to 1 turns that off.
        top_p = 1.0
        if self.top_p is not None:
            top_p = self.top_p
        return {
            "max_new_tokens": self.max_new_tokens,
            "do_sample": True,
            "temperature": self.temperature,
            "top_k": self.top_k or 0,
            "top_p": top_p,
            "num_return_sequences": self.samples,
        }
