"""Configurations that differ from another one in some settings."""

from collections.abc import Mapping
from typing import Any

from megatape.config.config import Config
from megatape.config.file import parse_config


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return a configuration with other settings, checked like a file.

    Args:
        config: The configuration, which stays as it is.
        settings: `section.key` -> value.

    Raises:
        UserError: The settings do not fit the rest.
    """
    raw = config.model_dump()
    for name, value in settings.items():
        section, _, key = name.partition(".")
        raw[section][key] = value
    return parse_config(raw, "plan")
