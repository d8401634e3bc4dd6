"""Variants of a configuration, checked like a file, and the overrides that select them."""

import json
from collections.abc import Mapping
from typing import Any

from megatape.config.config import Config
from megatape.config.file import parse_config
from megatape.config.section import Section

# Values of settings by their keys, such as zero.stage.
SettingValues = dict[str, Any]


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return a copy of a configuration with other settings.

    Args:
        config: Original configuration.
        settings: Values of the other settings.

    Raises:
        UserError: The result is not a valid configuration.
    """
    raw = config.model_dump()
    for name, value in settings.items():
        section, _, key = name.partition(".")
        raw[section][key] = value
    return parse_config(raw, f"with {', '.join(settings)}")


def with_sections(config: Config, origin: str, **sections: Section) -> Config:
    """Return a copy of a configuration with other sections.

    Args:
        config: Original configuration.
        origin: Name of the new configuration in errors.
        sections: New sections by name.

    Raises:
        UserError: The result is not a valid configuration.
    """
    raw = config.model_dump()
    for name, section in sections.items():
        raw[name] = section.model_dump()
    return parse_config(raw, origin)


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as values of --set: `section.key=JSON`."""
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def set_options(settings: Mapping[str, Any]) -> str:
    """Return settings as command-line options: `--set section.key=VALUE` for each.

    Args:
        settings: `section.key` -> value.
    """
    return " ".join(f"--set {key}={value_text(value)}" for key, value in settings.items())


def value_text(value: Any) -> str:
    """Return a setting's value as on the command line: JSON, such as true, or text without quotes."""
    if isinstance(value, str):
        return value
    return json.dumps(value)
