"""One soak round: starting a run, disturbing it, and starting it again until it is complete."""

import json
import random
import shutil
import time
from pathlib import Path

from megatape.checkpoint.load.reader import verified_checkpoint
from megatape.errors import ExitStatus
from megatape.run_folder import CORRUPTED, RunFolder, named_step, read_metrics
from tests.soak.corruption import corrupt
from tests.soak.disk import Disk
from tests.soak.faults import KINDS, act
from tests.soak.journal import Journal
from tests.soak.launch import STARTS, Failure, Start
from tests.soak.progress import Progress
from tests.soak.schedule import Fault, Layout, Round

# Maximum seconds between a moment and its fault.
LONGEST = {"start": 6.0, "resume": 0.6, "steps": 0.1, "save": 0.05}


class DisturbedRun:
    """The run in one round.

    Attributes:
        plan: The round.
        config: Configuration file.
        folder: Run directory.
        logs: Folder holding a folder of logs for each start.
        disk: Disk holding the run directory.
        journal: The soak's journal.
    """

    def __init__(self, plan: Round, config: Path, folder: RunFolder, logs: Path, disk: Disk, journal: Journal) -> None:
        self.plan = plan
        self.config = config
        self.folder = folder
        self.logs = logs
        self.disk = disk
        self.journal = journal
        self._steps = json.loads(config.read_text())["training"]["steps"]
        self._corrupted: set[str] = set()  # names of checkpoints
        self._starts = 0
        # After the faults of the current start: exit statuses that ranks may have, and whether they save their last step.
        self._allowed: set[int] = set()
        self._saves = False
        self._start: Start
        self._progress: Progress

    def finish(self, deadline: float) -> None:
        """Disturb the run until it is complete, the faults are used up or the time is over, and then let it finish.

        Raises:
            Failure: The run makes no progress, ends with an unexpected status, leaves processes, loses a checkpoint or does
                not continue from the newest valid one.
        """
        try:
            self._finish(deadline)
        except BaseException:
            if self._starts:
                # No process may write into the folder while it is copied.
                self._start.kill()
            raise

    def _finish(self, deadline: float) -> None:
        draw = random.Random(self.plan.number)
        running = False
        for fault in self.plan.faults:
            if time.monotonic() > deadline or self._complete():
                break
            if not running:
                self._begin(fault.launcher, fault.layout)
            running = self._disturb(fault)
            if not running:
                self._conclude()
                self._corrupt(fault.corruption, draw)
        if running:
            self._start.wait_for_end()
            self._conclude()
        while not self._complete():  # the last start may have met a full disk
            self._begin("fork server", self.plan.layout)
            self._start.wait_for_end()
            self._conclude()

    def _begin(self, launcher: str, layout: Layout) -> None:
        valid = self._valid()
        self._progress = Progress(self.folder, valid[0] if valid else None)
        words = ["--config", str(self.config), "--resume", "auto"]
        for key, size in layout.settings.items():
            words += ["--set", f"parallel.{key}={size}"]
        self._allowed = set()
        self._saves = False
        self._start = STARTS[launcher](words, layout.num_ranks, self.logs / f"start-{self._starts + 1:02d}")
        self._starts += 1
        origin = valid[0].name if valid else None
        self.journal.write(event="start", round=self.plan.number, launcher=launcher, layout=str(layout), origin=origin)

    def _disturb(self, fault: Fault) -> bool:
        """Wait for a fault's moment and let it happen. Returns whether the run continues."""
        start = self._start
        progress = self._progress
        moments = {
            "start": start.ranks,
            "resume": lambda: progress.met(start),
            "steps": lambda: progress.steps >= fault.steps,
            "save": lambda: progress.saving and progress.steps >= fault.steps,
        }
        if not start.wait(moments[fault.moment], f"the moment {fault.moment!r}"):
            self.journal.write(event="missed", kind=fault.kind, moment=fault.moment)
            return False
        time.sleep(fault.delay * LONGEST[fault.moment])
        kind = KINDS[fault.kind]
        steps = progress.steps
        began = time.monotonic()
        self._allowed |= kind.statuses if steps else kind.statuses | kind.unready
        hit = act(start, progress, self.disk, fault)
        took = round(time.monotonic() - began, 2)
        self.journal.write(event="fault", kind=fault.kind, moment=fault.moment, hit=hit, steps=steps, took=took)
        # A full disk may just have ended the run.
        self._saves = bool(kind.saves and steps and ExitStatus.NOT_SAVED not in self._allowed)
        return not kind.ends and bool(start.processes())

    def _conclude(self) -> None:
        """Check what a start leaves behind: exit statuses, processes, events and checkpoints."""
        start = self._start
        progress = self._progress
        statuses = start.statuses()
        complete = self._complete()
        self.journal.write(event="end", statuses=statuses, steps=progress.steps, complete=complete)
        allowed = set(self._allowed)
        if complete:
            allowed.add(0)
        unexpected = set(statuses) - allowed
        if unexpected:
            raise Failure(f"exit statuses {statuses}, of which {sorted(unexpected)} are unexpected\n{start.logs()}")
        left = start.processes()
        if left:
            raise Failure(f"processes are left: {left}\n{start.show()}")
        self._check_origin()
        self._check_checkpoints()
        newest = max(map(named_step, self._valid()), default=0)
        if self._saves and newest < max(read_metrics(self.folder.metrics), default=0):
            raise Failure(
                f"the run was asked to stop, but its newest checkpoint is of step {newest}, not of its last one\n{start.logs()}"
            )

    def _check_origin(self) -> None:
        """Check that the start has continued from the newest valid checkpoint, unless it ended before."""
        progress = self._progress
        expected = "started"
        origin = ""
        if progress.origin is not None:
            expected = "resumed"
            origin = f"from {progress.origin}"
        beginnings = [event for event in progress.events if event["event"] in ("started", "resumed")]
        wrong = [event for event in beginnings if event["event"] != expected or origin not in event["detail"]]
        if len(beginnings) > 1 or wrong:
            raise Failure(f"the run should have {expected} {origin}, but its events are {beginnings}\n{self._start.logs()}")

    def _check_checkpoints(self) -> None:
        """Check that only checkpoints corrupted by this soak are corrupted or were moved aside."""
        aside = list(self.folder.checkpoints.glob(f"*{CORRUPTED}"))
        names = {path.name.removesuffix(CORRUPTED) for path in aside}
        unknown = names - self._corrupted
        if unknown:
            raise Failure(f"undamaged checkpoints were moved aside: {sorted(unknown)}")
        for path in aside:
            shutil.rmtree(path)  # the disk is small, so a user would remove it, too
        self._corrupted &= {path.name for path in self.folder.list_checkpoints()} - names
        for path in self.folder.list_checkpoints():
            if path.name not in self._corrupted:
                try:
                    verified_checkpoint(path)
                except (ValueError, OSError) as error:
                    raise Failure(f"{path}, which was complete, is corrupted: {error}\n{self._start.logs()}") from error

    def _corrupt(self, kind: str, draw: random.Random) -> None:
        valid = self._valid()
        if self._complete() or kind == "nothing":
            return
        hit, names = corrupt(kind, self.folder, valid, draw)
        self._corrupted |= names
        self.journal.write(event="corruption", kind=kind, hit=hit)

    def _valid(self) -> list[Path]:
        return [path for path in self.folder.list_checkpoints() if path.name not in self._corrupted]

    def _complete(self) -> bool:
        """Whether the run has a valid checkpoint and metrics for the last step."""
        saved_steps = [named_step(path) for path in self._valid()]
        return self._steps in saved_steps and self._steps in read_metrics(self.folder.metrics)
