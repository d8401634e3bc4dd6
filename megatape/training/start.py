"""The user's choices about starting or resuming a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Value of `resume` for the newest valid checkpoint of the run.
NEWEST = "auto"


@dataclass(frozen=True)
class Start:
    """Starting point of a run, beside its configuration.

    Attributes:
        resume: "auto" for the newest valid checkpoint in the run directory (a new run if there is none), a checkpoint's folder,
            or None for a new run.
        allow_changes: Whether a resumed run may change settings that must be confirmed (`confirmed` in docs/config.md).
        base: New location of the checkpoint's base, if it has moved.
        profile: Number of steps to trace.
    """

    resume: str | None = None
    allow_changes: bool = False
    base: Path | None = None
    profile: int = 0

    @property
    def resumes(self) -> bool:
        """Whether to continue a run."""
        return self.resume is not None

    @property
    def checkpoint(self) -> Path | None:
        """Checkpoint named by the user, or None for a new run or the newest checkpoint."""
        if self.resume is None or self.resume == NEWEST:
            return None
        return Path(self.resume)

    def shared_values(self) -> dict[str, Any]:
        """Return the values on which all ranks must agree, as JSON values by name."""
        base = None
        if self.base is not None:
            base = str(self.base)
        return vars(self) | {"base": base}
