"""Design of a suite: its plan, fixed before the first run.

A suite that was started with --plan keeps a copy of the plan, OUT/design.json. It then refuses every other plan, so that what
is run, and how it is tested, does not depend on the results.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from megatape.errors import UserError, flag, path_errors
from megatape.lab.study.suite.plan import Plan, PlanFile
from megatape.lab.study.suite.scores.task_result import SCORES
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.json_files import json_content, read_json
from megatape.utils.text.units import plural
from megatape.utils.values.validation import as_type

DESIGN = "design.json"
# Hexadecimal digits of a design's hash in the results.
HASH_DIGITS = 16


@dataclass(frozen=True)
class Design:
    """Design of a suite.

    Attributes:
        hash: First digits of the SHA-256 of the plan.
        num_earlier_runs: Number of runs that were finished before the design was written. 0 for one that is worth its name.
    """

    hash: str
    num_earlier_runs: int

    def describe(self) -> str:
        """Describe the design in one line."""
        time = "before the first run"
        if self.num_earlier_runs > 0:
            time = f"after {plural(self.num_earlier_runs, 'run')}"
        return f"Design: `{DESIGN}`, {self.hash}, written {time}."


class _DesignFile(BaseModel):
    """Content of the file."""

    model_config = ConfigDict(extra="forbid")

    plan: PlanFile
    num_earlier_runs: int


def begin_design(plan: Plan, out: Path) -> None:
    """Write the design of a suite before its first run, unless it has one.

    Args:
        plan: Plan from the file that the user gave.
        out: Suite folder.
    """
    path = out / DESIGN
    if not path.exists():
        num_runs = len(list(out.glob(f"*/*/rate-*/seed-*/{SCORES}")))
        content = _DesignFile(plan=plan.to_file(), num_earlier_runs=num_runs)
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json_content(content.model_dump(mode="json"), str(path), indent=2) + b"\n")


@path_errors()
def check_design(plan: Plan, out: Path) -> Design | None:
    """Check a plan against the design of a suite.

    Args:
        plan: Plan to run.
        out: Suite folder.

    Returns:
        The design, None if the suite has none.

    Raises:
        UserError: The plan differs, or the file is damaged.
    """
    path = out / DESIGN
    if not path.exists():
        return None
    try:
        stored = as_type(read_json(path), _DesignFile)
    except ValueError as error:
        raise UserError(f"{path}: {error}: restore the file") from None
    expected = stored.plan.model_dump(mode="json")
    given = plan.to_file().model_dump(mode="json")
    for name, value in expected.items():
        if given[name] != value:
            raise UserError(
                f"{out} follows a design, in which {name} is {value}, not {given[name]}: use the same {flag('plan')}, or "
                "another folder for other runs"
            )
    digest = hashlib.sha256(json_content(expected, "design")).hexdigest()
    return Design(digest[:HASH_DIGITS], stored.num_earlier_runs)
