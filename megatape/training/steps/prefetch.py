"""Prefetches the batches of the next steps in a thread."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from megatape.data.training.batches.batch import Batch
from megatape.data.training.batches.loader import Loader
from megatape.errors import UserError, marked_message

# Steps to read ahead. Training does not notice a file server that is slow for less than their duration.
STEPS_AHEAD = 4


@dataclass(frozen=True)
class StepBatches:
    """A rank's micro-batches of one step, in host memory.

    Attributes:
        batches: Micro-batches.
        num_targets: Targets that count in the loss.
        digest: Digest of the samples (order.samples_digest).
        error: Reason why the batches cannot be read, or None.
    """

    batches: list[Batch]
    num_targets: int = 0
    digest: int = 0
    error: str | None = None


class Prefetcher(AbstractContextManager["Prefetcher"]):
    """Prefetches a rank's batches.

    The batches depend only on the number of samples before them, so prefetching never affects their order. Context manager:
    leaving it ends the thread.

    Args:
        loader: Reader of a step's samples.
        device: Device to run on. A GPU copies batches from pinned memory while computing.

    Attributes:
        waited: Seconds spent waiting for batches since the start.
    """

    def __init__(self, loader: Loader, device: torch.device) -> None:
        self._loader = loader
        self._pins_memory = device.type == "cuda"
        choose_device = None
        if self._pins_memory:
            # Threads start with GPU 0 as the current device. Select this rank's GPU instead.
            choose_device = partial(torch.cuda.set_device, device)
        self._thread = ThreadPoolExecutor(1, "prefetch", choose_device)
        # Batches of the next steps, by the number of samples before each.
        self._ahead: dict[int, Future[StepBatches]] = {}
        self.waited = 0.0

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def start(self, consumed: int) -> None:
        """Start reading the batches of the next steps.

        Args:
            consumed: Samples before the first of them, over all ranks.
        """
        steps = [consumed]
        for _ in range(1, STEPS_AHEAD):
            steps.append(steps[-1] + self._loader.batches.after(steps[-1]))
        for step in self._ahead.keys() - set(steps):
            self._ahead.pop(step).cancel()
        for step in steps:
            if step not in self._ahead:
                self._ahead[step] = self._thread.submit(self._read, step)

    def get(self, consumed: int) -> StepBatches:
        """Return the batches of a step, waiting until they are read.

        Args:
            consumed: Samples before the step, over all ranks.
        """
        if consumed not in self._ahead:
            self.start(consumed)
        started = time.perf_counter()
        batches = self._ahead[consumed].result()
        self.waited += time.perf_counter() - started
        return batches

    def _read(self, consumed: int) -> StepBatches:
        """Read the batches of a step. Runs in the thread."""
        try:
            batches = self._loader.step(consumed)
        except (UserError, OSError) as error:
            return StepBatches([], error=marked_message(error))
        num_targets = sum(batch.num_targets for batch in batches)
        digest = self._loader.digest(consumed)
        if self._pins_memory:
            batches = [batch.mapped(Tensor.pin_memory) for batch in batches]
        return StepBatches(batches, num_targets, digest)
