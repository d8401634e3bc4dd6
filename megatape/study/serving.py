"""Speed and memory of exported models against a Llama of the same shape: reading a prompt, and decoding token by token.

B batch, N tokens of the prompt.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from megatape.config import ModelConfig, load_config
from megatape.errors import UserError
from megatape.hf.families.family import FIELDS
from megatape.hf.families.tape import Tape
from megatape.hf.modeling.modeling_tape import TapeForCausalLM
from megatape.study.choice import parse_encodings, with_encoding
from megatape.study.efficiency import paper_config
from megatape.study.loss_memory import PeakMemory
from megatape.study.timing import interleaved, spread
from megatape.tables import markdown

BASELINE, BASELINE_ENCODING = "Llama", "rope"
STEPS = 8  # tokens that are decoded in a round


@dataclass(frozen=True)
class Cell:
    """One situation: a batch of prompts, of which every second one is padded in its first half with padding "left"."""

    batch: int
    padding: str
    length: int

    def prompt(self, vocab_size: int, device: torch.device) -> dict[str, Tensor]:
        """Tokens and mask, [B, N]."""
        tokens = torch.arange(self.batch * self.length, device=device).view(self.batch, self.length) % vocab_size
        mask = torch.ones_like(tokens)
        if self.padding == "left":
            mask[::2, : self.length // 2] = 0
        return {"input_ids": tokens, "attention_mask": mask}

    def __str__(self) -> str:
        return f"{self.batch} x {self.length}" + (", padded" if self.padding == "left" else "")


@torch.no_grad()
def read(model: PreTrainedModel, prompt: dict[str, Tensor]) -> Any:
    """The cache after the prompt, and the logits of its last tokens."""
    return model(**prompt, use_cache=True, logits_to_keep=1)


class Decoder:
    """A model that has read a prompt."""

    def __init__(self, model: PreTrainedModel, prompt: dict[str, Tensor]) -> None:
        self.model = model
        self.token, self.mask = prompt["input_ids"][:, -1:], prompt["attention_mask"]
        self.cache = read(model, prompt).past_key_values

    @torch.no_grad()
    def __call__(self) -> None:
        """Decode STEPS tokens."""
        for _ in range(STEPS):
            self.mask = torch.cat([self.mask, torch.ones_like(self.token)], dim=1)
            self.model(self.token, attention_mask=self.mask, past_key_values=self.cache, use_cache=True)


def study(
    file: str | None,
    layers: int | None,
    encodings: str,
    lengths: Sequence[int],
    batches: Sequence[int],
    paddings: Sequence[str],
    dtype: str,
    threads: int,
    rounds: int,
) -> Iterator[str]:
    """Run the study on this machine's GPU, or on its CPU; the arguments are those of `megatape study serving`.

    Raises FileNotFoundError or UserError for bad arguments.
    """
    config = paper_config() if file is None else load_config(file).model
    config = ModelConfig.model_validate(config.model_dump() | {"num_layers": layers or config.num_layers})
    names = parse_encodings(encodings)
    if BASELINE_ENCODING in names:
        raise UserError(f"encodings: {BASELINE_ENCODING} is exported as the {BASELINE} itself, which is always measured")
    cells = [Cell(batch, padding, length) for batch in batches for padding in paddings for length in lengths]
    torch.set_num_threads(threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    models = build(config, names, max(lengths), device, getattr(torch, dtype))
    return report(models, cells, dtype, rounds, device)


def build(
    config: ModelConfig, encodings: list[str], length: int, device: torch.device, dtype: torch.dtype
) -> dict[str, PreTrainedModel]:
    """A Llama and a model with each encoding, of one shape: random weights, no biases, no norm of queries, no scaling.

    Raises UserError if an encoding does not support the shape.
    """
    fields = {theirs: getattr(config, ours) for theirs, ours in FIELDS.items()} | {"head_dim": config.head_dim}
    # Decoding goes beyond the prompt; RandPE draws as many positions as it may.
    fields["max_position_embeddings"] = longest = max(config.max_positions, 2 * length)
    models: dict[str, PreTrainedModel] = {}
    with torch.device(device):
        models[BASELINE] = LlamaForCausalLM(LlamaConfig(**fields))
        for name in encodings:
            size = with_encoding(config, name).position_size
            own = {"encoding": name, "position_size": size, "position_length": longest}
            models[name] = TapeForCausalLM(Tape().new_config(fields | own))
    for model in models.values():
        cast: torch.nn.Module = model.eval()
        cast.to(dtype)
    return models


def report(
    models: dict[str, PreTrainedModel], cells: list[Cell], dtype: str, rounds: int, device: torch.device
) -> Iterator[str]:
    """Yields the paragraphs of the study: the cache, then a table for each cell as soon as it is measured."""
    shape = models[BASELINE].config
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"a CPU, {torch.get_num_threads()} threads"
    how = "times between CUDA events" if device.type == "cuda" else "CPU time, of all threads"
    yield (
        f"{shape.num_hidden_layers} layers of width {shape.hidden_size}, {dtype} on {where}; medians of {rounds} rounds over "
        f"the models ({how}); ratios to {BASELINE}'s in the same round."
    )
    yield cache_table(models, device)
    header = ["prompts", "", "prompt, ms", "ratio", "KiB a token", f"token of {STEPS}, ms", "ratio"]
    for cell in cells:
        yield markdown(header, cell_rows(models, cell, rounds, device))


def cache_table(models: dict[str, PreTrainedModel], device: torch.device) -> str:
    """Bytes that the cache holds for a token."""
    rows = []
    for name, model in models.items():
        layers = read(model, Cell(1, "none", 2).prompt(model.config.vocab_size, device)).past_key_values.layers
        keys, values = (sum(getattr(layer, part).nbytes for layer in layers) // 2 for part in ("keys", "values"))
        rows.append([name, f"{keys:,}", f"{values:,}", f"{keys + values:,}"])
    return markdown(["cache, bytes a token", "keys", "values", "both"], rows)


def cell_rows(models: dict[str, PreTrainedModel], cell: Cell, rounds: int, device: torch.device) -> list[list[str]]:
    """A row for each model: reading the prompts, with the memory that takes, and decoding after them."""
    prompt = cell.prompt(models[BASELINE].config.vocab_size, device)
    memory = {name: peak_memory(model, prompt) / cell.batch / cell.length for name, model in models.items()}
    reading = measured({name: partial(read, model, prompt) for name, model in models.items()}, rounds, device)
    decoding = measured({name: Decoder(model, prompt) for name, model in models.items()}, rounds, device)
    return [
        [
            str(cell),
            name,
            f"{reading[name][0] * 1e3:,.0f}",
            f"{reading[name][1]:.2f}",
            f"{memory[name] / 1024:,.0f}",
            f"{decoding[name][0] / STEPS * 1e3:,.1f}",
            f"{decoding[name][1]:.2f}",
        ]
        for name in models
    ]


def measured(actions: dict[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, tuple[float, float]]:
    """Median seconds of each action, and of their ratio to the baseline's in the same round."""
    seconds = interleaved(actions, rounds, device, time.process_time)
    return {
        name: (
            spread(taken).median,
            spread([own / base for own, base in zip(taken, seconds[BASELINE], strict=True)]).median,
        )
        for name, taken in seconds.items()
    }


def peak_memory(model: PreTrainedModel, prompt: dict[str, Tensor]) -> int:
    """Peak bytes of the tensors that reading the prompt makes, the cache included; without what single operators use inside."""
    with PeakMemory([*model.parameters(), *model.buffers(), *prompt.values()]) as memory:
        read(model, prompt)
    return memory.peak
