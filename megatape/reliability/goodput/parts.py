"""Parts of the time of a run."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from megatape.errors import UserError


class TimePart(StrEnum):
    """Part of the time of a run, in the order of tables. Values are names in events.jsonl.

    Attributes:
        label: Description for people.
    """

    label: str

    def __new__(cls, name: str, label: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.label = label
        return member

    # Steps that the run keeps. Time for data, and of the first step for compilation, is counted below.
    NEW_STEPS = "new_steps", "new steps"
    # Steps that a kill or a rollback has undone, and unfinished ones.
    REPEATED_STEPS = "repeated_steps", "steps made twice or undone"
    # Steps without an update: spikes, non-finite losses, samples that the configuration skips.
    SKIPPED_STEPS = "skipped_steps", "skipped steps"
    # Time in which steps waited for their batches.
    DATA_WAITS = "data_waits", "waiting for data"
    # Time in which training waited for saves.
    SAVES = "saves", "saves that training waited for"
    EVALUATIONS = "evaluations", "evaluations"
    # Sinks and callbacks.
    REPORTING = "reporting", "metrics and callbacks"
    # Time from the end of a process, or its last sign of life, to the start of the next one.
    DOWN = "down", "no process running"
    # Time from the start of DeepSpeed's launcher to that of the process.
    LAUNCH = "launch", "launcher before the process"
    # Start of the interpreter and the command line.
    PROCESS_START = "process_start", "process start"
    # Imports of torch, DeepSpeed and the training loop.
    IMPORTS = "imports", "imports"
    # Joining the process group.
    RENDEZVOUS = "rendezvous", "rendezvous"
    # Opening data, comparing ranks, building model and optimizer.
    SETUP = "setup", "data, model and optimizer"
    # Reading checkpoints to verify them, and comparing replicas.
    VERIFICATION = "verification", "verification of checkpoints and replicas"
    # Loading weights and optimizer state, or initializing them.
    WEIGHTS = "weights", "reading weights"
    # Kernel trials at the start, and the time by which the first step of a process exceeded its second.
    COMPILATION = "compilation", "kernel trials, compilation, warm-up"
    OTHER = "other", "other"


# Name in events.jsonl -> part.
PARTS = {part.value: part for part in TimePart}
# Parts between the end of a process and its successor's first step.
RESTART_PARTS = (
    TimePart.DOWN,
    TimePart.LAUNCH,
    TimePart.PROCESS_START,
    TimePart.IMPORTS,
    TimePart.RENDEZVOUS,
    TimePart.SETUP,
    TimePart.VERIFICATION,
    TimePart.WEIGHTS,
    TimePart.COMPILATION,
)


def _no_seconds() -> dict[TimePart, float]:
    return dict.fromkeys(TimePart, 0.0)


@dataclass
class TimeParts:
    """Seconds of a run, or of one of its processes, by part. Every second belongs to one part.

    Attributes:
        seconds: Seconds of every part.
    """

    seconds: dict[TimePart, float] = field(default_factory=_no_seconds)

    def __getitem__(self, part: TimePart) -> float:
        return self.seconds[part]

    def __setitem__(self, part: TimePart, seconds: float) -> None:
        self.seconds[part] = seconds

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float | None:
        """Share of new steps, 0 to 1. None before any time has passed."""
        total = self.total
        if total <= 0:
            return None
        return self[TimePart.NEW_STEPS] / total

    def copy(self) -> "TimeParts":
        """Return a copy, which changes independently."""
        return TimeParts(dict(self.seconds))

    def move(self, source: TimePart, target: TimePart, seconds: float) -> None:
        """Count seconds of one part as another part."""
        self[source] -= seconds
        self[target] += seconds

    def __add__(self, other: "TimeParts") -> "TimeParts":
        return TimeParts({part: self[part] + other[part] for part in TimePart})

    def to_json(self) -> dict[str, float]:
        """Return the parts that are not zero, rounded to milliseconds."""
        rounded = {part.value: round(seconds, 3) for part, seconds in self.seconds.items()}
        return {name: seconds for name, seconds in rounded.items() if seconds}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse `to_json`. Unknown parts, which another version wrote, count as other.

        Raises:
            UserError: It is no object with finite numbers.
        """
        if not isinstance(value, dict):
            raise UserError("parts are not an object")
        parts = cls()
        for name, seconds in value.items():
            part = PARTS.get(name, TimePart.OTHER)
            parts[part] += as_seconds(seconds)
        return parts


def as_seconds(value: Any) -> float:
    """Return a number of seconds from JSON.

    Raises:
        UserError: It is no number, or larger than any run.
    """
    if type(value) not in (int, float) or not abs(value) < 1e12:
        raise UserError(f"{value!r} is no number of seconds")
    return float(value)


def as_step(value: Any) -> int:
    """Return a step number from JSON.

    Raises:
        UserError: It is no integer, or larger than any step.
    """
    if type(value) is not int or not abs(value) < 1e12:
        raise UserError(f"{value!r} is no step")
    return value
