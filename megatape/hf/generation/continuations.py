"""Continuation of prompts by a loaded model.

transformers' TextIteratorStreamer is not used: it streams one text at a time, drops spaces after line ends with tokenizers that
put a space before a text, and shows the beginning of a stop string. StopStringCriteria is not used either: it also ends a text
at a stop string that begins in the prompt.
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

    Without sampling, each continuation is the one that its prompt has alone. Samples are drawn by torch's generator, which the
    caller seeds.

    Args:
        loaded: The model.
        prompts: Prompts to continue.
        sampling: Options of the continuations.
        show: Receives the text of the first continuation in parts, as it is generated.

    Returns:
        `sampling.samples` continuations of each prompt.
    """
    model = loaded.model
    ends = _end_tokens(model.generation_config.eos_token_id)
    pad = model.generation_config.pad_token_id
    if pad is None:
        # Any token: padding is masked.
        pad = min(ends, default=0)

    width = max(len(prompt.ids) for prompt in prompts)
    rows = []
    masks = []
    texts = []
    for prompt in prompts:
        num_padding = width - len(prompt.ids)
        rows.append([pad] * num_padding + prompt.ids)
        masks.append([0] * num_padding + [1] * len(prompt.ids))
        for _ in range(sampling.samples):
            texts.append(StreamedText(loaded.tokenizer, ends | prompt.ends, sampling.stop))
    tokens = torch.tensor(rows, device=model.device)
    mask = torch.tensor(masks, device=model.device)

    reader = _TokenReader(texts, width, show)
    model.generate(tokens, attention_mask=mask, pad_token_id=pad, stopping_criteria=[reader], **sampling.keywords())
    continuations = [text.finished() for text in texts]
    reader.show_rest()
    return [continuations[begin : begin + sampling.samples] for begin in range(0, len(texts), sampling.samples)]


def _end_tokens(eos_token_id: int | list[int] | None) -> set[int]:
    """Return the end tokens of a generation_config.json."""
    if eos_token_id is None:
        return set()
    if isinstance(eos_token_id, int):
        return {eos_token_id}
    return set(eos_token_id)


class _TokenReader(StoppingCriteria):
    """Passes new tokens from `generate` to their texts, and ends the texts that are complete.

    Args:
        texts: One text for each row of the batch.
        width: Number of tokens of the padded prompts.
        show: Receives the first text in parts, None to show nothing.
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
        self.show_rest()
        return torch.tensor([bool(text.end) for text in self._texts], device=input_ids.device)

    def show_rest(self) -> None:
        """Show the part of the first text that is settled and not shown yet."""
        if self._show is None:
            return
        text = self._texts[0]
        num_settled = text.num_settled()
        self._show(text.text[self._num_shown : num_settled])
        self._num_shown = num_settled
