"""Repeating a step: by calling it, or on a GPU as a CUDA graph, which takes one launch instead of thousands.

A graph repeats the step's operations on the same memory. So a repeatable step only reads tensors that `StepGraph.hold` has
returned, and writes its results to tensors; nothing else may differ from step to step.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch

from megatape.data.training.batches.batch import Batch
from megatape.utils.pytorch.recorder import WARM_UP_RUNS, CudaRecorder, Recorder, Replay, refill, stable_copy

Step = Callable[[], None]


class StepGraph(ABC):
    """Runs a step again and again."""

    @abstractmethod
    def hold(self, held: Batch | None, batch: Batch) -> Batch:
        """Return the tensors from which the step reads a batch, with the values of `batch`.

        Args:
            held: Result of the last call, None before the first one.
            batch: Batch on the host.
        """

    @abstractmethod
    def run(self, step: Step) -> None:
        """Run the step. It is the same function in each call."""


class Called(StepGraph):
    """Calls the step."""

    def hold(self, held: Batch | None, batch: Batch) -> Batch:
        return batch

    def run(self, step: Step) -> None:
        step()


class Recorded(StepGraph):
    """Runs the first steps one operation at a time, then records a step and repeats it.

    Args:
        recorder: Records the step. A CudaRecorder has never recorded such steps on a GPU; tests use a recorder for CPUs.
        device: Device of the held tensors.
    """

    def __init__(self, recorder: Recorder, device: torch.device) -> None:
        self._recorder = recorder
        self._device = device
        self._num_steps = 0
        self._replay: Replay | None = None

    def hold(self, held: Batch | None, batch: Batch) -> Batch:
        if held is None:
            return batch.mapped(partial(stable_copy, device=self._device))
        for name, tensor in vars(batch).items():
            if tensor is not None:
                refill(getattr(held, name), tensor)
        return held

    def run(self, step: Step) -> None:
        self._num_steps += 1
        if self._num_steps <= WARM_UP_RUNS:
            self._recorder.warm_up(step)
            return
        if self._replay is None:
            self._replay = self._recorder.record(step)
        self._replay()


def step_graph(device: torch.device) -> StepGraph:
    """Return the fastest way to repeat a step on a device."""
    if device.type == "cuda":
        return Recorded(CudaRecorder(), device)
    return Called()
