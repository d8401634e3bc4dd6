"""Reads and writes configuration files, and explains what is wrong with one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationError

from megatape import imports
from megatape.config.config import Config
from megatape.config.model import ModelConfig
from megatape.config.section import RECORDED, ByKind, Section, sections_in
from megatape.errors import ConfigError, MissingPath, did_you_mean, path_errors
from megatape.utils.files import create_private, describe_fault, json_content, parse_json, read_json, write_atomically
from megatape.utils.masking import mask_values

Parsed = TypeVar("Parsed", bound=Section)


@path_errors()
def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a JSON configuration and apply `section.key=value` overrides.

    A value that is not valid JSON is taken as text. Raises FileNotFoundError, or ConfigError that says what is wrong, where,
    with which value, and what is allowed.
    """
    path = Path(path)
    return parse_config(_read(path), str(path), overrides)


@path_errors()
def load_recorded_config(path: Path, overrides: Sequence[str] = (), masked: bool = False) -> Config:
    """Read the configuration that a run has recorded, for commands that show the run without building its model.

    These commands work without the user's own modules, even if the run was trained with them. Unregistered names are then
    accepted, and the settings of unregistered optimizers and schedules are not checked.

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
        raw = mask_values(raw)
    if not imports.not_given(_recorded_imports(raw)):
        return parse_config(raw, str(path), overrides)
    for item in overrides:
        _override(raw, item)
    return _parse(Config, raw, str(path), RECORDED)


def _read(path: Path) -> dict[str, Any]:
    """Read the JSON object in a configuration file."""
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
    return run.get("imports") if isinstance(run, dict) else None


def parse_config(raw: dict[str, Any], origin: str, overrides: Sequence[str] = ()) -> Config:
    """Validate a plain dictionary after `overrides`, which change it; `origin` names it in errors.

    Raises:
        UserError: It was made with modules that the command was not given.
        ConfigError: Lists every error.
    """
    for item in overrides:
        _override(raw, item)
    imports.check_given(_recorded_imports(raw), origin)
    return _parse(Config, raw, origin)


def parse_model(raw: dict[str, Any], origin: str) -> ModelConfig:
    """The same for a model section alone."""
    return _parse(ModelConfig, raw, origin)


def _parse(section: type[Parsed], raw: dict[str, Any], origin: str, context: dict[str, Any] | None = None) -> Parsed:
    try:
        return section.model_validate(raw, context=context)
    except ValidationError as error:
        faults = "\n".join(f"  {_explain(dict(fault), section, raw)}" for fault in error.errors())
        raise ConfigError(f"{origin}:\n{faults}") from None


def save_config(config: Config, path: Path, with_secrets: bool = False) -> None:
    """Write the resolved configuration, with every default, for `load_config` to read.

    Args:
        config: Configuration to write.
        path: File to write.
        with_secrets: Whether to write passwords and signatures in URLs. Only a run that reads its data with this file needs
            them. If there are any, only this user can read the file.

    Raises:
        OSError: The file cannot be written.
        UserError: The file would be too large to be read again.
    """
    content = json_content(config.model_dump(), str(path), indent=2) + b"\n"
    masked = json_content(mask_values(config.model_dump()), str(path), indent=2) + b"\n"
    if with_secrets and masked != content:
        create_private(path, content)
    else:
        write_atomically(path, masked)


def _override(raw: dict[str, Any], item: str) -> None:
    key, separator, text = item.partition("=")
    *sections, field = key.split(".")
    if not (separator and sections and all(sections) and field):
        raise ConfigError(f"set {item!r}: write section.key=value, for example training.steps=100")
    try:
        value = parse_json(text)
    except json.JSONDecodeError:
        value = text
    except ValueError as error:
        raise ConfigError(f"set {key}: {error}") from None
    target = raw
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise ConfigError(f"set {item!r}: {section} is {target!r} in the file, not a section")
    target[field] = value


def _explain(fault: dict[str, Any], section: type[BaseModel], raw: Any) -> str:
    """One line for one pydantic error in a section: path, value, what is allowed."""
    path = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        *location, key = fault["loc"]
        place = _section_at(location, section, raw)
        if kinds := place.kinds_with(key):
            owners = " and ".join(kinds)
            setting = f"{path.rpartition('.')[0]}.kind"
            return f"{path}: not a key of kind {place.kind}, but of {owners}: remove it, or set {setting} to {kinds[0]}"
        allowed = list(place.section.model_fields)
        hint = did_you_mean(str(key), allowed)
        return f"{path}: unknown key; {hint}allowed: {', '.join(allowed)}"
    return describe_fault(fault, path)


class _Place(NamedTuple):
    """A section in a configuration.

    Attributes:
        section: Type of the section.
        kind: Kind of the section, "" if it has no kinds.
        by_kind: Validator that chooses the type by the kind, None if the section has no kinds.
    """

    section: type[BaseModel]
    kind: str
    by_kind: ByKind | None

    def kinds_with(self, key: object) -> list[str]:
        """Return the other kinds of the section that have this key."""
        if self.by_kind is None:
            return []
        return [kind for kind, entry in self.by_kind.entries.items() if key in entry.load_options().model_fields]


def _section_at(location: Sequence[Any], section: type[BaseModel], raw: Any) -> _Place:
    """Find the section at `location` below one with these values."""
    parts = iter(location)
    place = _Place(section, "", None)
    for part in parts:
        field = section.model_fields[part]
        raw = raw[part]
        (section,) = sections_in(field.annotation)
        if get_origin(field.annotation) in (dict, tuple):
            raw = raw[next(parts)]  # which of them
        place = _Place(section, "", None)
        for entry in field.metadata:
            validator = entry.func if isinstance(entry, BeforeValidator) else None
            if not isinstance(validator, ByKind):
                continue
            options = validator.options(raw)
            if options is not None:
                section = options
                place = _Place(section, str(raw.get("kind", validator.default)), validator)
    return place
