"""Reading prompts and decoding after them, with a dynamic or a static cache.

B batch, N prompt tokens, V vocabulary size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, StaticCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from megatape.lab.benchmark.figures.measurement import Measurement, Times
from megatape.lab.benchmark.figures.peak_memory import PeakMemory
from megatape.lab.benchmark.figures.timing import ratio
from megatape.lab.benchmark.models.exported import LLAMA

# Tokens decoded per round.
NUM_DECODED = 8


@dataclass(frozen=True)
class PromptBatch:
    """A batch of prompts.

    Attributes:
        batch: Number of prompts B.
        padding: "left" to pad the first half of every second prompt, or "none".
        length: Prompt length N.
    """

    batch: int
    padding: str
    length: int

    def prompt(self, vocab_size: int, device: torch.device) -> dict[str, Tensor]:
        """Return token ids and attention mask, [B, N]."""
        num_tokens = self.batch * self.length
        tokens = torch.arange(num_tokens, device=device).view(self.batch, self.length) % vocab_size
        mask = torch.ones_like(tokens)
        if self.padding == "left":
            mask[::2, : self.length // 2] = 0
        return {"input_ids": tokens, "attention_mask": mask}

    def __str__(self) -> str:
        text = f"{self.batch} x {self.length}"
        if self.padding == "left":
            text += ", padded"
        return text


class ServingResult(Measurement):
    """Times for reading the prompts and decoding a token, compared with the Llama."""

    prompt: Times
    token: Times


@torch.no_grad()
def read(model: PreTrainedModel, prompt: dict[str, Tensor]) -> CausalLMOutputWithPast:
    """Run a model on a prompt. The output has the cache, and the last tokens' logits."""
    return model(**prompt, use_cache=True, logits_to_keep=1)


def peak_memory(model: PreTrainedModel, prompt: dict[str, Tensor]) -> int:
    """Return the peak bytes of tensors created while reading a prompt: with the cache, without operators' scratch memory."""
    inputs = [*model.parameters(), *model.buffers(), *prompt.values()]
    with PeakMemory(inputs) as memory:
        read(model, prompt)
    return memory.peak


class Decoder:
    """A model that has read a prompt, and decodes NUM_DECODED more tokens per call."""

    def __init__(self, model: PreTrainedModel, prompt: dict[str, Tensor]) -> None:
        self.model = model
        self.token = prompt["input_ids"][:, -1:]
        self.mask = prompt["attention_mask"]
        self.cache = read(model, prompt).past_key_values

    @torch.no_grad()
    def __call__(self) -> None:
        for _ in range(NUM_DECODED):
            self.mask = torch.cat([self.mask, torch.ones_like(self.token)], dim=1)
            self.model(self.token, attention_mask=self.mask, past_key_values=self.cache, use_cache=True)


class StaticSession:
    """A model with a static cache, compiled into two CUDA graphs: one for the prompt, one for a single token.

    On a CPU, which is for tests, the traced operations run without further compilation.
    """

    def __init__(self, model: PreTrainedModel, prompt: dict[str, Tensor]) -> None:
        self.length = prompt["input_ids"].shape[1]
        self.mask = F.pad(prompt["attention_mask"], (0, NUM_DECODED), value=1)
        self.positions = (self.mask.cumsum(1) - 1).clamp(min=0)
        last_token = prompt["input_ids"][:, -1:]
        self.tokens = torch.cat([prompt["input_ids"], last_token.expand(-1, NUM_DECODED)], dim=1)
        self.cache = StaticCache(config=model.config, max_cache_len=self.length + NUM_DECODED)
        # The first call allocates the cache. Its memory must not belong to a graph.
        self._run(model.forward, 0, self.length)
        compiler: dict[str, str] = {"backend": "aot_eager"}
        if self.mask.is_cuda:
            compiler = {"mode": "reduce-overhead"}
        self.forward = torch.compile(  # type: ignore[call-overload]
            model.forward,
            fullgraph=True,
            dynamic=False,
            **compiler,
        )

    def read(self) -> Tensor:
        """Read the prompt. Returns the last token's logits, [B, 1, V]."""
        self._truncate_cache(0)
        return self._run(self.forward, 0, self.length)

    def decode(self) -> Tensor:
        """Decode NUM_DECODED tokens after the prompt. Returns the last one's logits, [B, 1, V]."""
        self._truncate_cache(self.length)
        for first in range(self.length, self.length + NUM_DECODED):
            logits = self._run(self.forward, first, first + 1)
        return logits

    def _truncate_cache(self, length: int) -> None:
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(length)

    @torch.no_grad()
    def _run(self, forward: Callable[..., Any], first: int, end: int) -> Tensor:
        """Run the model on tokens first .. end - 1. Returns the last one's logits."""
        torch.compiler.cudagraph_mark_step_begin()
        output = forward(
            self.tokens[:, first:end].clone(),
            attention_mask=self.mask,
            position_ids=self.positions[:, first:end].clone(),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits
        return logits


def times_beside_llama(reading: dict[str, list[float]], decoding: dict[str, list[float]]) -> dict[str, ServingResult]:
    """Return each model's times, compared with the Llama.

    Args:
        reading: Model name -> seconds per round for reading the prompts.
        decoding: Model name -> seconds per round for decoding NUM_DECODED tokens.
    """
    results = {}
    for name, seconds in reading.items():
        decoding_seconds = decoding[name]
        prompt = Times(seconds=median(seconds), ratio=ratio(seconds, reading[LLAMA]).median)
        token = Times(
            seconds=median(decoding_seconds) / NUM_DECODED,
            ratio=ratio(decoding_seconds, decoding[LLAMA]).median,
        )
        results[name] = ServingResult(prompt=prompt, token=token)
    return results
