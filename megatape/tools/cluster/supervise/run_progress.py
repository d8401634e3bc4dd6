"""Progress of a run while its command is running: new checkpoints and events."""

from contextlib import suppress
from dataclasses import dataclass

from megatape.checkpoint.format.manifest import MANIFEST, load_manifest
from megatape.errors import UserError
from megatape.run_folder import RunFolder
from megatape.utils.files.json_lines import read_lines
from megatape.utils.files.retries import retry_transient_errors


@dataclass(frozen=True)
class RecordedEvent:
    """Line of events.jsonl.

    Attributes:
        kind: Kind of event, such as "stopped".
        step: Last completed step.
        detail: Description for people.
    """

    kind: str
    step: int
    detail: str = ""


@dataclass(frozen=True)
class CompletedCheckpoint:
    """Checkpoint with a valid manifest.

    The step alone would not show whether a run advances: if the newest checkpoints are corrupted or led to a spike, the run
    resumes from an older one and writes the same steps again.

    Attributes:
        name: Folder name.
        completion_time: Time of completion in nanoseconds.
    """

    name: str
    completion_time: int


class RunProgress:
    """Progress of a run since this object was created.

    Args:
        folder: Run directory.

    Raises:
        OSError: The run directory stays unreadable despite retries.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._earlier_checkpoints = _completed(folder)
        self._num_earlier_events = len(_events(folder))

    def has_advanced(self) -> bool:
        """Whether a checkpoint was completed.

        Raises:
            OSError: The run directory stays unreadable despite retries.
        """
        return bool(_completed(self._folder) - self._earlier_checkpoints)

    def last_event(self) -> RecordedEvent | None:
        """Return the newest event, or None."""
        events = _events(self._folder)[self._num_earlier_events :]
        if not events:
            return None
        return events[-1]


def _completed(folder: RunFolder) -> set[CompletedCheckpoint]:
    def list_completed() -> set[CompletedCheckpoint]:
        completed = set()
        for path in folder.list_checkpoints():
            # Skip checkpoints that are corrupted or incomplete, or were removed meanwhile.
            with suppress(ValueError, FileNotFoundError):
                load_manifest(path)
                completion_time = (path / MANIFEST).stat().st_mtime_ns
                completed.add(CompletedCheckpoint(path.name, completion_time))
        return completed

    return retry_transient_errors(list_completed)


def _events(folder: RunFolder) -> list[RecordedEvent]:
    """Return the events of the run, or an empty list if they cannot be read."""
    events = []
    try:
        for _, entry in read_lines(folder.events):
            events.append(RecordedEvent(str(entry.get("event")), entry.get("step") or 0, str(entry.get("detail"))))
    except (OSError, UserError):
        return []
    return events
