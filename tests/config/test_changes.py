"""Configurations with other settings."""

from typing import Any

import pytest

from megatape.config import parse_config, with_settings
from megatape.errors import UserError


def test_only_the_settings_change(raw_config: dict[str, Any]) -> None:
    config = parse_config(raw_config, "test")
    changed = with_settings(config, {"zero.stage": 1, "training.micro_batch_size": 1})
    assert (changed.zero.stage, changed.training.micro_batch_size) == (1, 1)
    assert with_settings(changed, {"zero.stage": config.zero.stage, "training.micro_batch_size": 4}) == config


def test_settings_are_checked(raw_config: dict[str, Any]) -> None:
    config = parse_config(raw_config, "test")
    with pytest.raises(UserError, match="offload_parameters needs stage 3"):
        with_settings(config, {"zero.stage": 2, "zero.offload_parameters": True})
