"""Gathered inputs are not kept, and under activation checkpointing nothing of a block is kept but its inputs."""

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from megatape.config import ModelConfig
from megatape.model.accounting import saved_bytes
from megatape.model.transformer import Transformer
from megatape.parallel.collectives import TensorRanks, _GatheredAgain
from tests.model.builder import SHAPE

LAYERS = SHAPE["num_layers"]


def alive() -> int:
    gc.collect()
    return sum(type(thing) is _GatheredAgain for thing in gc.get_objects())


@pytest.mark.parametrize(("checkpointing", "expected"), [(False, 2 * LAYERS), (True, 0)])
def test_what_outlives_the_forward_pass(checkpointing: bool, expected: int) -> None:
    """Two gatherings a block; with checkpointing none, for blocks are run again as a whole."""
    before = alive()
    with FakeTensorMode():
        model = Transformer(ModelConfig(**SHAPE), checkpointing, TensorRanks(2))
        tokens = torch.zeros(1, 32, dtype=torch.long)
        loss = model(tokens, tokens, targets=tokens)
        assert alive() - before == expected
        del loss


def test_a_rank_keeps_less_than_the_whole() -> None:
    with FakeTensorMode():
        whole, half = (saved_bytes(Transformer(ModelConfig(**SHAPE), False, TensorRanks(size)), 1, 512) for size in (1, 2))
    assert half < 0.65 * whole
