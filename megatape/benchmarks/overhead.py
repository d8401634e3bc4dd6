"""What TAPE costs over RoPE: time of a training step and bytes saved for its backward pass, measured side by side."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from megatape.config import ModelConfig
from megatape.model.accounting import record_saved
from megatape.model.init import initial_weight
from megatape.model.transformer import Transformer
from megatape.parallel.collectives import SINGLE

PAPER_SHAPE = {"hidden_size": 768, "num_heads": 12, "mlp_size": 3072, "vocab_size": 32000, "position_size": 48}


@dataclass(frozen=True)
class Cost:
    """Median seconds of forward and backward pass, and bytes kept between them."""

    seconds: float
    saved: int


@dataclass(frozen=True)
class Comparison:
    """Costs of both encodings, and the median over rounds of the ratio of the times taken within one round."""

    part: str
    rope: Cost
    tape: Cost
    time_ratio: float
    quartiles: tuple[float, float]

    @property
    def saved_ratio(self) -> float:
        return self.tape.saved / self.rope.saved


def compare(num_layers: int, length: int, batch: int, rounds: int) -> list[Comparison]:
    """TAPE over RoPE at the 155M shape with `num_layers` layers, float32, this machine's default device threads.

    Each round runs both encodings one after the other, so that a change of the machine's speed hits both; the first round warms
    up and is not counted. `blocks` leaves out embedding, final norm, head and loss."""
    models = {
        encoding: _model(
            ModelConfig.model_validate(PAPER_SHAPE | {"encoding": encoding, "num_layers": num_layers, "max_positions": length})
        )
        for encoding in ("rope", "tape")
    }
    return [_measure(part, step, models, batch, length, rounds) for part, step in (("blocks", _blocks), ("whole", _whole))]


def _measure(
    part: str,
    step: Callable[[Transformer, int, int], Tensor],
    models: dict[str, Transformer],
    batch: int,
    length: int,
    rounds: int,
) -> Comparison:
    seconds: dict[str, list[float]] = {encoding: [] for encoding in models}
    saved = {}
    for encoding, model in models.items():
        with record_saved(exclude=list(model.parameters())) as record:
            step(model, batch, length)
        saved[encoding] = record.bytes
    for number in range(rounds + 1):
        for encoding, model in models.items():
            model.zero_grad(set_to_none=True)
            started = time.perf_counter()
            step(model, batch, length).backward()
            if number:
                seconds[encoding].append(time.perf_counter() - started)
    ratios = sorted(tape / rope for rope, tape in zip(seconds["rope"], seconds["tape"], strict=True))
    rope, tape = (Cost(statistics.median(seconds[encoding]), saved[encoding]) for encoding in ("rope", "tape"))
    return Comparison(part, rope, tape, statistics.median(ratios), (ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]))


def _whole(model: Transformer, batch: int, length: int) -> Tensor:
    tokens = torch.arange(batch * length).view(batch, length) % model.config.vocab_size
    return model(tokens, torch.arange(length).expand(batch, -1), targets=tokens)


def _blocks(model: Transformer, batch: int, length: int) -> Tensor:
    config = model.config
    x = torch.linspace(-1, 1, batch * length * config.hidden_size).view(batch, length, -1).requires_grad_()
    positions = torch.arange(length).expand(batch, -1)
    e = model.encoding.state(positions, SINGLE)
    for index, block in enumerate(model.blocks):
        x, e = block(x, e, None, index < config.num_layers - 1)
    return x.sum()


def _model(config: ModelConfig) -> Transformer:
    model = Transformer(config)
    for name, parameter in model.named_parameters():
        parameter.data = initial_weight(name, tuple(parameter.shape), config.init_std, 0)
    return model
