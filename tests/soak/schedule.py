"""What a soak does, drawn from its seed: rounds, each a run of its own, and the faults that this run meets."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Name = TypeVar("Name")


@dataclass(frozen=True)
class Layout:
    """Ranks of a start: how many divide the data, and how many the samples (docs/parallelism.md)."""

    data: int = 1
    context: int = 1
    sequence: int = 1
    tensor: int = 1

    @property
    def num_ranks(self) -> int:
        return self.data * self.context * self.sequence * self.tensor

    @property
    def settings(self) -> dict[str, int]:
        """Keys of the section `parallel`."""
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
# Each is a set of features of a model and its data; soak.py has their settings.
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
# When a fault comes: some time after the start; after the run's lease was taken, so while it resumes; after some steps; in the
# first save after some steps.
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
FAULTS = 10  # of a round, unless its run is complete before


@dataclass(frozen=True)
class Fault:
    """kind, moment, corruption: of the names above; files are corrupted once the run has ended. steps: how many, for
    the moments "steps" and "save". delay: 0 to 1, a share of the longest wait after the moment. place, amount: 0 to 1, which
    rank or file, and how long or how much. layout, launcher: ranks of the start, if the fault comes after one."""

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
    """resizes: whether each start may have another number of ranks. stage: of ZeRO. background: of saves. layout: ranks of the
    undisturbed run, and where nothing resizes of all starts. features: of the model and its data, see MODELS."""

    number: int
    resizes: bool
    stage: int
    background: bool
    layout: Layout
    features: tuple[str, ...]
    faults: tuple[Fault, ...]


def rounds(seed: int) -> Iterator[Round]:
    """All rounds of a soak, without an end: the same for the same seed."""
    draw = random.Random(seed)
    kinds, moments, corruptions = (_bag(draw, names) for names in (KINDS, MOMENTS, CORRUPTIONS))
    layouts, launchers = _bag(draw, LAYOUTS), _bag(draw, LAUNCHERS)
    stages, models = _bag(draw, range(4)), _bag(draw, MODELS)
    resizes, background = draw.random() < 0.5, draw.random() < 0.5
    number = 0
    while True:
        number += 1
        layout = next(layouts)
        faults = []
        for _ in range(FAULTS):
            ranks = next(layouts) if resizes else layout
            names, steps = (next(kinds), next(moments), next(corruptions)), draw.randint(1, 8)
            faults.append(Fault(*names, steps, draw.random(), draw.random(), draw.random(), ranks, next(launchers)))
        yield Round(number, resizes, next(stages), background, layout, next(models), tuple(faults))
        resizes, background = not resizes, background ^ resizes  # all four combinations in turn


def _bag(draw: random.Random, names: Sequence[Name]) -> Iterator[Name]:
    """All names in random order, then again: each soon, and none for long."""
    while True:
        yield from draw.sample(names, len(names))
