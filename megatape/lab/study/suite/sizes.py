"""Sizes of the suite: model shapes, training lengths, learning rates, numbers of test samples.

All encodings share a size: two runs of a task differ only in encoding, seed and learning rate.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from megatape.data.synthetic.task import TRAIN, VALIDATION, Size, SyntheticTask

# Selects all registered tasks or encodings.
ALL = "all"

# Default plan of the size `demo`.
DEMO_TASKS = ("flip_flop", "nth_after_marker")
DEMO_ENCODINGS = ("rope", "tape", "alibi", "nope")
DEMO_SEEDS = 3


@dataclass(frozen=True)
class ModelShape:
    """Model shape: fields of the configuration's model section (megatape/config/sections/model.py)."""

    num_layers: int
    hidden_size: int
    num_heads: int
    mlp_size: int
    position_size: int
    init_std: float


@dataclass(frozen=True)
class Sizing:
    """A size of the suite.

    Attributes:
        model: Model shape.
        tokens: Training tokens, equal for all tasks so that their runs take similar times. No sample is repeated.
        batch: Samples per optimizer step, and per forward pass on one rank.
        precision: Value of training.precision.
        rates: Learning rates to choose from for each encoding and task.
        rate: Learning rate without a search.
        validation: Number of samples for choosing the learning rate.
        test: Number of samples per test split.
        samples: Size of the tasks' samples.
        tasks: Default tasks: names separated by commas, or `all`.
        encodings: Default encodings: names separated by commas, or `all`.
        seeds: Default number of seeds.
    """

    model: ModelShape
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
    seeds: int = 8

    def steps(self, task: SyntheticTask) -> int:
        """Return the optimizer steps of a run."""
        tokens_per_step = self.batch * task.tokens(TRAIN)
        return max(1, self.tokens // tokens_per_step)

    def num_samples(self, task: SyntheticTask) -> dict[str, int]:
        """Return the number of samples in each split of the data directory."""
        return {TRAIN: self.steps(task) * self.batch, VALIDATION: self.validation}

    def config(self, task: SyntheticTask, data: str, vocab_size: int) -> dict[str, Any]:
        """Return the configuration shared by all runs of a task.

        Each run adds its encoding, seed, learning rate and run directory.

        Args:
            task: Task to learn.
            data: Data directory of the task.
            vocab_size: Vocabulary size of the data.
        """
        steps = self.steps(task)
        longest = max(task.tokens(split) for split in task.splits)
        # In bfloat16, stage 1 would sum gradients in bfloat16.
        zero_stage = 1 if self.precision == "float32" else 2
        return {
            # The last token of a sample is only a target, never an input.
            "model": asdict(self.model) | {"vocab_size": vocab_size, "max_positions": longest - 1},
            "data": {"path": data, "sequence_length": task.tokens(TRAIN) - 1, "samples": "examples"},
            "training": {
                "steps": steps,
                "global_batch_size": self.batch,
                "micro_batch_size": self.batch,
                "precision": self.precision,
            },
            "optimizer": {"learning_rate": self.rate},
            "schedule": {"kind": "linear", "warmup_fraction": 0.05},
            "zero": {"stage": zero_stage},
            "evaluation": {"interval": steps, "samples": self.validation},
            "checkpoint": {"interval": max(1, steps // 5), "keep": 1},
            "logging": {"interval": max(1, steps // 10)},
        }


SIZES: dict[str, Sizing] = {
    # Trains on one core in a minute or two.
    "tiny": Sizing(
        model=ModelShape(
            num_layers=2,
            hidden_size=64,
            num_heads=4,
            mlp_size=192,
            position_size=16,
            init_std=0.05,
        ),
        tokens=2**21,
        batch=32,
        precision="float32",
        rates=(1e-3, 3e-3, 1e-2),
        rate=3e-3,
        validation=256,
        test=500,
    ),
    # Needs one GPU per run. About five million weights.
    "small": Sizing(
        model=ModelShape(
            num_layers=6,
            hidden_size=256,
            num_heads=8,
            mlp_size=768,
            position_size=32,
            init_std=0.02,
        ),
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
# Needs one GPU per run. The shape of configs/tape_155m.json.
SIZES["base"] = replace(
    SIZES["small"],
    model=ModelShape(
        num_layers=12,
        hidden_size=768,
        num_heads=12,
        mlp_size=3072,
        position_size=48,
        init_std=0.02,
    ),
    tokens=2**28,
    rates=(1e-4, 3e-4, 1e-3),
    rate=3e-4,
    samples="base",
)
# Compares patterns of layers. Two groups of four layers are the fewest with which TAPE in every fourth layer updates its state.
# Its layers are narrow, so that two cores train a model in an hour or two.
SIZES["deep"] = replace(
    SIZES["tiny"],
    model=ModelShape(
        num_layers=8,
        hidden_size=32,
        num_heads=2,
        mlp_size=96,
        position_size=16,
        init_std=0.05,
    ),
    tokens=2**19,
    batch=16,
    rates=(1e-3, 3e-3),
)
# Gives a first table after ten minutes on two cores.
SIZES["demo"] = replace(
    SIZES["tiny"],
    tokens=2**20,
    rates=(3e-3,),
    test=250,
    tasks=",".join(DEMO_TASKS),
    encodings=",".join(DEMO_ENCODINGS),
    seeds=DEMO_SEEDS,
)
