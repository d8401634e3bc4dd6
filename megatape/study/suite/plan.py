"""What a suite trains: tasks, encodings, seeds and learning rates."""

from dataclasses import dataclass
from typing import get_args

from megatape.data.synthetic.task import Size, SyntheticTask
from megatape.errors import UserError
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.study.choice import parse_encodings
from megatape.study.suite.sizes import SIZES

ALL = "all"


@dataclass(frozen=True)
class Plan:
    """Every task is learned with every encoding, from as many seeds.

    rates: those of which one is chosen for each encoding and task; one alone is not tried but taken
    """

    size: Size
    tasks: tuple[SyntheticTask, ...]
    encodings: tuple[str, ...]
    seeds: int
    rates: tuple[float, ...]

    @property
    def pairs(self) -> list[tuple[SyntheticTask, str]]:
        """Every task with every encoding, in a fixed order."""
        return [(task, encoding) for task in self.tasks for encoding in self.encodings]

    @property
    def range(self) -> range:
        """The seeds."""
        return range(1, self.seeds + 1)


def parse_plan(size: str, tasks: str, encodings: str, seeds: int, rates: str | None) -> Plan:
    """The plan that the options of the command describe.

    tasks, encodings: names with commas, or `all`. rates: None for the grid of the size.

    Raises UserError for what is unknown or repeated, and for seeds and rates that are not positive.
    """
    known = next((each for each in get_args(Size) if each == size), None)
    if known is None:
        raise UserError(f"size: {size!r} is not a size: choose from {', '.join(get_args(Size))}")
    chosen = tuple(ENCODINGS) if encodings == ALL else tuple(parse_encodings(encodings))
    made = tuple(SYNTHETIC_TASKS[name].load()(name, known) for name in _parse_tasks(tasks))
    return Plan(known, made, chosen, seeds, SIZES[known].rates if rates is None else _parse_rates(rates))


def _parse_tasks(text: str) -> list[str]:
    if text == ALL:
        return list(SYNTHETIC_TASKS)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in SYNTHETIC_TASKS:
            raise UserError(f"tasks: {name!r} is not a task: choose from {', '.join(SYNTHETIC_TASKS)}")
        if names.count(name) > 1:
            raise UserError(f"tasks: {name} is listed twice")
    return names


def _parse_rates(text: str) -> tuple[float, ...]:
    rates = []
    for part in text.split(","):
        try:
            rate = float(part)
        except ValueError:
            raise UserError(f"rates: {part!r} is not a number: give learning rates such as 1e-3,3e-3") from None
        if not 0 < rate < 1:
            raise UserError(f"rates: {part} is not between 0 and 1")
        if rate in rates:
            raise UserError(f"rates: {part} is listed twice")
        rates.append(rate)
    return tuple(rates)
