"""The decisions of the spike policy, without a run."""

import json
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.config.training import BatchSizes
from megatape.training import spike_policy
from megatape.training.spike_policy import Rollback, Skip, SpikePolicy, Take


def test_spikes_are_recognized(raw_config: dict[str, Any]) -> None:
    training = parse_config(raw_config, "test").training.model_copy(update={"on_spike": "skip"})
    policy, steps = SpikePolicy(training, BatchSizes(8)), 0

    def observe(loss: float) -> None:
        nonlocal steps
        steps += 1
        policy.observe(steps, loss, 1.0, policy.decide(loss, 1.0), has_fault=False)

    for number in range(spike_policy.MIN_STEPS):
        assert policy.decide(100.0, 100.0) == Take()  # too few to tell
        observe(3.0 + 0.1 * (number % 2))
    assert policy.decide(3.05 + 0.05 * 5.9, 1.0) == Take()
    decision = policy.decide(3.05 + 0.05 * 6.1, 1.0)
    assert isinstance(decision, Skip)
    assert decision.reason.startswith("the loss 3.355 is 6.1 standard deviations above the mean 3.05 of the")
    assert not decision.applies_update
    assert policy.decide(-100.0, 1.0) == Take()
    state = json.loads(json.dumps(policy.state_dict()))
    for on_spike, kind in (("log", Take), ("rewind", Rollback)):
        copied = SpikePolicy(training.model_copy(update={"on_spike": on_spike}), BatchSizes(8))
        copied.load_state_dict(state)
        other = copied.decide(4.0, 1.0)
        assert type(other) is kind and other.reason == policy.decide(4.0, 1.0).reason != ""
        assert other.applies_update == (kind is Take)
    for number in range(spike_policy.WINDOW):  # a level that lasts is no spike
        observe(4.0 + 0.1 * (number % 2))
    assert policy.decide(4.1, 1.0) == Take() and "the loss" in policy.decide(5.0, 1.0).reason


def test_stable_and_protected_checkpoints(raw_config: dict[str, Any]) -> None:
    """Checkpoints followed by a spike are no candidates, also after a restart within 64 steps."""
    raw_config["training"]["on_spike"] = "rewind"
    config = parse_config(raw_config, "test").training
    before, found = SpikePolicy(config, BatchSizes(8)), SpikePolicy(config, BatchSizes(8))
    before.observe(70, 1.0, 1.0, Take(), has_fault=True)
    found.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert found.stable_checkpoints([80, 70, 6, 5, 0], 200) == [80, 70, 5, 0]
    assert found.stable_checkpoints([80, 70, 6, 5, 0], 134) == [70, 5, 0]
    assert found.protected([90, 80, 70, 60, 5, 0], 100) == [5, 70] and found.protected([90, 80], 100) == [80]
    assert found.protected([200, 100, 80], 200) == [100, 200]
    assert SpikePolicy(config.model_copy(update={"on_spike": "skip"}), BatchSizes(8)).protected([90, 80], 100) == []


def test_rollback_in_a_batch_size_warmup(raw_config: dict[str, Any]) -> None:
    """A rollback skips the samples of the last 64 steps, of any size. The next one may follow 64 steps later."""
    batches = BatchSizes(64, ((8, 4000),))  # 500 steps of 8 samples
    policy = SpikePolicy(parse_config(raw_config, "test").training, batches)
    assert policy.may_roll_back(batches.consumed(70))
    policy.roll_back({}, range(batches.consumed(100), batches.consumed(400)))
    assert policy.rolled_back == [(336 * 8, 400 * 8 - 1)]
    assert [policy.may_roll_back(batches.consumed(step)) for step in (400, 464, 465)] == [False, False, True]
    policy.roll_back({}, range(batches.consumed(500), batches.consumed(510)))  # the checkpoint is nearer than 64 steps
    policy.roll_back({}, range(batches.consumed(500), batches.consumed(600)))
    assert policy.rolled_back[1:] == [(4000, 4000 + 10 * 64 - 1), (4000 + 36 * 64, 4000 + 100 * 64 - 1)]


@pytest.mark.parametrize("ranges", [[[1]], [[3, 2]], [[-1, 2]]])
def test_invalid_sample_ranges(raw_config: dict[str, Any], ranges: Any) -> None:
    raw_config["training"]["skip_samples"] = ranges
    with pytest.raises(ValueError, match="training.skip_samples"):
        parse_config(raw_config, "test")
