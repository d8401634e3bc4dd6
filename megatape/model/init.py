"""Initial weights: a function of the seed and the parameter's name alone, so that no way of sharding changes them."""

import hashlib

import torch
from torch import Tensor

ROWS = 1024  # rows drawn from one generator: whoever owns part of a parameter draws only the blocks it touches


def initial_slice(name: str, shape: tuple[int, ...], start: int, stop: int, std: float, seed: int) -> Tensor:
    """Elements [start, stop) of the flattened float32 initial value of the parameter `name`.

    Norms are one. TAPE's gain and W_up are zero, so that training starts from rotary positions. All else is normal with
    standard deviation `std`."""
    if name.endswith("norm.weight"):
        return torch.ones(stop - start)
    if name.endswith(("position.gain", "position.up")):
        return torch.zeros(stop - start)
    width = shape[1]
    first = start // width // ROWS
    blocks = []
    for block in range(first, (stop - 1) // width // ROWS + 1):
        rows = min(ROWS, shape[0] - block * ROWS)
        digest = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        blocks.append(torch.empty(rows * width).normal_(0.0, std, generator=generator))
    offset = first * ROWS * width
    return torch.cat(blocks)[start - offset : stop - offset]
