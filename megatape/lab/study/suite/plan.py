"""Plan of a suite: its runs, selected by options or by an editable file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from megatape.config import parse_config
from megatape.data.synthetic.task import SyntheticTask
from megatape.errors import MissingPath, UserError, path_errors
from megatape.errors.suggestions import choose_one
from megatape.lab.names import parse_names
from megatape.lab.study.suite.sizes import ALL, SIZES
from megatape.lab.study.variants import Variant, parse_variants
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.utils.atomic import write_atomically
from megatape.utils.json_files import json_content, read_json
from megatape.utils.options import Count
from megatape.utils.units import plural
from megatape.utils.validation import as_type

# File for a dry run's plan, in the suite's folder.
PLAN = "plan.json"


@dataclass(frozen=True)
class Plan:
    """Runs of a suite: every task with every encoding, with equal numbers of seeds.

    Attributes:
        size: Size name, which selects models and samples.
        tasks: Tasks to learn.
        encodings: Variant labels (lab/study/variants.py), mostly encoding names.
        seeds: Number of seeds.
        rates: Learning rates to choose from for each encoding and task. A single rate needs no search.
        left_out: Phrases naming parts left out, with reasons, which the tables list.
    """

    size: str
    tasks: tuple[SyntheticTask, ...]
    encodings: tuple[str, ...]
    seeds: int
    rates: tuple[float, ...]
    left_out: tuple[str, ...] = ()

    @property
    def pairs(self) -> list[tuple[SyntheticTask, str]]:
        """Every task with every encoding, ordered by task."""
        return list(product(self.tasks, self.encodings))

    @property
    def seed_range(self) -> range:
        """Values of training.seed."""
        return range(1, self.seeds + 1)

    @property
    def runs_of_pair(self) -> int:
        """Number of runs for a task and an encoding, including the learning-rate search."""
        if len(self.rates) == 1:
            return self.seeds
        return self.seeds + len(self.rates)

    def describe(self) -> str:
        """Describe the runs in one line, starting with their number."""
        tasks = ", ".join(task.name for task in self.tasks)
        encodings = ", ".join(self.encodings)
        rates = ", ".join(f"{rate:g}" for rate in self.rates)
        kind = "learning rate"
        if len(self.rates) > 1:
            kind = "a learning rate of"
        runs = plural(self.runs_of_pair * len(self.pairs), "run")
        return f"{runs}: {tasks}; {encodings}; {plural(self.seeds, 'seed')}; {kind} {rates}"

    def write(self, path: Path) -> None:
        """Write the file that `read_plan` reads.

        Raises:
            UserError: The file exists, perhaps edited by the user.
        """
        if path.exists():
            raise UserError(f"{path} exists: remove it, or give another file as `plan`")
        tasks = tuple(task.name for task in self.tasks)
        content = _PlanFile.model_validate(vars(self) | {"tasks": tasks})
        write_atomically(path, json_content(content.model_dump(mode="json"), str(path), indent=2) + b"\n")


class _PlanFile(BaseModel):
    """Plan file: a plan with task names."""

    model_config = ConfigDict(extra="forbid")

    size: str
    tasks: tuple[str, ...] = Field(min_length=1)
    encodings: tuple[str, ...] = Field(min_length=1)
    seeds: Count
    rates: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(min_length=1)
    left_out: tuple[str, ...] = ()


@path_errors()
def read_plan(path: Path) -> Plan:
    """Read a file written by `Plan.write` and perhaps edited.

    Raises:
        UserError: The file is missing or unreadable, or its content is not a plan.
    """
    try:
        content = as_type(read_json(path), _PlanFile)
        tasks = ",".join(content.tasks)
        encodings = ",".join(content.encodings)
        plan = parse_plan(content.size, tasks, encodings, content.seeds, content.rates)
    except FileNotFoundError:
        raise MissingPath(f"no plan at {path}: `dry_run` writes one") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    return replace(plan, left_out=content.left_out)


def parse_plan(
    size: str,
    tasks: str | None,
    encodings: str | None,
    seeds: int | None,
    rates: Sequence[float] | None,
) -> Plan:
    """Return the plan that the command's options describe. None selects the size's default.

    Args:
        size: Size name.
        tasks: Task names separated by commas, or `all`.
        encodings: Variant labels separated by commas, or `all`.
        seeds: Number of seeds.
        rates: Learning rates.

    Raises:
        UserError: A name is unknown or repeated.
    """
    if size not in SIZES:
        raise UserError(f"size: {size!r} is not a size: {choose_one(size, SIZES)}")
    sizing = SIZES[size]
    if tasks is None:
        tasks = sizing.tasks
    if encodings is None:
        encodings = sizing.encodings
    variants = _parse_encodings(encodings)
    labels = tuple(variant.label for variant in variants)
    # Run directories have the rates in this form.
    if rates and len({f"{rate:g}" for rate in rates}) < len(rates):
        raise UserError("rates: one is listed twice")

    names = list(SYNTHETIC_TASKS)
    if tasks != ALL:
        names = parse_names("tasks", tasks, SYNTHETIC_TASKS, "a task")
    instances = tuple(SYNTHETIC_TASKS[name].load()(name, sizing.samples) for name in names)

    # Parse the configuration now to report a variant's wrong settings as an error of the option.
    first = instances[0]
    for variant in variants:
        parse_config(sizing.config(first, "data", first.vocab_size), "encodings", [*variant.overrides, "run.directory=none"])
    return Plan(size, instances, labels, seeds or sizing.seeds, tuple(rates or sizing.rates))


def _parse_encodings(encodings: str) -> list[Variant]:
    """Parse variant labels. Raises UserError if one is unknown, repeated or scaled."""
    if encodings == ALL:
        encodings = ",".join(ENCODINGS)
    variants = parse_variants(encodings)
    for variant in variants:
        if variant.scaling:
            raise UserError(f"encodings: {variant.label}: the suite's tests do not scale frequencies: remove the scaling")
    return variants
