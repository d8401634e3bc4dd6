"""Configurations with other settings, for estimates of alternatives."""

from collections.abc import Mapping
from typing import Any

from megatape.config import Config, parse_config
from megatape.errors import UserError


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config | None:
    """Return a configuration with other settings, or None if they do not fit the rest.

    Args:
        config: The configuration.
        settings: `section.key` -> value.
    """
    raw = config.model_dump()
    for name, value in settings.items():
        section, _, key = name.partition(".")
        raw[section][key] = value
    try:
        return parse_config(raw, "plan")
    except UserError:
        return None
