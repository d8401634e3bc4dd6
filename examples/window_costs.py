"""Measures what an attention window saves on a CPU: time and memory of one layer, forward and backward, beside full attention.

    python examples/window_costs.py 4096 16384 --window 1024

prints the ratio of a window's costs to those of full attention, for each length. Time is the processor's, on one thread, so
other programs change it less. `--full sdpa` compares with PyTorch's attention instead of the backend that computes the window.
"""

import argparse
import time

import torch

from megatape.attention.attend import get_backend
from megatape.attention.rotation import PositionState
from megatape.lab.benchmark.figures.peak_memory import PeakMemory

NUM_HEADS = 4
HEAD_DIM = 64


def costs(length: int, window: int | None, averages_state: bool, backend_name: str = "blocked") -> tuple[float, int]:
    """Return processor seconds and peak bytes of a layer's attention, forward and backward.

    Args:
        length: Number of tokens.
        window: Number of tokens that a token attends to, or None for all earlier ones.
        averages_state: Whether attention also averages TAPE's position tensor.
        backend_name: Attention backend.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (1, length, NUM_HEADS, HEAD_DIM)
    q, k, v, delta = (torch.randn(shape, generator=generator).requires_grad_() for _ in range(4))
    initial = torch.randn(1, length, 1, HEAD_DIM, generator=generator)
    state = PositionState(initial, delta if averages_state else None)
    backend = get_backend(backend_name)

    def run() -> None:
        if window is None:
            outputs = backend.attend(q, k, v, state, None, None, averages_state)
        else:
            outputs = backend.attend(q, k, v, state, None, None, averages_state, window)
        losses = [output.square().sum() for output in outputs if output is not None]
        torch.autograd.backward(losses)

    start = time.process_time()
    run()
    seconds = time.process_time() - start
    with PeakMemory([q, k, v, delta, initial]) as memory:
        run()
    return seconds, memory.peak


def main() -> None:
    """Print a line for each length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lengths", type=int, nargs="+")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--full", choices=("blocked", "sdpa"), default="blocked", help="backend of full attention")
    options = parser.parse_args()
    torch.set_num_threads(1)
    costs(512, None, True)  # Warm up.
    # With heads of 64, sdpa averages no state on a CPU.
    encodings = (False, True) if options.full == "blocked" else (False,)
    for averages_state in encodings:
        for length in options.lengths:
            full_seconds, full_bytes = costs(length, None, averages_state, options.full)
            seconds, peak_bytes = costs(length, options.window, averages_state)
            name = "tape" if averages_state else "rope"
            print(
                f"{name}, {length} tokens, window {options.window}: time {seconds / full_seconds:.2f}, memory "
                f"{peak_bytes / full_bytes:.2f} of full attention ({full_seconds:.1f} s, {full_bytes / 2**20:.0f} MiB)"
            )


if __name__ == "__main__":
    main()
