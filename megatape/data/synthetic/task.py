"""Interface of synthetic tasks: samples drawn from a seed, for training and for tests differing from it."""

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from megatape.data.training.datasets.example_dataset import HIDES_ANSWERS

TRAIN = "train"
VALIDATION = "validation"
TEST = "test"
SIZES = ("tiny", "small", "base")
# Number of samples per split covered by the hash of a definition.
HASHED = 32
# Control tokens are <unk>, <s> and </s>.
NUM_CONTROL_TOKENS = 3

Size = Literal["tiny", "small", "base"]


@dataclass(frozen=True)
class Answer:
    """Characters [begin, end) of a sample's text, each to be predicted from all characters before it.

    Attributes:
        begin: First character.
        end: End of the characters.
        key: Length or distance for plotting the accuracy.
    """

    begin: int
    end: int
    key: int


@dataclass(frozen=True)
class SyntheticSample:
    """A sample.

    Attributes:
        text: Text, one token per character.
        answers: Answers in order. The last one ends the text.
    """

    text: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Split:
    """Distribution of samples.

    Attributes:
        characters: Characters in the longest sample.
        differs: Phrase saying how it differs from training; empty for the same distribution.
        options: Options for the task's `sample`.
    """

    characters: int
    differs: str = ""
    options: dict[str, Any] = field(default_factory=dict)


class SyntheticTask(ABC):
    """A task at one size. To add one, write a subclass and its line in megatape/registry.py.

    `splits` has `train` and the tests: `test` with the same distribution, and others with different ones. The validation split,
    used for choosing learning rates, also has the distribution of `train`. A sample depends on the task's name, the size, the
    split's name and the index.

    Attributes:
        alphabet: All characters in its texts, without white space.
        axis: Meaning of the answers' keys, for labeling a plot.
        scored: Unit of scoring: right answers, or samples with only right answers.
        answers_end: Whether the last answer includes the end token, so that the model must know where to stop.
        copies: Whether each character in an answer repeats the character `key` characters before it.
        hides_answers: Whether the model reads an end token instead of each answer, so that no answer helps with the next.
    """

    alphabet: ClassVar[str]
    axis: ClassVar[str]
    scored: ClassVar[Literal["answers", "samples"]] = "answers"
    answers_end: ClassVar[bool] = False
    copies: ClassVar[bool] = False
    hides_answers: ClassVar[bool] = False

    def __init__(self, name: str, size: Size) -> None:
        self.name = name
        self.size = size
        splits = self.make_splits(size)
        self.splits = {TRAIN: splits[TRAIN], TEST: splits[TRAIN], **splits}

    @abstractmethod
    def make_splits(self, size: Size) -> dict[str, Split]:
        """Return `train`, and the splits differing from it."""

    @abstractmethod
    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        """Draw a sample."""

    @property
    def tests(self) -> dict[str, Split]:
        """Splits for testing trained models."""
        return {name: split for name, split in self.splits.items() if name != TRAIN}

    def split(self, name: str) -> Split:
        """Return a split by name, including `validation`."""
        if name == VALIDATION:
            name = TRAIN
        return self.splits[name]

    def samples(self, name: str, count: int) -> Iterator[SyntheticSample]:
        """Yield the first `count` samples of a split."""
        split = self.split(name)
        for index in range(count):
            yield self.sample(split, random.Random(f"{self.name} {self.size} {name} {index}"))

    def tokens(self, name: str) -> int:
        """Return the number of tokens in a split's longest sample, including <s> and the end token."""
        return 1 + self.split(name).characters + self.answers_end

    @property
    def vocab_size(self) -> int:
        """Number of characters and control tokens."""
        return NUM_CONTROL_TOKENS + len(self.alphabet)

    @property
    def definition(self) -> str:
        """Hash of everything deciding the results: tokens, scoring, and the first samples of each split."""
        splits = {}
        for name in (*self.splits, VALIDATION):
            # Data directories store the hash, so samples are written under the earlier name of their class.
            samples = [repr(sample).removeprefix("Synthetic") for sample in self.samples(name, HASHED)]
            splits[name] = [repr(self.split(name)), *samples]
        content: list[Any] = [self.alphabet, self.vocab_size, self.scored, self.answers_end, splits]
        if self.hides_answers:
            content.append(HIDES_ANSWERS)
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()
