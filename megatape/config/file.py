"""Reads and writes configuration files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from megatape import imports
from megatape.config.config import Config
from megatape.config.fields.explanation import explain
from megatape.config.section import RECORDED, Section
from megatape.config.sections.model import ModelConfig
from megatape.errors import ConfigError, MissingPath, flag, path_errors
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.files import create_private
from megatape.utils.files.json_files import json_content, parse_json, read_json
from megatape.utils.text.url_secrets import mask_secrets_in_json

Parsed = TypeVar("Parsed", bound=Section)


@path_errors()
def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a JSON configuration.

    Args:
        path: Configuration file.
        overrides: Changes of the form `section.key=value`. A value that is not valid JSON is taken as text.

    Raises:
        FileNotFoundError: The file is missing.
        ConfigError: The file is not a valid configuration. The message has path, value and what is allowed.
    """
    path = Path(path)
    return parse_config(_read(path), str(path), overrides)


@path_errors()
def load_recorded_config(path: Path, overrides: Sequence[str] = (), masked: bool = False) -> Config:
    """Read a run's recorded configuration, for commands that show the run without building its model.

    These commands work without the user's own modules, even if the run was trained with them: unregistered names are accepted,
    and the settings of unregistered optimizers and schedules are not checked.

    Args:
        path: Configuration file.
        overrides: Changes of the form `section.key=value`.
        masked: Whether to hide passwords and signatures in URLs. Earlier versions recorded them.

    Raises:
        FileNotFoundError: The file is missing.
        ConfigError: The file is not a valid configuration.
    """
    raw = _read(path)
    if masked:
        raw = mask_secrets_in_json(raw)
    if not imports.not_given(_recorded_imports(raw)):
        return parse_config(raw, str(path), overrides)
    for item in overrides:
        _override(raw, item)
    return _parse(Config, raw, str(path), RECORDED)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise MissingPath(f"no configuration at {path}: give a JSON file, such as one that `megatape init tape_tiny` writes")
    try:
        raw = read_json(path, unique_keys=True)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a configuration is a JSON object of sections, not {type(raw).__name__}")
    return raw


def _recorded_imports(raw: dict[str, Any]) -> object:
    """Return the unchecked value of run.imports in a configuration, or None if it is missing."""
    run = raw.get("run")
    if not isinstance(run, dict):
        return None
    return run.get("imports")


def parse_config(raw: dict[str, Any], origin: str, overrides: Sequence[str] = ()) -> Config:
    """Apply overrides to a plain dictionary, and validate it.

    Args:
        raw: Dictionary, changed in place.
        origin: Name of the dictionary in errors.
        overrides: Changes of the form `section.key=value`.

    Raises:
        UserError: The configuration needs modules that were not imported with --import.
        ConfigError: The configuration is not valid. The message lists the first errors of each section.
    """
    for item in overrides:
        _override(raw, item)
    imports.check_given(_recorded_imports(raw), origin)
    return _parse(Config, raw, origin)


def parse_model(raw: dict[str, Any], origin: str) -> ModelConfig:
    """Validate a plain dictionary with a model section.

    Args:
        raw: Dictionary.
        origin: Name of the dictionary in errors.

    Raises:
        ConfigError: The section is not valid.
    """
    return _parse(ModelConfig, raw, origin)


def _parse(section: type[Parsed], raw: dict[str, Any], origin: str, context: dict[str, Any] | None = None) -> Parsed:
    try:
        return section.model_validate(raw, context=context)
    except ValidationError as error:
        lines = [f"{origin}:"]
        for line in explain(error, section, raw):
            lines.append(f"  {line}")
        raise ConfigError("\n".join(lines)) from None


def save_config(config: Config, path: Path, with_secrets: bool = False) -> None:
    """Write the resolved configuration, with every default, for `load_config` to read.

    Args:
        config: Configuration to write.
        path: File to write.
        with_secrets: Whether to keep passwords and signatures in URLs, for a run that reads its data with this file. If there
            are any, only this user can read the file.

    Raises:
        OSError: The file cannot be written.
        UserError: The file would be too large to be read again.
    """
    content = json_content(config.model_dump(), str(path), indent=2) + b"\n"
    masked = json_content(mask_secrets_in_json(config.model_dump()), str(path), indent=2) + b"\n"
    if with_secrets and masked != content:
        create_private(path, content)
    else:
        write_atomically(path, masked)


def _override(raw: dict[str, Any], item: str) -> None:
    """Apply an override such as `section.key=value` to a plain dictionary."""
    key, separator, text = item.partition("=")
    *sections, field = key.split(".")
    if not (separator and sections and all(sections) and field):
        raise ConfigError(f"{flag('set')} {item!r}: write section.key=value, for example training.steps=100")
    try:
        value = parse_json(text)
    except json.JSONDecodeError:
        value = text
    except ValueError as error:
        raise ConfigError(f"{flag('set')} {key}: {error}") from None
    target = raw
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise ConfigError(f"{flag('set')} {item!r}: {section} is {target!r} in the file, not a section")
    target[field] = value
