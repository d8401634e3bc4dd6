"""Prefetched batches: the same as without a thread, errors in their step, and no thread left over."""

import threading
from contextlib import suppress

import pytest
import torch

from megatape.config.sections.batches import BatchSizes
from megatape.data.training.batches.batch import Batch
from megatape.data.training.batches.loader import Loader
from megatape.nn.targets import IGNORE_INDEX
from megatape.training.steps.prefetch import STEPS_AHEAD, Prefetcher

# Number of samples in a step
STEP = 8


class Numbered(Loader):
    """Loader returning the number of consumed samples as batches, and recording its calls."""

    def __init__(self, failing: dict[int, Exception] | None = None) -> None:
        self.failing = failing or {}
        self.asked: list[int] = []
        self.batches = BatchSizes(STEP)

    def step(self, consumed: int) -> list[Batch]:
        self.asked.append(consumed)
        if consumed in self.failing:
            raise self.failing[consumed]
        assert threading.current_thread() is not threading.main_thread()
        ids = torch.full((2, 3), consumed)
        targets = torch.tensor([[1, 2, IGNORE_INDEX], [IGNORE_INDEX, 3, 4]])
        return [Batch(ids, targets, ids, None), Batch(ids + 1, targets, ids, None)]

    def digest(self, consumed: int) -> int:
        return consumed + 1


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def numbers(feed: Prefetcher, consumed: int) -> list[int]:
    return [int(batch.tokens[0, 0]) for batch in feed.get(consumed).batches]


def test_batches_depend_only_on_consumed_samples() -> None:
    """Prefetching any number of steps changes nothing, even if a run does not continue with the next step."""
    loader = Numbered()
    with Prefetcher(loader, torch.device("cpu")) as feed:
        assert numbers(feed, 0) == [0, 1]
        assert feed.get(0).num_targets == 8
        assert feed.get(0).digest == 1
        feed.start(STEP)
        assert numbers(feed, STEP) == [STEP, STEP + 1]
        feed.start(2 * STEP)
        assert numbers(feed, 5 * STEP) == [5 * STEP, 5 * STEP + 1]
        assert numbers(feed, 5 * STEP) == [5 * STEP, 5 * STEP + 1]
        assert len(threads()) == 1
    assert threads() == []
    assert loader.asked == sorted(set(loader.asked)), "each once, in order"
    assert max(loader.asked) <= (5 + STEPS_AHEAD - 1) * STEP, "and no more steps ahead"


def test_steps_are_read_ahead() -> None:
    """Next steps are read while a step is computed. After a rollback, they are the steps after it."""
    loader = Numbered()
    with Prefetcher(loader, torch.device("cpu")) as feed:
        for first in (0, STEP, 7 * STEP, 2 * STEP):
            feed.start(first)
            last = first + (STEPS_AHEAD - 1) * STEP
            assert numbers(feed, last) == [last, last + 1]
            assert list(feed._ahead) == list(range(first, last + 1, STEP))
    assert loader.asked == [step * STEP for step in (0, 1, 2, 3, 4, 7, 8, 9, 10, 2, 3, 4, 5)]


def test_read_error_belongs_to_its_step() -> None:
    feed = Prefetcher(Numbered({STEP: OSError("gone"), 2 * STEP: KeyError("ours")}), torch.device("cpu"))
    with suppress(KeyboardInterrupt), feed:
        assert feed.get(0).error is None
        feed.start(STEP)
        assert feed.get(STEP).error == "gone"
        assert feed.get(STEP).batches == []
        feed.start(2 * STEP)
        # A program error is no data fault.
        with pytest.raises(KeyError, match="ours"):
            feed.get(2 * STEP)
        feed.start(3 * STEP)
        raise KeyboardInterrupt
    assert threads() == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_for_a_gpu_are_pinned() -> None:
    with Prefetcher(Numbered(), torch.device("cuda", torch.cuda.current_device())) as feed:
        for batch in feed.get(0).batches:
            assert batch.tokens.is_pinned()
            assert batch.targets.is_pinned()
            assert batch.document_starts is None
