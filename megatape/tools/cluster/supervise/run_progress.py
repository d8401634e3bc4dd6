"""Checkpoints and events that a run completes and records while its command runs."""

from contextlib import suppress
from dataclasses import dataclass

from megatape.checkpoint.manifest import MANIFEST, load_manifest
from megatape.errors import UserError
from megatape.run_folder import RunFolder
from megatape.utils.json_lines import read_lines
from megatape.utils.retries import retry_transient_errors


@dataclass(frozen=True)
class RecordedEvent:
    """Line of events.jsonl.

    Attributes:
        kind: Kind of the event, such as "stopped".
        step: Number of the last completed step.
    """

    kind: str
    step: int


@dataclass(frozen=True)
class CompletedCheckpoint:
    """Checkpoint with a valid manifest.

    Steps alone would not show that a run advances: a run that resumes from an older checkpoint, because newer ones are
    corrupted or led to a spike, writes smaller steps.

    Attributes:
        name: Name of its folder.
        completion_time: Time at which it was completed, in nanoseconds.
    """

    name: str
    completion_time: int


class RunProgress:
    """Progress of a run since this object was created.

    Args:
        folder: Folder of the run.

    Raises:
        OSError: The folder cannot be read for some time.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._earlier_checkpoints = _completed(folder)
        self._num_earlier_events = len(_events(folder))

    def has_advanced(self) -> bool:
        """Whether a checkpoint was completed.

        Raises:
            OSError: The folder cannot be read for some time.
        """
        return bool(_completed(self._folder) - self._earlier_checkpoints)

    def last_event(self) -> RecordedEvent | None:
        """Return the newest event, None if there is none."""
        events = _events(self._folder)[self._num_earlier_events :]
        if not events:
            return None
        return events[-1]


def _completed(folder: RunFolder) -> set[CompletedCheckpoint]:
    def list_completed() -> set[CompletedCheckpoint]:
        found = set()
        for path in folder.list_checkpoints():
            # Skip checkpoints that are corrupted, stray or removed meanwhile.
            with suppress(ValueError, FileNotFoundError):
                load_manifest(path)
                completion_time = (path / MANIFEST).stat().st_mtime_ns
                found.add(CompletedCheckpoint(path.name, completion_time))
        return found

    return retry_transient_errors(list_completed)


def _events(folder: RunFolder) -> list[RecordedEvent]:
    """Return the events of the run, or an empty list if they cannot be read."""
    events = []
    try:
        for _, entry in read_lines(folder.events):
            events.append(RecordedEvent(str(entry.get("event")), entry.get("step") or 0))
    except (OSError, UserError):
        return []
    return events
