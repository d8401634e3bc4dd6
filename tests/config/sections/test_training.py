"""Values of the training section in files of earlier versions."""

from typing import Any

from megatape.config import parse_config
from megatape.config.sections.batches import BatchSizes


def test_earlier_files_switch_activation_checkpointing_on_and_off(raw_config: dict[str, Any]) -> None:
    for earlier, mode in ((True, "full"), (False, "none")):
        raw_config["training"]["activation_checkpointing"] = earlier
        assert parse_config(raw_config, "test").training.activation_checkpointing == mode


def test_earlier_files_ask_for_a_rollback_by_another_name(raw_config: dict[str, Any]) -> None:
    """Resuming compares the configurations after reading both."""
    raw_config["training"]["on_spike"] = "rewind"
    assert parse_config(raw_config, "test").training.on_spike == "roll_back"


def test_sizes_of_steps_follow_the_samples() -> None:
    """A step's size and number follow from the samples before it, even if a stage ends within a step."""
    for warmup in ((), ((4, 10), (8, 20)), ((4, 10), (8, 11)), ((3, 1), (5, 40))):
        batches = BatchSizes(16, warmup)
        consumed = 0
        for step in range(30):
            assert batches.consumed(step) == consumed
            assert batches.steps(consumed) == step
            assert batches.steps(consumed + 1) == step + 1
            consumed += batches.after(consumed)
