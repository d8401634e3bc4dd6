"""Parts of the time of a run."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from megatape.errors import UserError

# Part -> description for people, in the order of tables.
LABELS = {
    "new_steps": "new steps",
    "repeated_steps": "steps made twice or undone",
    "skipped_steps": "skipped steps",
    "data_waits": "waiting for data",
    "saves": "saves that training waited for",
    "evaluations": "evaluations",
    "reporting": "metrics and callbacks",
    "down": "no process running",
    "launch": "launcher before the process",
    "process_start": "process start",
    "imports": "imports",
    "rendezvous": "rendezvous",
    "setup": "data, model and optimizer",
    "verification": "verification of checkpoints and replicas",
    "weights": "reading weights",
    "compilation": "kernel trials, compilation, warm-up",
    "other": "other",
}
# Parts between the end of a process and its successor's first step.
RESTART_PARTS = (
    "down",
    "launch",
    "process_start",
    "imports",
    "rendezvous",
    "setup",
    "verification",
    "weights",
    "compilation",
)


@dataclass
class TimeParts:
    """Seconds of a run, or of one of its processes, by part. Every second belongs to one part.

    Attributes:
        new_steps: Steps that the run keeps. Time for data, and of the first step for compilation, is counted below.
        repeated_steps: Steps that a kill or a rollback has undone, and unfinished ones.
        skipped_steps: Steps without an update: spikes, non-finite losses, samples that the configuration skips.
        data_waits: Time in which steps waited for their batches.
        saves: Time in which training waited for saves.
        evaluations: Evaluations.
        reporting: Sinks and callbacks.
        down: Time from the end of a process, or its last sign of life, to the start of the next one.
        launch: Time from the start of DeepSpeed's launcher to that of the process.
        process_start: Start of the interpreter and the command line.
        imports: Imports of torch, DeepSpeed and the training loop.
        rendezvous: Joining the process group.
        setup: Opening data, comparing ranks, building model and optimizer.
        verification: Reading checkpoints to verify them, and comparing replicas.
        weights: Loading weights and optimizer state, or initializing them.
        compilation: Kernel trials at the start, and the time by which the first step of a process exceeded its second.
        other: The remainder.
    """

    new_steps: float = 0.0
    repeated_steps: float = 0.0
    skipped_steps: float = 0.0
    data_waits: float = 0.0
    saves: float = 0.0
    evaluations: float = 0.0
    reporting: float = 0.0
    down: float = 0.0
    launch: float = 0.0
    process_start: float = 0.0
    imports: float = 0.0
    rendezvous: float = 0.0
    setup: float = 0.0
    verification: float = 0.0
    weights: float = 0.0
    compilation: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return sum(asdict(self).values())

    @property
    def goodput(self) -> float | None:
        """Share of new steps, 0 to 1. None before any time has passed."""
        total = self.total
        if total <= 0:
            return None
        return self.new_steps / total

    def add(self, part: str, seconds: float) -> None:
        """Add seconds to a part, by its name."""
        setattr(self, part, getattr(self, part) + seconds)

    def move(self, source: str, target: str, seconds: float) -> None:
        """Count seconds of one part as another part."""
        self.add(source, -seconds)
        self.add(target, seconds)

    def __add__(self, other: "TimeParts") -> "TimeParts":
        summed = TimeParts()
        for name in LABELS:
            summed.add(name, getattr(self, name) + getattr(other, name))
        return summed

    def to_json(self) -> dict[str, float]:
        """Return the parts that are not zero, rounded to milliseconds."""
        rounded = {name: round(seconds, 3) for name, seconds in asdict(self).items()}
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
        names = {field.name for field in fields(cls)}
        for name, seconds in value.items():
            if name not in names:
                name = "other"
            parts.add(name, as_seconds(seconds))
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
