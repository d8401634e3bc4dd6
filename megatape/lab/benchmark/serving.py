"""Speed and memory of exported models against a Llama of the same shape: reading a prompt, and decoding token by token.

B batch, N tokens of the prompt.
"""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, StaticCache

from megatape.config import ModelConfig
from megatape.errors import UserError
from megatape.hf.families.family import FIELDS
from megatape.hf.modeling.configuration_tape import TapeConfig
from megatape.hf.modeling.modeling_tape import TapeForCausalLM
from megatape.lab.benchmark.models import compute_dtype, shapes
from megatape.lab.benchmark.results import Result, Results, rows_of, titled
from megatape.lab.benchmark.timing import Timer, ratio
from megatape.lab.benchmark.worker import Bench
from megatape.lab.encodings import BASELINE as BASELINE_ENCODING
from megatape.lab.encodings import with_encoding
from megatape.utils.tables import markdown
from megatape.utils.torch_internals import TorchDispatchMode, tree_leaves
from megatape.utils.units import format_milliseconds, plural

BASELINE = "Llama"
STEPS = 8  # tokens that are decoded in a round
CELLS = {"155m": ((1, 128), (32, 1024)), "1b": ((1, 2048),)}  # of the GPU benchmark: batch, tokens; each compiles four graphs
CELLS_TINY = {"155m": ((2, 24),)}


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
        self.token = prompt["input_ids"][:, -1:]
        self.mask = prompt["attention_mask"]
        self.cache = read(model, prompt).past_key_values

    @torch.no_grad()
    def __call__(self) -> None:
        """Decode STEPS tokens."""
        for _ in range(STEPS):
            self.mask = torch.cat([self.mask, torch.ones_like(self.token)], dim=1)
            self.model(self.token, attention_mask=self.mask, past_key_values=self.cache, use_cache=True)


class StaticSession:
    """A model with a static cache, of which torch.compile makes two CUDA graphs: of the prompt, and of one token.

    On a CPU, for tests, what is traced runs as it is.
    """

    def __init__(self, model: PreTrainedModel, prompt: dict[str, Tensor]) -> None:
        self.length = prompt["input_ids"].shape[1]
        self.mask = F.pad(prompt["attention_mask"], (0, STEPS), value=1)
        self.positions = (self.mask.cumsum(1) - 1).clamp(min=0)
        self.tokens = torch.cat([prompt["input_ids"], prompt["input_ids"][:, -1:].expand(-1, STEPS)], dim=1)
        self.cache = StaticCache(config=model.config, max_cache_len=self.length + STEPS)
        self._run(model.forward, 0, self.length)  # the cache takes its memory, which must not lie in a graph
        by: dict[str, str] = {"mode": "reduce-overhead"} if self.mask.is_cuda else {"backend": "aot_eager"}
        self.forward = torch.compile(model.forward, fullgraph=True, dynamic=False, **by)  # type: ignore[call-overload]

    def read(self) -> Tensor:
        """Read the prompt. Returns the logits of its last token, [B, 1, V]."""
        return self._truncate_cache(0)._run(self.forward, 0, self.length)

    def decode(self) -> Tensor:
        """Decode STEPS tokens after the prompt. Returns the logits of the last one."""
        self._truncate_cache(self.length)
        return [self._run(self.forward, first, first + 1) for first in range(self.length, self.length + STEPS)][-1]

    def _truncate_cache(self, length: int) -> Self:
        """With only this many tokens in the cache."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(length)
        return self

    @torch.no_grad()
    def _run(self, forward: Callable[..., Any], first: int, end: int) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        tokens = self.tokens[:, first:end].clone()
        positions = self.positions[:, first:end].clone()
        given = {"attention_mask": self.mask, "position_ids": positions, "past_key_values": self.cache}
        return forward(tokens, **given, use_cache=True, logits_to_keep=1).logits


def serving(bench: Bench) -> None:
    """Measure TAPE in all cells of a shape, then in those of the next."""
    for name, cells in (CELLS_TINY if bench.tiny else CELLS).items():
        model = shapes(bench.tiny)[name].model
        longest = max(length for _, length in cells)
        device = bench.timer.device
        models = cache(partial(build, model, ["tape"], longest, device, compute_dtype(device)))
        for batch, length in cells:
            bench.measure(f"{name}/{batch} x {length}", partial(_tape, bench.timer, models, Cell(batch, "none", length)))


def _tape(timer: Timer, build_once: Callable[[], dict[str, PreTrainedModel]], cell: Cell) -> Result:
    torch.compiler.reset()  # graphs of earlier cells, whose memory it frees
    models = build_once()
    prompt = cell.prompt(models[BASELINE].config.vocab_size, timer.device)
    sessions = {name: StaticSession(model, prompt) for name, model in models.items()}
    reading = timer.times({name: session.read for name, session in sessions.items()})
    return figures(reading, timer.times({name: session.decode for name, session in sessions.items()}))["tape"]


def table(results: Results) -> Iterator[str]:
    """A table with a row for each shape and batch of prompts."""
    rows = []
    for words, r in rows_of(results, "serving"):
        prompt = r["prompt"]
        token = r["token"]
        times = [format_milliseconds(prompt["seconds"]), f"{prompt['ratio']:.2f}", format_milliseconds(token["seconds"])]
        rows.append([", ".join(words), *times, f"{token['ratio']:.2f}"])
    header = ["prompts", "prompt, ms", "over Llama", "token, ms", "over Llama"]
    yield from titled("Exported TAPE", header, rows)


def build(
    config: ModelConfig, encodings: list[str], length: int, device: torch.device, dtype: torch.dtype
) -> dict[str, PreTrainedModel]:
    """A Llama and a model with each encoding, of one shape: random weights, no biases, no norm of queries, no scaling.

    Raises UserError if an encoding does not support the shape, or is the Llama's.
    """
    if BASELINE_ENCODING in encodings:
        raise UserError(f"encodings: {BASELINE_ENCODING} is exported as the {BASELINE} itself, which is always measured")
    fields = {theirs: getattr(config, ours) for theirs, ours in FIELDS.items()} | {"head_dim": config.head_dim}
    # Decoding goes beyond the prompt; RandPE draws as many positions as it may.
    fields["max_position_embeddings"] = longest = max(config.max_positions, 2 * length)
    models: dict[str, PreTrainedModel] = {}
    with torch.device(device):
        models[BASELINE] = LlamaForCausalLM(LlamaConfig(**fields))
        for name in encodings:
            size = with_encoding(config, name).position_size
            own = {"encoding": name, "position_size": size, "position_length": longest}
            models[name] = TapeForCausalLM(TapeConfig(**fields, **own))
    for model in models.values():
        cast: torch.nn.Module = model.eval()
        cast.to(dtype)
    return models


def report(models: dict[str, PreTrainedModel], cells: list[Cell], dtype: str, timer: Timer) -> Iterator[str]:
    """Yields the paragraphs: the cache, then a table for each cell as soon as it is measured."""
    shape = models[BASELINE].config
    device = timer.device
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"a CPU, {torch.get_num_threads()} threads"
    how = "times between CUDA events" if device.type == "cuda" else "CPU time, of all threads"
    yield (
        f"{plural(shape.num_hidden_layers, 'layer')} of width {shape.hidden_size}, {dtype} on {where}; medians of "
        f"{timer.rounds} rounds over the models ({how}); ratios to {BASELINE}'s in the same round."
    )
    yield cache_table(models, device)
    header = ["prompts", "", "prompt, ms", "ratio", "KiB a token", f"token of {STEPS}, ms", "ratio"]
    for cell in cells:
        yield markdown(header, cell_rows(models, cell, timer))


def cache_table(models: dict[str, PreTrainedModel], device: torch.device) -> str:
    """Bytes that the cache holds for a token."""
    rows = []
    for name, model in models.items():
        layers = read(model, Cell(1, "none", 2).prompt(model.config.vocab_size, device)).past_key_values.layers
        keys, values = (sum(getattr(layer, part).nbytes for layer in layers) // 2 for part in ("keys", "values"))
        rows.append([name, f"{keys:,}", f"{values:,}", f"{keys + values:,}"])
    return markdown(["cache, bytes a token", "keys", "values", "both"], rows)


def cell_rows(models: dict[str, PreTrainedModel], cell: Cell, timer: Timer) -> list[list[str]]:
    """A row for each model: reading the prompts, with the memory that takes, and decoding after them."""
    prompt = cell.prompt(models[BASELINE].config.vocab_size, timer.device)
    memory = {name: peak_memory(model, prompt) / cell.batch / cell.length for name, model in models.items()}
    reading = timer.times({name: partial(read, model, prompt) for name, model in models.items()})
    decoding = timer.times({name: Decoder(model, prompt) for name, model in models.items()})
    return [
        [
            str(cell),
            name,
            f"{found['prompt']['seconds'] * 1e3:,.0f}",
            f"{found['prompt']['ratio']:.2f}",
            f"{memory[name] / 1024:,.0f}",
            f"{found['token']['seconds'] * 1e3:,.1f}",
            f"{found['token']['ratio']:.2f}",
        ]
        for name, found in figures(reading, decoding).items()
    ]


def figures(reading: dict[str, list[float]], decoding: dict[str, list[float]]) -> dict[str, Result]:
    """By model, seconds to read the prompts and to decode a token, and their ratios to the baseline's in the same round.

    reading, decoding: Seconds of each round, for the prompts and for STEPS tokens.
    """

    def figure(seconds: dict[str, list[float]], name: str, steps: int) -> dict[str, float]:
        return {"seconds": median(seconds[name]) / steps, "ratio": ratio(seconds[name], seconds[BASELINE]).median}

    return {name: {"prompt": figure(reading, name, 1), "token": figure(decoding, name, STEPS)} for name in reading}


class PeakMemory(TorchDispatchMode):
    """Peak bytes of the tensors created in the block. inputs: tensors created before it, which do not count."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in inputs}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in self.known:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        return result

    def _freed(self, identity: int, count: int) -> None:
        self.known.discard(identity)
        self.now -= count


def peak_memory(model: PreTrainedModel, prompt: dict[str, Tensor]) -> int:
    """Peak bytes of the tensors that reading the prompt makes, the cache included; without what single operators use inside."""
    with PeakMemory([*model.parameters(), *model.buffers(), *prompt.values()]) as memory:
        read(model, prompt)
    return memory.peak
