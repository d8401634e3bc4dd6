"""A soak's schedule, drawn from its seed: rounds, each with its own run and faults."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Name = TypeVar("Name")


@dataclass(frozen=True)
class Layout:
    """A start's ranks, by mesh axis (docs/parallelism.md).

    Attributes:
        data: Number of data-parallel ranks.
        context: Number of context-parallel ranks.
        sequence: Number of sequence-parallel ranks.
        tensor: Number of tensor-parallel ranks.
    """

    data: int = 1
    context: int = 1
    sequence: int = 1
    tensor: int = 1

    @property
    def num_ranks(self) -> int:
        return self.data * self.context * self.sequence * self.tensor

    @property
    def settings(self) -> dict[str, int]:
        """Keys in the section `parallel`."""
        return {"tp": self.tensor, "sp": self.sequence, "cp": self.context}

    def __str__(self) -> str:
        return "-".join(f"{name}{size}" for name, size in vars(self).items() if size > 1) or "one"


LAYOUTS = (
    Layout(),
    Layout(data=2),
    Layout(data=4),
    Layout(tensor=2),
    Layout(data=2, tensor=2),
    Layout(sequence=2),
    Layout(context=2),
    Layout(sequence=2, tensor=2),
    Layout(data=2, context=2),
)
# Sets of features for a model and its data. soak.py has their settings.
MODELS = (("muon", "mixture"), ("ema", "masks"), ("muon", "ema"), ("mixture", "masks"), ())
LAUNCHERS = ("fork server", "fork server", "fork server", "fork server", "deepspeed")
KINDS = (
    "kill a rank",
    "kill all",
    "kill the launcher",
    "stop a rank",
    "pause a rank",
    "pause all",
    "signal",
    "signal, then kill",
    "full disk",
    "full disk, then kill",
)
# Moments of faults: some time after the start; while the run resumes, which begins when it has its lease; after some steps; in
# the first save after some steps.
MOMENTS = ("start", "resume", "steps", "steps", "save", "save")
CORRUPTIONS = (
    "flipped bit",
    "truncated file",
    "missing file",
    "missing manifest",
    "half a copy",
    "copy of another step",
    "partial folder",
    "torn line",
    "binary line",
    "nothing",
)
# Maximum number of faults in a round. A complete run has fewer.
FAULTS = 10


@dataclass(frozen=True)
class Fault:
    """One fault in a run.

    Attributes:
        kind: One of KINDS.
        moment: One of MOMENTS.
        corruption: One of CORRUPTIONS. Files are corrupted once the run has ended.
        steps: Number of steps before the fault, for the moments "steps" and "save".
        delay: Fraction, 0 to 1, of the longest wait after the moment.
        place: Position, 0 to 1, among the ranks or files.
        amount: Duration or size, 0 to 1.
        layout: Ranks in the start following this fault.
        launcher: Launcher for the start following this fault.
    """

    kind: str
    moment: str
    corruption: str
    steps: int
    delay: float
    place: float
    amount: float
    layout: Layout
    launcher: str


@dataclass(frozen=True)
class Round:
    """One run in a soak, with its faults.

    Attributes:
        number: Number of the round.
        resizes: Whether each start may have another number of ranks.
        stage: Stage of ZeRO.
        background: Whether to save in the background.
        layout: Ranks in the undisturbed run, and in all starts unless the round resizes.
        features: Features for the model and its data, one of MODELS.
        faults: Faults in the run, in order.
    """

    number: int
    resizes: bool
    stage: int
    background: bool
    layout: Layout
    features: tuple[str, ...]
    faults: tuple[Fault, ...]


def rounds(seed: int) -> Iterator[Round]:
    """Yield rounds without end, all determined by the seed."""
    draw = random.Random(seed)
    kinds, moments, corruptions = (_bag(draw, names) for names in (KINDS, MOMENTS, CORRUPTIONS))
    layouts = _bag(draw, LAYOUTS)
    launchers = _bag(draw, LAUNCHERS)
    stages = _bag(draw, range(4))
    models = _bag(draw, MODELS)
    resizes = draw.random() < 0.5
    background = draw.random() < 0.5
    number = 0
    while True:
        number += 1
        layout = next(layouts)
        faults = []
        for _ in range(FAULTS):
            ranks = next(layouts) if resizes else layout
            names = (next(kinds), next(moments), next(corruptions))
            steps = draw.randint(1, 8)
            faults.append(Fault(*names, steps, draw.random(), draw.random(), draw.random(), ranks, next(launchers)))
        yield Round(number, resizes, next(stages), background, layout, next(models), tuple(faults))
        # All four combinations of both, in turn
        background ^= resizes
        resizes = not resizes


def _bag(draw: random.Random, names: Sequence[Name]) -> Iterator[Name]:
    """Yield all names in random order, again and again, so that each occurs soon and none for long."""
    while True:
        yield from draw.sample(names, len(names))
