"""The spike policy's decisions, without a run."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from megatape.checkpoint.format.state import SpikeState
from megatape.config import TrainingConfig, parse_config
from megatape.config.sections.batches import BatchSizes
from megatape.training.steps import spike_policy
from megatape.training.steps.spike_policy import Rollback, SpikePolicy
from megatape.zero.update.decision import Apply, Decision, Skip, Update

# Losses alternate between 3.0 and 3.1.
MEAN = 3.05
DEVIATION = 0.05


def policy_of(config: TrainingConfig, on_spike: str) -> SpikePolicy:
    return SpikePolicy(config.model_copy(update={"on_spike": on_spike}), BatchSizes(8))


def copy_of(policy: SpikePolicy, config: TrainingConfig, on_spike: str) -> SpikePolicy:
    """Return a policy continuing from another one's state in a checkpoint."""
    copied = policy_of(config, on_spike)
    copied.restore(SpikeState.model_validate_json(policy.saved_state().model_dump_json(by_alias=True)))
    return copied


def observe(policy: SpikePolicy, step: int, loss: float) -> None:
    policy.observe(step, loss, Update(1.0, None, policy.decide(loss, 1.0)))


@pytest.fixture
def config(raw_config: dict[str, Any]) -> TrainingConfig:
    return parse_config(raw_config, "test").training


@pytest.fixture
def steps() -> Iterator[int]:
    """Numbers of steps, from 1."""
    return count(1)


@pytest.fixture
def policy(config: TrainingConfig, steps: Iterator[int]) -> SpikePolicy:
    """Return a policy skipping spikes, after enough steps to recognize them."""
    policy = policy_of(config, "skip")
    for number in range(spike_policy.MIN_STEPS):
        assert policy.decide(100.0, 100.0) == Apply(), "too few steps"
        observe(policy, next(steps), 3.0 + 0.1 * (number % 2))
    return policy


def test_spikes_are_recognized(policy: SpikePolicy) -> None:
    assert policy.decide(MEAN + 5.9 * DEVIATION, 1.0) == Apply()
    assert policy.decide(-100.0, 1.0) == Apply()
    decision = policy.decide(MEAN + 6.1 * DEVIATION, 1.0)
    assert isinstance(decision, Skip)
    assert decision.anomaly.startswith("the loss 3.355 is 6.1 standard deviations above the mean 3.05 of the")


@pytest.mark.parametrize(("on_spike", "kind"), [("log", Apply), ("skip", Skip), ("roll_back", Rollback)])
def test_decisions_survive_a_restart(
    policy: SpikePolicy,
    config: TrainingConfig,
    on_spike: str,
    kind: type[Decision],
) -> None:
    decision = copy_of(policy, config, on_spike).decide(4.0, 1.0)
    assert type(decision) is kind
    assert decision.anomaly == policy.decide(4.0, 1.0).anomaly is not None
    assert isinstance(decision, Apply) == (kind is Apply)


def test_lasting_level_is_no_spike(policy: SpikePolicy, steps: Iterator[int]) -> None:
    for number in range(spike_policy.WINDOW):
        observe(policy, next(steps), 4.0 + 0.1 * (number % 2))
    assert policy.decide(4.1, 1.0) == Apply()
    assert "the loss" in policy.decide(5.0, 1.0).anomaly


def test_stable_and_protected_checkpoints(config: TrainingConfig) -> None:
    """Checkpoints followed by a spike are no candidates, also after a restart within 64 steps."""
    before = policy_of(config, "roll_back")
    before.observe(70, 1.0, Update(1.0, "the loss is nan", Apply()))
    policy = copy_of(before, config, "roll_back")
    assert policy.stable_checkpoints([80, 70, 6, 5, 0], 200) == [80, 70, 5, 0]
    assert policy.stable_checkpoints([80, 70, 6, 5, 0], 134) == [70, 5, 0]
    assert policy.protected([90, 80, 70, 60, 5, 0], 100) == [5, 70]
    assert policy.protected([90, 80], 100) == [80]
    assert policy.protected([200, 100, 80], 200) == [100, 200]
    assert policy_of(config, "skip").protected([90, 80], 100) == []


def test_rollback_in_a_batch_size_warmup(config: TrainingConfig) -> None:
    """A rollback skips the samples in the last 64 steps, whatever their size. The next one may follow 64 steps later."""
    # 500 steps with 8 samples, then steps with 64
    batches = BatchSizes(64, ((8, 4000),))
    policy = SpikePolicy(config, batches)
    assert policy.may_roll_back(batches.consumed(70))
    skipped = policy.skip_after_rollback(SpikeState(), range(batches.consumed(100), batches.consumed(400)))
    assert [skipped] == policy.rolled_back == [(336 * 8, 400 * 8 - 1)]
    assert not policy.may_roll_back(batches.consumed(400))
    assert not policy.may_roll_back(batches.consumed(464))
    assert policy.may_roll_back(batches.consumed(465))

    # The checkpoint is nearer than 64 steps.
    policy.skip_after_rollback(SpikeState(), range(batches.consumed(500), batches.consumed(510)))
    assert policy.rolled_back[1] == (4000, 4000 + 10 * 64 - 1)
    policy.skip_after_rollback(SpikeState(), range(batches.consumed(500), batches.consumed(600)))
    assert policy.rolled_back[2] == (4000 + 36 * 64, 4000 + 100 * 64 - 1)


def test_configured_and_rolled_back_samples(config: TrainingConfig) -> None:
    """A step containing one such sample is skipped. Checkpoints store what rollbacks skip, using version 0.1's names."""
    policy = SpikePolicy(config.model_copy(update={"skip_samples": ((20, 20),)}), BatchSizes(8))
    assert policy.skip_after_rollback(SpikeState(), range(32, 48)) == (32, 47)
    steps = [range(first, first + 8) for first in range(0, 56, 8)]
    assert [policy.is_configured_to_skip(samples) for samples in steps] == [False, False, True, False, False, False, False]
    assert [policy.is_rolled_back(samples) for samples in steps] == [False, False, False, False, True, True, False]
    stored = policy.saved_state().model_dump(by_alias=True)
    assert stored == {"spikes": {"loss": [], "gradient norm": []}, "left_out": [(32, 47)], "troubled": []}


@pytest.mark.parametrize("ranges", [[[1]], [[3, 2]], [[-1, 2]]])
def test_invalid_sample_ranges(raw_config: dict[str, Any], ranges: Any) -> None:
    raw_config["training"]["skip_samples"] = ranges
    with pytest.raises(ValueError, match="training.skip_samples"):
        parse_config(raw_config, "test")
