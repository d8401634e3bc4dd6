"""Reports about saves, and how many consecutive saves may fail."""

from pathlib import Path
from typing import Any

from megatape.checkpoint.save.save_report import MAX_CONSECUTIVE_FAILED_SAVES, SaveReport
from megatape.reliability.goodput.process_clock import ProcessClock

ERROR = OSError("no space")


class Log:
    """Stand-in of the run's log."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.events: list[str] = []
        self.facts: list[dict[str, Any]] = []

    def info(self, text: str) -> None:
        self.lines.append(text)

    warning = info

    def record(self, event: str, detail: str, **facts: Any) -> None:
        self.events.append(event)
        self.facts.append(facts)


def report_of(log: Log, clock: ProcessClock | None = None) -> SaveReport:
    run_log: Any = log
    return SaveReport(run_log, clock or ProcessClock(), interval=10)


def test_the_last_attempts_follow_several_failures_in_a_row() -> None:
    log = Log()
    report = report_of(log)
    answers = [report.failed(ERROR) for _ in range(MAX_CONSECUTIVE_FAILED_SAVES)]
    assert answers == [False, False, True]
    assert log.lines[0] == "no space (failure 1 in a row, 3 end the run); the next is after 10 steps"
    assert log.lines[-1].endswith("the last attempts are now")


def test_a_success_forgets_failures() -> None:
    log = Log()
    report = report_of(log)
    report.failed(ERROR)
    report.failed(ERROR)
    report.succeeded(Path("checkpoints/step-00000010"), waited=0.5)
    assert log.lines[-1] == "checkpoint checkpoints/step-00000010; training waited 0.500 s"
    assert not report.failed(ERROR)
    assert log.events == ["save failed", "save failed", "checkpoint", "save failed"]
