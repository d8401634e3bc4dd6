"""Random number generator states."""

import torch
from torch import Tensor


def rng_snapshot() -> Tensor:
    """Return the state of torch's generators as bytes: the CPU's, then the current GPU's if there is one."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states)


def restore_rng(snapshot: Tensor) -> None:
    """Set torch's generators to a state returned by `rng_snapshot`."""
    cpu_bytes = torch.get_rng_state().numel()
    torch.set_rng_state(snapshot[:cpu_bytes])
    if torch.cuda.is_available() and snapshot.numel() > cpu_bytes:
        torch.cuda.set_rng_state(snapshot[cpu_bytes:])
