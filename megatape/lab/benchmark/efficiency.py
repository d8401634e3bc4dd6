"""Costs of each encoding: counts from the shape, and times measured side by side.

B batch, N tokens.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

from megatape.accounting.counts import count_parameters, forward_flops, record_saved
from megatape.attention.attend import backends_by_priority
from megatape.attention.rotation import PositionState
from megatape.config import ActivationCheckpointing, ModelConfig
from megatape.lab.benchmark.models import Shape, compute_dtype, compute_precision, paper_config
from megatape.lab.benchmark.timing import Timer, ratio, spread
from megatape.lab.encodings import BASELINE, with_encoding
from megatape.lab.paper import COST_LAYERS, COST_LENGTH, COSTS, SHAPE
from megatape.model.block import Block, Streams
from megatape.model.build import build_model
from megatape.model.init import initial_weight
from megatape.registry import AUTO
from megatape.utils.tables import markdown
from megatape.utils.units import format_milliseconds, plural


@dataclass(frozen=True)
class Cost:
    """Counts for one encoding.

    Attributes:
        parameters: Number of weights.
        flops: FLOPs of the forward pass of one sequence.
        saved: Bytes that autograd keeps for the backward pass of the batch, without weights.
        saved_blocks: Those of the blocks alone.
    """

    parameters: int
    flops: int
    saved: int
    saved_blocks: int


class Subject:
    """One encoding's model and its inputs. It shares weights of equal name and shape through `weights`, and adds its own.

    Attributes:
        model: The model.
        tokens: Token ids [B, N].
        positions: Position ids [B, N].
        state: State of the encoding at these positions.
        x: Input of the blocks [B, N, D].
    """

    def __init__(
        self,
        shape: Shape,
        device: torch.device,
        weights: dict[tuple[str, torch.Size], Tensor],
        attention: str = AUTO,
        checkpointing: ActivationCheckpointing = "none",
    ) -> None:
        config = shape.model
        batch = shape.batch
        length = shape.length
        backends = None if attention == AUTO else backends_by_priority(attention)
        self.model = build_model(config, backends=backends, update_by_kernel=True, activation_checkpointing=checkpointing)
        dtype = compute_dtype(device)
        for name, parameter in self.model.named_parameters():
            if (name, parameter.shape) not in weights:
                value = initial_weight(name, parameter, config.init_std, 0)
                weights[name, parameter.shape] = value.to(device, dtype)
            parameter.data = weights[name, parameter.shape]
        self.tokens = torch.arange(batch * length, device=device).view(batch, length) % config.vocab_size
        drawn = torch.as_tensor(self.model.encoding.positions(random_offset=False).evaluation(length, 0))
        self.positions = drawn.to(device).expand(batch, -1)
        self.state = PositionState(self.model.encoding.state(self.positions))
        self.x = torch.linspace(-1, 1, batch * length * config.hidden_size, device=device, dtype=dtype).view(batch, length, -1)

    def loss(self) -> Tensor:
        """Forward pass of the whole model with its loss."""
        return self.model(self.tokens, self.positions, targets=self.tokens)

    def blocks(self) -> Tensor:
        """Forward pass of the blocks alone, without embedding, final norm, head and loss. Returns the sum of their output."""
        streams = Streams(self.x.detach().requires_grad_(), PositionState(self.model.encoding.state(self.positions)))
        for block in self.model.blocks:
            streams = block(streams)
        return streams.x.sum()

    @torch.no_grad()
    def inference(self) -> None:
        """Logits of all tokens, without gradients and without a cache."""
        self.model(self.tokens, self.positions)

    @torch.no_grad()
    def attention_layer(self) -> None:
        """Attention and position update of one block, without gradients; the update takes attention's output for the MLP's."""
        block = next(module for module in self.model.modules() if isinstance(module, Block))
        attended, attended_positions = block.attention(self.x, self.state, move=True)
        if block.position is not None:
            block.position(self.state, attended_positions, attended)

    def cost(self) -> Cost:
        """Counts for this encoding. Runs both forward passes to count the saved bytes."""
        config = self.model.config
        saved = []
        for forward in (self.loss, self.blocks):
            with record_saved(exclude=list(self.model.parameters())) as record:
                forward()
            saved.append(record.bytes)
        return Cost(count_parameters(config).total, forward_flops(config, self.tokens.shape[1]), *saved)


class LlamaSubject:
    """transformers' Llama of the same shape, with its own weights, the same inputs and attention by `sdpa`.

    The final norm, which transformers counts among the blocks, is in `blocks`.
    """

    def __init__(self, subject: Subject) -> None:
        from megatape.lab.benchmark.serving import BASELINE as LLAMA
        from megatape.lab.benchmark.serving import build  # transformers takes seconds to import

        self.tokens = subject.tokens
        self.x = subject.x
        config = subject.model.config
        length = subject.tokens.shape[1]
        self.model = build(config, [], length, subject.x.device, subject.x.dtype)[LLAMA].train()

    def loss(self) -> Tensor:
        """As Subject has it."""
        return self.model(self.tokens, labels=self.tokens, use_cache=False).loss

    def blocks(self) -> Tensor:
        """As Subject has it, with the final norm."""
        inputs = self.x.detach().requires_grad_()
        return self.model.base_model(inputs_embeds=inputs, use_cache=False).last_hidden_state.sum()


def train(model: nn.Module, forward: Callable[[], Tensor]) -> None:
    """Forward and backward pass, without the optimizer."""
    forward().backward()
    model.zero_grad(set_to_none=True)


TRAINING_PARTS: dict[str, Callable[[Subject | LlamaSubject], None]] = {
    "training step": lambda subject: train(subject.model, subject.loss),
    "training step, blocks alone": lambda subject: train(subject.model, subject.blocks),
}
PARTS: dict[str, Callable[[Subject], None]] = {
    **TRAINING_PARTS,
    "inference": Subject.inference,
    "attention layer": Subject.attention_layer,
}


def prepare(
    shape: Shape, encodings: list[str], device: torch.device, modes: Sequence[ActivationCheckpointing] = ()
) -> dict[str, Subject]:
    """The same model with the baseline and each encoding, and each of them again with these modes of activation checkpointing.

    Raises UserError if an encoding does not support the shape.
    """
    weights: dict[tuple[str, torch.Size], Tensor] = {}
    names = encodings if BASELINE in encodings else [BASELINE, *encodings]
    encoded = {name: replace(shape, model=with_encoding(shape.model, name)) for name in names}
    subjects = {name: Subject(own, device, weights) for name, own in encoded.items()}
    for name, mode in product(names, modes):
        subjects[f"{name}, {mode}"] = Subject(encoded[name], device, weights, checkpointing=mode)
    return subjects


def report(
    shape: Shape,
    encodings: list[str],
    rounds: int,
    device: torch.device,
    modes: Sequence[ActivationCheckpointing] = (),
    llama: bool = False,
) -> Iterator[str]:
    """Yields the paragraphs. The baseline is always measured; sizes and rounds are at least 1.

    llama: whether training steps of transformers' Llama are timed, too.

    Raises UserError if an encoding does not support the shape.
    """
    flops = forward_flops(paper_config(), COST_LENGTH)
    paper = COSTS[BASELINE]
    yield (
        f"RoPE's forward pass at the paper's shape: {flops / 1e9:.2f} G FLOPs and {flops / 2e9:.2f} G MACs here, "
        f"{paper.flops:.2f} and {paper.multiply_adds:.2f} in the paper ({flops / 1e9 / paper.flops - 1:+.2%} FLOPs: we count "
        "matrix products only)."
    )
    subjects = prepare(shape, encodings, device, modes)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"a CPU with {torch.get_num_threads()} threads"
    on_cpu = f"{'in processor time' if torch.get_num_threads() == 1 else 'in wall time'} (CPU times say little about GPU times)"
    how = "with CUDA events" if device.type == "cuda" else on_cpu
    yield (
        f"{plural(shape.model.num_layers, 'layer')} of width {shape.model.hidden_size}, N {shape.length}, batch {shape.batch}, "
        f"{compute_precision(device)} on {where}; {rounds} rounds over the encodings, timed {how}: medians, quartiles in "
        f"parentheses, ratios to {BASELINE} in the same round."
    )
    # What other programs do does not lengthen the processor's time of one thread.
    timer = Timer(device, rounds, clock=time.process_time if torch.get_num_threads() == 1 else time.perf_counter)
    in_paper = is_paper_shape(shape.model, shape.length)
    by_transformers = LlamaSubject(subjects[BASELINE]) if llama else None
    yield costs_table({name: subject.cost() for name, subject in subjects.items()}, in_paper)
    for part, run in PARTS.items():
        actions: dict[str, Callable[[], object]] = {name: partial(run, each) for name, each in subjects.items()}
        if by_transformers and part in TRAINING_PARTS:
            actions["Llama of transformers"] = partial(TRAINING_PARTS[part], by_transformers)
        yield f"{part}:\n\n" + times_table(timer.times(actions), part, shape.batch * shape.length, in_paper)


def is_paper_shape(config: ModelConfig, length: int) -> bool:
    """Whether the paper's numbers are for this model and length."""
    shape = {key: getattr(config, key) for key in SHAPE}
    return shape == SHAPE and config.num_layers == COST_LAYERS and length == COST_LENGTH


def costs_table(costs: dict[str, Cost], in_paper: bool) -> str:
    """Counts, beside the paper's if they are for this shape."""
    rows = []
    for name, cost in costs.items():
        paper = COSTS.get(name) if in_paper else None
        ours = (f"{cost.parameters / 2**20:.2f}", f"{cost.flops / 1e9:.2f}", f"{cost.flops / 2e9:.2f}")
        theirs = (f"{paper.parameters:.2f}", f"{paper.flops:.2f}", f"{paper.multiply_adds:.2f}") if paper else ("",) * 3
        counts = [text for pair in zip(ours, theirs, strict=True) for text in pair] if in_paper else list(ours)
        saved = [f"{cost.saved / 2**20:.1f}", f"{cost.saved / costs[BASELINE].saved:.3f}"]
        saved += [f"{cost.saved_blocks / 2**20:.1f}", f"{cost.saved_blocks / costs[BASELINE].saved_blocks:.3f}"]
        rows.append([f"`{name}`", *counts, *saved])
    columns = [("parameters, 2^20", "paper"), ("forward, G FLOPs", "paper"), ("G MACs", "paper")]
    header = [text for ours, theirs in columns for text in ([ours, theirs] if in_paper else [ours])]
    return markdown(["", *header, "activations, MiB", "ratio", "of blocks, MiB", "ratio"], rows)


def times_table(seconds: dict[str, list[float]], part: str, tokens: int, in_paper: bool) -> str:
    """Times of one part, beside the paper's for an attention layer of its shape. tokens: number in the batch."""
    theirs = in_paper and part == "attention layer"
    rows = []
    for name, taken in seconds.items():
        own = spread(taken)
        over = ratio(taken, seconds[BASELINE])
        row = [
            f"`{name}`",
            f"{format_milliseconds(own.median)} ({format_milliseconds(own.low)} to {format_milliseconds(own.high)})",
            f"{over.median:.3f} ({over.low:.3f} to {over.high:.3f})",
            f"{tokens / own.median:,.0f}",
        ]
        if theirs:
            paper = COSTS.get(name)
            base = COSTS[BASELINE].attention_seconds
            row += [f"{paper.attention_seconds * 1e3:.3f}", f"{paper.attention_seconds / base:.2f}"] if paper else ["", ""]
        rows.append(row)
    return markdown(["", "ms", "ratio", "tokens/s", *(["paper, ms", "ratio"] if theirs else [])], rows)
