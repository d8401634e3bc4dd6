"""Settings that a study chooses for a run, and the overrides that hand them to `pretrain`."""

import json
from collections.abc import Mapping

from pydantic import JsonValue

# section.key -> value.
Settings = dict[str, JsonValue]


def as_overrides(settings: Mapping[str, JsonValue]) -> list[str]:
    """Return settings as values of --set: `section.key=JSON`."""
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]
