"""The plan of a suite: its runs, selected by options or by a file that users edit.

The sizes are the same for all encodings: what differs between two runs of a task is the encoding, the seed and the learning
rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from megatape.config import parse_config
from megatape.data.synthetic.task import TRAIN, VALIDATION, Size, SyntheticTask
from megatape.errors import MissingPath, UserError, choose_one, path_errors
from megatape.lab.encodings import parse_names
from megatape.lab.study.variants import parse_variants
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.utils.files import as_type, json_content, read_json, write_atomically
from megatape.utils.options import Count
from megatape.utils.units import plural

ALL = "all"
PLAN = "plan.json"

# The plan of the size `demo`.
DEMO_TASKS = ("flip_flop", "nth_after_marker")
DEMO_ENCODINGS = ("rope", "tape", "alibi", "nope")
DEMO_SEEDS = 3


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
    tasks=",".join(DEMO_TASKS),
    encodings=",".join(DEMO_ENCODINGS),
    seeds=DEMO_SEEDS,
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
        left_out: Phrases of a plan file about what the plan leaves out, with reasons. The tables list them.
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

    def describe(self) -> str:
        """Return the number of runs, and what they are."""
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
            UserError: The file exists: a user may have edited it.
        """
        if path.exists():
            raise UserError(f"{path} exists: remove it, or give another file as `plan`")
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
        raise MissingPath(f"no plan at {path}: `dry_run` writes one") from None
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
