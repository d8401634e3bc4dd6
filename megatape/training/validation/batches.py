"""Batches of an evaluation, read before any of them is used."""

from dataclasses import dataclass

from megatape.data.training.batch import Batch


@dataclass(frozen=True)
class SplitBatches:
    """This rank's share of the samples of one validation split.

    Attributes:
        groups: Names of the inputs of all samples; one empty name if the samples are not divided.
        batches: Micro-batches, each with the name of its input.
    """

    groups: list[str]
    batches: list[tuple[str, Batch]]


@dataclass(frozen=True)
class ValidationBatches:
    """This rank's share of the validation data.

    Attributes:
        splits: Share of each corpus's samples, by name of the corpus.
        viewed: Sample of the position view, the same on all ranks; None without one.
        error: Reason why the data cannot be read, or "".
    """

    splits: dict[str, SplitBatches]
    viewed: Batch | None = None
    error: str = ""
