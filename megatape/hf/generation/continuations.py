"""Continues prompts with a loaded model.

transformers' TextIteratorStreamer does not fit: it streams only one text, shows the beginning of stop strings, and drops spaces
after line ends if the tokenizer puts a space before texts. StopStringCriteria does not fit either: it also ends a text at a
stop string that begins in the prompt.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from megatape.hf.generation.prompts import Prompt
from megatape.hf.generation.sampling import Sampling
from megatape.hf.generation.streamed_text import Continuation, StreamedText
from megatape.hf.loading.loaded_model import LoadedModel


@torch.no_grad()
def continue_prompts(
    loaded: LoadedModel, prompts: list[Prompt], sampling: Sampling, show: Callable[[str], object] | None = None
) -> list[list[Continuation]]:
    """Continue prompts in one batch, padded on the left.

    At temperature 0, continuations do not depend on the other prompts in the batch. Samples are drawn with torch's default
    generator, which the caller seeds.

    Args:
        loaded: Loaded model.
        prompts: Prompts to continue.
        sampling: Sampling options.
        show: Receives the text of the first continuation in pieces, while it is generated.

    Returns:
        `sampling.samples` continuations for each prompt.
    """
    model = loaded.model
    ends = _end_tokens(model.generation_config.eos_token_id)
    pad = model.generation_config.pad_token_id
    if pad is None:
        # Any token will do, because padding is masked.
        pad = min(ends, default=0)
    tokens, mask = _padded_batch(prompts, pad, model.device)
    texts = []
    for prompt in prompts:
        for _ in range(sampling.samples):
            texts.append(StreamedText(loaded.tokenizer, ends | prompt.ends, sampling.stop))

    reader = _TokenReader(texts, tokens.shape[1], show)
    model.generate(tokens, attention_mask=mask, pad_token_id=pad, stopping_criteria=[reader], **sampling.keywords())
    continuations = [text.finished() for text in texts]
    reader.show_new_text()
    return [continuations[begin : begin + sampling.samples] for begin in range(0, len(texts), sampling.samples)]


def _padded_batch(prompts: list[Prompt], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return token ids padded on the left, and the attention mask, both int64 [prompts, longest prompt]."""
    width = max(len(prompt.ids) for prompt in prompts)
    rows = []
    masks = []
    for prompt in prompts:
        num_padding = width - len(prompt.ids)
        rows.append([pad] * num_padding + prompt.ids)
        masks.append([0] * num_padding + [1] * len(prompt.ids))
    return torch.tensor(rows, device=device), torch.tensor(masks, device=device)


def _end_tokens(eos_token_id: int | list[int] | None) -> set[int]:
    """Return the end tokens in generation_config.json as a set."""
    if eos_token_id is None:
        return set()
    if isinstance(eos_token_id, int):
        return {eos_token_id}
    return set(eos_token_id)


class _TokenReader(StoppingCriteria):
    """Passes new tokens from `generate` to their texts, and stops generating the finished ones.

    Args:
        texts: Texts, one per row of the batch.
        width: Length of the padded prompts in tokens.
        show: Receives the first text in pieces. None shows nothing.
    """

    def __init__(self, texts: list[StreamedText], width: int, show: Callable[[str], object] | None) -> None:
        self._texts = texts
        self._num_read = width
        self._show = show
        self._num_shown = 0

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        new_ids = input_ids[:, self._num_read :].tolist()
        for text, ids in zip(self._texts, new_ids, strict=True):
            for token in ids:
                text.add(token)
        self._num_read = input_ids.shape[1]
        self.show_new_text()
        return torch.tensor([text.end is not None for text in self._texts], device=input_ids.device)

    def show_new_text(self) -> None:
        """Show the settled part of the first text that was not shown before."""
        if self._show is None:
            return
        text = self._texts[0]
        num_settled = text.num_settled()
        self._show(text.text[self._num_shown : num_settled])
        self._num_shown = num_settled
