"""Layouts have the numbers of their configuration, and all stages of ZeRO share a workload."""

from typing import Any

import pytest

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.workload import Workload
from megatape.errors import ConfigError
from tests.helpers.planner.plan_cases import configure

CHANGES = {"parallel.tp": 2, "parallel.sp": 2, "training.micro_batch_size": 2, "training.global_batch_size": 8}


def test_numbers_of_the_configuration(raw_config: dict[str, Any]) -> None:
    config = configure(raw_config, "x", CHANGES)
    layout = TrainingLayout.from_config(config, 8)
    assert layout.num_data_ranks == config.num_data_ranks(8) == 2
    assert layout.num_replicas == config.num_replicas(8) == 4
    assert layout.num_micro_batches == config.num_micro_batches(8) == 2
    assert layout.step_samples == config.training.global_batch_size
    assert layout.step_tokens == config.step_tokens


def test_ranks_must_divide_batches(raw_config: dict[str, Any]) -> None:
    config = configure(raw_config, "x", CHANGES)
    with pytest.raises(ConfigError, match="the accumulation must be a whole number"):
        TrainingLayout.from_config(config, 32)


def test_workload_does_not_depend_on_the_state(raw_config: dict[str, Any]) -> None:
    """Counts on shapes are cached by workload, so a search over stages counts them once."""
    workloads = set()
    for stage in (1, 2, 3):
        config = configure(raw_config, "x", {"zero.stage": stage, "optimizer.learning_rate": 0.1 * stage})
        workloads.add(Workload.from_config(config))
    assert len(workloads) == 1


def test_chunks(raw_config: dict[str, Any]) -> None:
    """Chunks split a rank's tokens of a sample. The last one may be shorter."""
    config = configure(raw_config, "x", {"parallel.sp": 2, "training.chunk_tokens": 5})
    workload = Workload.from_config(config)
    assert workload.rank_sample_tokens == config.data.sequence_length // 2
    assert workload.num_chunks == -(-workload.rank_sample_tokens // 5)
