"""Plan of a suite: its runs, selected by options or by an editable file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from megatape.config import parse_config
from megatape.data.synthetic.task import SyntheticTask
from megatape.errors import MissingPath, UserError, flag, path_errors
from megatape.errors.suggestions import choose_one
from megatape.lab.names import parse_names
from megatape.lab.study.suite.analysis.difference_tests import DEFAULT_TEST, DIFFERENCE_TESTS
from megatape.lab.study.suite.analysis.hypothesis_tests import LEVEL
from megatape.lab.study.suite.analysis.score_table import REFERENCE
from megatape.lab.study.suite.runs.rate_search import RateGrid
from megatape.lab.study.suite.sizes import ALL, SIZES
from megatape.lab.study.variants import EncodingVariant, parse_variants
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.json_files import json_content, read_json
from megatape.utils.text.units import plural
from megatape.utils.values.options import Count
from megatape.utils.values.validation import as_type

# Default number of runs for each rate of a search.
TUNING_SEEDS = 2
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
        tuning_seeds: Number of runs for each rate of the search.
        fixed_rates: Whether the search stops at these rates, also if the best one is at an end.
        test: Name of the test for differences in score (analysis/difference_tests.py).
    """

    size: str
    tasks: tuple[SyntheticTask, ...]
    encodings: tuple[str, ...]
    seeds: int
    rates: tuple[float, ...]
    left_out: tuple[str, ...] = ()
    tuning_seeds: int = TUNING_SEEDS
    fixed_rates: bool = False
    test: str = DEFAULT_TEST

    @property
    def pairs(self) -> list[tuple[SyntheticTask, str]]:
        """Every task with every encoding, ordered by task."""
        return list(product(self.tasks, self.encodings))

    @property
    def seed_range(self) -> range:
        """Values of training.seed."""
        return range(1, self.seeds + 1)

    @property
    def grid(self) -> RateGrid:
        """Learning rates to search for each encoding and task."""
        return RateGrid(self.rates, self.tuning_seeds, extends=not self.fixed_rates)

    @property
    def runs_of_pair(self) -> int:
        """Number of runs for a task and an encoding, including the learning-rate search if it adds no rates."""
        if not self.grid.is_searched:
            return self.seeds
        return self.seeds + len(self.rates) * self.tuning_seeds

    @property
    def num_comparisons(self) -> int:
        """Number of differences from the reference in the tables, at most: every test split with every other encoding."""
        if REFERENCE not in self.encodings:
            return 0
        num_splits = sum(len(task.tests) for task in self.tasks)
        return num_splits * (len(self.encodings) - 1)

    def describe_needed_seeds(self) -> str | None:
        """Describe the least number of seeds with which a difference can be significant.

        Returns:
            The description, or None without comparisons, or if the test has no such number.
        """
        if not self.num_comparisons:
            return None
        least = DIFFERENCE_TESTS[self.test].least_seeds(LEVEL / self.num_comparisons)
        if least is None:
            return None
        comparisons = plural(self.num_comparisons, "comparison")
        return f"{comparisons} with {REFERENCE}: a significant difference needs at least {least} seeds"

    def describe(self) -> str:
        """Describe the runs in one line, starting with their number."""
        tasks = ", ".join(task.name for task in self.tasks)
        encodings = ", ".join(self.encodings)
        rates = ", ".join(f"{rate:g}" for rate in self.rates)
        kind = "learning rate"
        if len(self.rates) > 1:
            kind = "a learning rate of"
        runs = plural(self.runs_of_pair * len(self.pairs), "run")
        if self.grid.is_searched and self.grid.extends:
            runs = f"at least {runs}"
        return f"{runs}: {tasks}; {encodings}; {plural(self.seeds, 'seed')}; {kind} {rates}"

    def write(self, path: Path) -> None:
        """Write the file that `read_plan` reads.

        Raises:
            UserError: The file exists, perhaps edited by the user.
        """
        if path.exists():
            raise UserError(f"{path} exists: remove it, or give another file as {flag('plan')}")
        write_atomically(path, json_content(self.to_file().model_dump(mode="json"), str(path), indent=2) + b"\n")

    def to_file(self) -> "PlanFile":
        """Return the content of a plan file."""
        tasks = tuple(task.name for task in self.tasks)
        return PlanFile.model_validate(vars(self) | {"tasks": tasks})


class PlanFile(BaseModel):
    """Content of a plan file: a plan with task names."""

    model_config = ConfigDict(extra="forbid")

    size: str
    tasks: tuple[str, ...] = Field(min_length=1)
    encodings: tuple[str, ...] = Field(min_length=1)
    seeds: Count
    rates: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(min_length=1)
    left_out: tuple[str, ...] = ()
    tuning_seeds: Count = TUNING_SEEDS
    fixed_rates: bool = False
    test: str = DEFAULT_TEST


@path_errors()
def read_plan(path: Path) -> Plan:
    """Read a file written by `Plan.write` and perhaps edited.

    Raises:
        UserError: The file is missing or unreadable, or its content is not a plan.
    """
    try:
        content = as_type(read_json(path), PlanFile)
        tasks = ",".join(content.tasks)
        encodings = ",".join(content.encodings)
        plan = parse_plan(content.size, tasks, encodings, content.seeds, content.rates, content.test)
    except FileNotFoundError:
        raise MissingPath(f"no plan at {path}: {flag('dry_run')} writes one") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    return replace(plan, left_out=content.left_out, tuning_seeds=content.tuning_seeds, fixed_rates=content.fixed_rates)


def parse_plan(
    size: str,
    tasks: str | None,
    encodings: str | None,
    seeds: int | None,
    rates: Sequence[float] | None,
    test: str = DEFAULT_TEST,
) -> Plan:
    """Return the plan that the command's options describe. None selects the size's default.

    Args:
        size: Size name.
        tasks: Task names separated by commas, or `all`.
        encodings: Variant labels separated by commas, or `all`.
        seeds: Number of seeds.
        rates: Learning rates.
        test: Name of the test for differences.

    Raises:
        UserError: A name is unknown or repeated.
    """
    if test not in DIFFERENCE_TESTS:
        raise UserError(f"{flag('test')}: {test!r} is not a test: {choose_one(test, DIFFERENCE_TESTS)}")
    if size not in SIZES:
        raise UserError(f"{flag('size')}: {size!r} is not a size: {choose_one(size, SIZES)}")
    sizing = SIZES[size]
    if tasks is None:
        tasks = sizing.tasks
    if encodings is None:
        encodings = sizing.encodings
    variants = _parse_encodings(encodings)
    labels = tuple(variant.label for variant in variants)
    # Run directories have the rates in this form.
    if rates and len({f"{rate:g}" for rate in rates}) < len(rates):
        raise UserError(f"{flag('rates')}: one is listed twice")

    names = list(SYNTHETIC_TASKS)
    if tasks != ALL:
        names = parse_names("tasks", tasks, SYNTHETIC_TASKS, "a task")
    instances = tuple(SYNTHETIC_TASKS[name].load()(name, sizing.samples) for name in names)

    # Parse the configuration now to report a variant's wrong settings as an error of the option.
    first = instances[0]
    for variant in variants:
        parse_config(sizing.config(first, "data", first.vocab_size), "encodings", [*variant.overrides, "run.directory=none"])
    return Plan(size, instances, labels, seeds or sizing.seeds, tuple(rates or sizing.rates), test=test)


def _parse_encodings(encodings: str) -> list[EncodingVariant]:
    """Parse variant labels. Raises UserError if one is unknown, repeated or scaled."""
    if encodings == ALL:
        encodings = ",".join(ENCODINGS)
    variants = parse_variants(encodings)
    for variant in variants:
        if variant.scaling:
            raise UserError(
                f"{flag('encodings')}: {variant.label}: the suite's tests do not scale frequencies: remove the scaling"
            )
    return variants
