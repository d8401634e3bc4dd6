"""Prefetches the batches of the next steps in a thread."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from megatape.data.training.loader import Batch, Loader
from megatape.errors import UserError

STEPS_AHEAD = 4  # a file server that is slow for less than their time is not noticed


@dataclass(frozen=True)
class StepBatches:
    """A rank's micro-batches of one step, in host memory.

    Attributes:
        batches: one for each micro-batch.
        num_targets: targets of the batches that count in the loss.
        digest: of their samples (order.samples_digest).
        error: why they cannot be read, or "".
    """

    batches: list[Batch]
    num_targets: int = 0
    digest: int = 0
    error: str = ""


class Prefetcher(AbstractContextManager["Prefetcher"]):
    """The batches of a rank: a function of the samples consumed before them, so prefetching never affects the order.

    Context manager: its end ends the thread.

    Attributes:
        waited: seconds in which `get` waited, since the start.

    Args:
        loader: reads the samples of a step.
        device: of the batches. A GPU copies from pinned memory while it computes.
    """

    def __init__(self, loader: Loader, device: torch.device) -> None:
        self._loader = loader
        self._pinned = device.type == "cuda"
        # A thread begins with the first GPU of the host, whichever is its rank's.
        choose_device = partial(torch.cuda.set_device, device) if self._pinned else None
        self._thread = ThreadPoolExecutor(1, "prefetch", choose_device)
        self._ahead: dict[int, Future[StepBatches]] = {}  # of each step, by the samples consumed before it
        self.waited = 0.0

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def start(self, consumed: int) -> None:
        """Begin to read the batches of the steps after `consumed` samples, over all ranks."""
        wanted = [consumed]
        for _ in range(1, STEPS_AHEAD):
            wanted.append(wanted[-1] + self._loader.batches.after(wanted[-1]))
        for step in self._ahead.keys() - set(wanted):
            self._ahead.pop(step).cancel()
        self._ahead |= {step: self._thread.submit(self._read, step) for step in wanted if step not in self._ahead}

    def get(self, consumed: int) -> StepBatches:
        """The batches of the step after `consumed` samples, as soon as they are read."""
        if consumed not in self._ahead:
            self.start(consumed)
        started = time.perf_counter()
        batches = self._ahead[consumed].result()
        self.waited += time.perf_counter() - started
        return batches

    def _read(self, consumed: int) -> StepBatches:
        try:
            batches = self._loader.step(consumed)
        except (UserError, OSError) as error:
            return StepBatches([], error=str(error))
        num_targets = sum(batch.num_targets for batch in batches)
        digest = self._loader.digest(consumed)
        pinned = [batch.mapped(Tensor.pin_memory) for batch in batches] if self._pinned else batches
        return StepBatches(pinned, num_targets, digest)
