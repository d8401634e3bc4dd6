"""The plan of a suite: its runs by options, by a file that users edit, or by a time budget and a timed pilot.

The sizes are the same for all encodings: what differs between two runs of a task is the encoding, the seed and the learning
rate.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from megatape.config import parse_config
from megatape.data.synthetic.task import TRAIN, VALIDATION, Size, SyntheticTask
from megatape.errors import MissingPath, UserError, choose_one, content_errors, path_errors
from megatape.imports import OPTION
from megatape.lab.benchmark.children import child, finish, interruptible
from megatape.lab.benchmark.encodings import parse_names
from megatape.lab.benchmark.models import random_model
from megatape.lab.benchmark.timing import Timer
from megatape.lab.study.runs import locked_study, threads_of_run
from megatape.lab.study.suite.measure import BATCH_TOKENS
from megatape.lab.study.suite.table import REFERENCE
from megatape.lab.study.variants import parse_variants
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.utils.files import as_type, json_content, read_json, write_atomically
from megatape.utils.options import Count
from megatape.utils.python_process import python_command
from megatape.utils.tables import markdown
from megatape.utils.units import plural

ALL = "all"
PILOT = "pilot.json"
PLAN = "plan.json"
ROUNDS = 2  # of which the faster counts
MODULES = "megatape.training.pretrain", "megatape.lab.study.suite.measure"  # of the processes of a run

# What a budget has first, and all that the size `demo` has.
CORE_TASKS = ("flip_flop", "nth_after_marker")
CORE_ENCODINGS = ("rope", "tape", "alibi", "nope")
CORE_SEEDS = 3


@dataclass(frozen=True)
class Sizing:
    """A size of the suite.

    Attributes:
        model: Shape, as keys of model.*. position_size is that of TAPE's feed-forward update.
        tokens: Tokens of training, so that runs of all tasks take about the same time. No sample is repeated.
        batch: Samples of an optimizer step, and of a forward pass on one rank.
        precision: Value of training.precision.
        rates: Grid of learning rates from which one is chosen for each encoding and task.
        rate: Learning rate of runs without a choice.
        validation: Number of samples on which a learning rate is chosen.
        test: Number of samples of each test.
        samples: Size of the tasks' samples.
        tasks: Tasks unless a command names them.
        encodings: Encodings unless a command names them.
        seeds: Number of seeds unless a command gives it.
    """

    model: dict[str, Any]
    tokens: int
    batch: int
    precision: str
    rates: tuple[float, ...]
    rate: float
    validation: int
    test: int
    samples: Size = "tiny"
    tasks: str = ALL
    encodings: str = ALL
    seeds: int = 5

    def steps(self, task: SyntheticTask) -> int:
        """Optimizer steps of a run."""
        return max(1, self.tokens // (self.batch * task.tokens(TRAIN)))

    def written(self, task: SyntheticTask) -> dict[str, int]:
        """Samples of each split of the task's data directory."""
        return {TRAIN: self.steps(task) * self.batch, VALIDATION: self.validation}

    def config(self, task: SyntheticTask, data: str, vocab_size: int) -> dict[str, Any]:
        """The configuration of all runs of a task, but for encoding, seed, learning rate and folder."""
        steps = self.steps(task)
        longest = max(map(task.tokens, task.splits))
        return {
            # The last token of a sample is a target and never an input.
            "model": self.model | {"vocab_size": vocab_size, "max_positions": longest - 1},
            "data": {"path": data, "sequence_length": task.tokens(TRAIN) - 1, "samples": "examples"},
            "training": {
                "steps": steps,
                "global_batch_size": self.batch,
                "micro_batch_size": self.batch,
                "precision": self.precision,
            },
            "optimizer": {"learning_rate": self.rate},
            "schedule": {"kind": "linear", "warmup_fraction": 0.05},
            "zero": {"stage": 1 if self.precision == "float32" else 2},  # stage 1 would sum gradients in bfloat16
            "evaluation": {"interval": steps, "samples": self.validation},
            "checkpoint": {"interval": max(1, steps // 5), "keep": 1},
            "logging": {"interval": max(1, steps // 10)},
        }


SIZES: dict[str, Sizing] = {
    # For one core: a run takes a minute or two there.
    "tiny": Sizing(
        model={"num_layers": 2, "hidden_size": 64, "num_heads": 4, "mlp_size": 192, "position_size": 16, "init_std": 0.05},
        tokens=2**21,
        batch=32,
        precision="float32",
        rates=(1e-3, 3e-3, 1e-2),
        rate=3e-3,
        validation=256,
        test=500,
    ),
    # For one GPU each. small has about five million weights; base has the shape of configs/tape_155m.json.
    "small": Sizing(
        model={"num_layers": 6, "hidden_size": 256, "num_heads": 8, "mlp_size": 768, "position_size": 32, "init_std": 0.02},
        tokens=2**26,
        batch=64,
        precision="bfloat16",
        rates=(3e-4, 1e-3, 3e-3),
        rate=1e-3,
        validation=1024,
        test=2000,
        samples="small",
    ),
}
SIZES["base"] = replace(
    SIZES["small"],
    model={"num_layers": 12, "hidden_size": 768, "num_heads": 12, "mlp_size": 3072, "position_size": 48, "init_std": 0.02},
    tokens=2**28,
    rates=(1e-4, 3e-4, 1e-3),
    rate=3e-4,
    samples="base",
)
# A first table, in ten minutes of two cores.
SIZES["demo"] = replace(
    SIZES["tiny"],
    tokens=2**20,
    rates=(3e-3,),
    test=250,
    tasks=",".join(CORE_TASKS),
    encodings=",".join(CORE_ENCODINGS),
    seeds=CORE_SEEDS,
)


@dataclass(frozen=True)
class Plan:
    """Every task is learned with every encoding, from as many seeds.

    Attributes:
        size: Name of the size of models and samples.
        tasks: Tasks to learn.
        encodings: Labels of variants (lab/study/variants.py), mostly names of encodings.
        seeds: Number of seeds.
        rates: Learning rates of which one is chosen for each encoding and task; one alone is not tried but taken.
        left_out: A phrase for each thing that a budget leaves out, with the reason.
    """

    size: str
    tasks: tuple[SyntheticTask, ...]
    encodings: tuple[str, ...]
    seeds: int
    rates: tuple[float, ...]
    left_out: tuple[str, ...] = ()

    @property
    def pairs(self) -> list[tuple[SyntheticTask, str]]:
        """Every task with every encoding, in a fixed order."""
        return [(task, encoding) for task in self.tasks for encoding in self.encodings]

    @property
    def range(self) -> range:
        """The seeds."""
        return range(1, self.seeds + 1)

    @property
    def runs_of_pair(self) -> int:
        """Number of runs of a task and an encoding, those that choose a learning rate included."""
        return self.seeds + (len(self.rates) if len(self.rates) > 1 else 0)

    def write(self, path: Path) -> None:
        """Write the file that `read_plan` reads."""
        tasks = tuple(task.name for task in self.tasks)
        content = _PlanFile.model_validate(vars(self) | {"tasks": tasks})
        write_atomically(path, json_content(content.model_dump(mode="json"), str(path), indent=2) + b"\n")


class _PlanFile(BaseModel):
    """A plan with the names of its tasks."""

    model_config = ConfigDict(extra="forbid")

    size: str
    tasks: tuple[str, ...] = Field(min_length=1)
    encodings: tuple[str, ...] = Field(min_length=1)
    seeds: Count
    rates: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(min_length=1)
    left_out: tuple[str, ...] = ()


@path_errors()
def read_plan(path: Path) -> Plan:
    """The plan in a file that `Plan.write` wrote and a user may have edited. Raises UserError, which a PathError is, too."""
    try:
        found = as_type(read_json(path), _PlanFile)
        plan = parse_plan(found.size, ",".join(found.tasks), ",".join(found.encodings), found.seeds, found.rates)
    except FileNotFoundError:
        raise MissingPath(f"no plan at {path}: `budget` writes one") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    return replace(plan, left_out=found.left_out)


def parse_plan(size: str, tasks: str | None, encodings: str | None, seeds: int | None, rates: Sequence[float] | None) -> Plan:
    """The plan that the options of the command describe. None stands for the size's own.

    tasks, encodings: names with commas, or `all`.

    Raises UserError for what is unknown or repeated.
    """
    if size not in SIZES:
        raise UserError(f"size: {size!r} is not a size: {choose_one(size, SIZES)}")
    sizing = SIZES[size]
    tasks = sizing.tasks if tasks is None else tasks
    encodings = sizing.encodings if encodings is None else encodings
    variants = parse_variants(",".join(ENCODINGS) if encodings == ALL else encodings)
    if scaled := [variant.label for variant in variants if variant.scaling]:
        raise UserError(f"encodings: {scaled[0]}: the suite's tests do not scale frequencies: remove the scaling")
    chosen = tuple(variant.label for variant in variants)
    if rates and len({f"{rate:g}" for rate in rates}) < len(rates):  # as folders have them
        raise UserError("rates: one is listed twice")
    names = list(SYNTHETIC_TASKS) if tasks == ALL else parse_names("tasks", tasks, SYNTHETIC_TASKS, "a task")
    made = tuple(SYNTHETIC_TASKS[name].load()(name, sizing.samples) for name in names)
    for variant in variants:  # an error in their settings is one of the command
        parse_config(sizing.config(made[0], "data", made[0].vocab_size), "encodings", [*variant.settings, "run.directory=none"])
    return Plan(size, made, chosen, seeds or sizing.seeds, tuple(rates or sizing.rates))


@dataclass(frozen=True)
class Costs:
    """Seconds that runs are expected to take.

    Attributes:
        start: Seconds to start the processes of a run.
        tasks: Seconds of a run of each task with the encoding `rope`, without the start.
        encodings: Factor of each encoding on these seconds.
        place: Size and threads of these runs.
    """

    start: float
    tasks: dict[str, float]
    encodings: dict[str, float]
    place: str = ""  # earlier versions stored none

    def of_run(self, task: str, encoding: str) -> float:
        """Of a run."""
        return self.start + self.tasks[task] * self.encodings[encoding]

    def minutes(self, plan: Plan, jobs: int) -> float:
        """Minutes of all runs, `jobs` at a time."""
        return plan.runs_of_pair * sum(self.of_run(task.name, encoding) for task, encoding in plan.pairs) / jobs / 60


def propose(asked: Plan, out: Path, minutes: float, jobs: int) -> tuple[Plan, str]:
    """The part of a plan that fits into a budget, also as a file in `out`, and its description.

    Raises:
        UserError: Not even the core fits.
    """
    with interruptible(), locked_study(out):
        costs = expected_costs(asked, out, jobs)
        plan = fit(asked, costs, minutes, jobs)
        plan.write(out / PLAN)
    return plan, describe(plan, costs, minutes, jobs)


def expected_costs(plan: Plan, out: Path, jobs: int) -> Costs:
    """Of all runs of a plan; from `out` if an earlier command left them there, so that the same command has the same plan."""
    path = out / PILOT
    number = int(threads_of_run(jobs))
    place = f"{plan.size}, {number} threads"
    if path.exists():
        with content_errors(f"{path} is corrupted", "remove it and run the command again"):
            costs = as_type(read_json(path), Costs)
        known = costs.tasks.keys() >= {task.name for task in plan.tasks} and costs.encodings.keys() >= set(plan.encodings)
        if known and costs.place == place:
            return costs
    threads = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        costs = replace(_measure(plan), place=place)
    finally:
        torch.set_num_threads(threads)
    write_atomically(path, json_content(asdict(costs), str(path), indent=1) + b"\n")
    return costs


def _measure(plan: Plan) -> Costs:
    """Every task with the encoding REFERENCE, and every encoding with the task of the longest samples."""
    sizing = SIZES[plan.size]
    tasks = {task.name: run_seconds(task, REFERENCE, sizing) for task in plan.tasks}
    longest = max(plan.tasks, key=lambda task: max(map(task.tokens, task.splits)))
    encodings = {encoding: run_seconds(longest, encoding, sizing) / tasks[longest.name] for encoding in plan.encodings}
    imports: list[str] = []
    for module in MODULES:
        imports += [OPTION, module]
    command = python_command(*imports)
    started = time.perf_counter()
    with child(command) as process:
        finish(process)
    start = time.perf_counter() - started
    return Costs(len(MODULES) * start, tasks, encodings)


def run_seconds(task: SyntheticTask, encoding: str, sizing: Sizing) -> float:
    """Of a run, without the start of its processes: a step and a batch of each test, times their number.

    A step is a forward and a backward pass: what the optimizer adds is little.
    """
    longest = max(map(task.tokens, task.splits)) - 1
    (variant,), raw = parse_variants(encoding), sizing.config(task, "data", task.vocab_size)
    raw["model"]["max_positions"] = longest
    config = parse_config(raw, "suite", [*variant.settings, "run.directory=none"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    timer = Timer(device, ROUNDS)
    shape = config.model.model_copy(update={"mlp_size": variant.mlp_size(config)})
    model = random_model(shape, torch.Generator(device).manual_seed(0))

    def tokens(count: int, length: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(length, device=device).expand(count, -1)
        return torch.zeros_like(positions), positions

    def step() -> None:
        ids, positions = tokens(sizing.batch, task.tokens(TRAIN) - 1)
        with torch.autocast(device.type, torch.bfloat16, enabled=sizing.precision == "bfloat16"):
            loss = model(ids, positions, targets=ids)
        loss.backward()
        model.zero_grad()

    def fastest(action: Callable[[], object]) -> float:
        return min(timer.seconds(action) for _ in range(ROUNDS))

    seconds = sizing.steps(task) * fastest(step)
    for length in (task.tokens(split) - 1 for split in task.tests):
        count = min(sizing.test, max(1, BATCH_TOKENS // length))
        with torch.no_grad():
            seconds += sizing.test / count * fastest(partial(model, *tokens(count, length)))
    return seconds


def fit(asked: Plan, costs: Costs, minutes: float, jobs: int) -> Plan:
    """The part of a plan that takes at most so many minutes with `jobs` runs at a time, with what it leaves out.

    The core is taken whole. What is added to it, each if it fits: the choice of learning rates, then further tasks, then
    further encodings, then further seeds.

    Raises:
        UserError: The core does not fit.
    """
    tasks = sorted(asked.tasks, key=lambda task: _place(CORE_TASKS, task.name))
    encodings = sorted(asked.encodings, key=lambda encoding: _place(CORE_ENCODINGS, encoding))
    rate = SIZES[asked.size].rate if len(asked.rates) > 1 else asked.rates[0]
    core = len(CORE_TASKS), len(CORE_ENCODINGS), min(asked.seeds, CORE_SEEDS)
    plan = Plan(asked.size, tuple(tasks[: core[0]]), tuple(encodings[: core[1]]), core[2], (rate,))
    if (taken := costs.minutes(plan, jobs)) > minutes:
        raise UserError(
            f"budget is {minutes:g} minutes, but the core takes about {taken:.0f}: {_described(plan)}. Give more "
            "minutes, or fewer `tasks`, `encodings` or `seeds`"
        )
    further: list[tuple[str, str, Any]] = [
        ("the choice of learning rates", "rates", asked.rates),
        *((f"task {task.name}", "tasks", task) for task in tasks[core[0] :]),
        *((f"encoding {encoding}", "encodings", encoding) for encoding in encodings[core[1] :]),
        *((f"seed {seed}", "seeds", seed) for seed in range(core[2] + 1, asked.seeds + 1)),
    ]
    left_out = []
    for name, field, value in further:
        change: dict[str, Any] = {field: (*getattr(plan, field), value) if field in ("tasks", "encodings") else value}
        larger = replace(plan, **change)
        if (taken := costs.minutes(larger, jobs)) <= minutes:
            plan = larger
        else:
            left_out.append(f"{name} (the plan with it takes {taken:.0f} minutes, not {minutes:g})")
    return replace(plan, left_out=tuple(left_out))


def describe(plan: Plan, costs: Costs, minutes: float, jobs: int) -> str:
    """The runs of a plan, the minutes that each takes, and what is left out."""
    runs = plan.runs_of_pair
    rows = [
        [f"`{task.name}`", *(f"{runs} x {costs.of_run(task.name, encoding) / 60:.1f}" for encoding in plan.encodings)]
        for task in plan.tasks
    ]
    total = plural(runs * len(plan.pairs), "run")
    summary = (
        f"Plan for {minutes:g} minutes, {plural(jobs, 'run')} at a time: {total}, which take about "
        f"{costs.minutes(plan, jobs):.0f} minutes by a timed pilot: {_described(plan)}. No run is stopped early."
    )
    paragraphs = [
        summary,
        "Runs x minutes of each:",
        markdown(["", *plan.encodings], rows),
        "\n".join(["Left out:", *(f"* {phrase}" for phrase in plan.left_out)]) if plan.left_out else "Nothing is left out.",
    ]
    return "\n\n".join(paragraphs)


def _place(core: tuple[str, ...], name: str) -> int:
    return core.index(name) if name in core else len(core)


def _described(plan: Plan) -> str:
    rates = ", ".join(f"{rate:g}" for rate in plan.rates)
    return (
        f"{', '.join(task.name for task in plan.tasks)}; {', '.join(plan.encodings)}; {plural(plan.seeds, 'seed')}; "
        f"{'a learning rate of' if len(plan.rates) > 1 else 'learning rate'} {rates}"
    )
