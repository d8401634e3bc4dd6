"""Batches of an evaluation, all read before using the first one."""

from dataclasses import dataclass

from megatape.data.training.batches.batch import Batch


@dataclass(frozen=True)
class SplitBatches:
    """This rank's share of a validation split.

    Attributes:
        groups: Names of the inputs that the samples come from; one empty name if losses are not reported by input.
        batches: Micro-batches, each with the name of its input.
    """

    groups: list[str]
    batches: list[tuple[str, Batch]]


@dataclass(frozen=True)
class ValidationBatches:
    """This rank's share of the validation data.

    Attributes:
        splits: Corpus -> this rank's share of its validation split.
        viewed: Sample of the position view, the same on all ranks, or None.
        error: Reason why the data cannot be read, or None.
    """

    splits: dict[str, SplitBatches]
    viewed: Batch | None = None
    error: str | None = None
