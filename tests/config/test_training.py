"""Values of the training section in files of earlier versions."""

from typing import Any

from megatape.config import parse_config


def test_earlier_files_switch_activation_checkpointing_on_and_off(raw_config: dict[str, Any]) -> None:
    for earlier, mode in ((True, "full"), (False, "none")):
        raw_config["training"]["activation_checkpointing"] = earlier
        assert parse_config(raw_config, "test").training.activation_checkpointing == mode
