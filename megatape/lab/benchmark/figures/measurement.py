"""Records of measured figures, which files store as JSON."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Measurement(BaseModel):
    """Base class for measured figures. JSON names are the fields' aliases, or the fields with spaces."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, alias_generator=lambda name: name.replace("_", " "))

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON, without missing ones."""
        return self.model_dump(by_alias=True, exclude_none=True)


class Seconds(Measurement):
    """Median seconds."""

    seconds: float


class Times(Seconds):
    """Median seconds, and the median ratio to a baseline in the same round."""

    ratio: float
