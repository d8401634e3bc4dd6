"""Registering a position encoding from outside the package, and training with it."""

from typing import Any

import pytest

from megatape.distributed.topology import Topology
from megatape.registry import ENCODINGS, EncodingEntry
from tests.helpers.runs.training_cases import train_cases

LINE = {"learned_slopes": EncodingEntry("tests.helpers.models.learned_slopes:LearnedSlopes", "learned slopes")}


def train(payload: dict[str, Any], topology: Topology) -> list[dict[str, Any]]:
    """Run train_cases in a process knowing the encoding."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENCODINGS, *next(iter(LINE.items())))
        return train_cases(payload, topology)
