"""The interface of synthetic tasks: samples drawn from a seed, for training and for tests that differ from it."""

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from megatape.utils.targets import HIDES_ANSWERS

TRAIN = "train"
VALIDATION = "validation"
TEST = "test"
SIZES = ("tiny", "small", "base")
HASHED = 32  # samples of each split that a definition's hash covers
NUM_CONTROL_TOKENS = 3  # <unk>, <s>, </s>

Size = Literal["tiny", "small", "base"]


@dataclass(frozen=True)
class Answer:
    """Characters [begin, end) of a sample's text, which the model must predict from all that precedes each.

    Attributes:
        key: A length or distance, on which the task's accuracy is plotted.
    """

    begin: int
    end: int
    key: int


@dataclass(frozen=True)
class SyntheticSample:
    """A text, each character of which is one token, and its answers in order. The last answer ends the text."""

    text: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Split:
    """How samples are drawn.

    Attributes:
        characters: Of the longest sample.
        differs: A phrase for how it differs from training; empty for the same distribution.
        options: Of the task's `sample`.
    """

    characters: int
    differs: str = ""
    options: dict[str, Any] = field(default_factory=dict)


class SyntheticTask(ABC):
    """A task at one size. To add one, write a subclass and its line in megatape/registry.py.

    `splits` has `train` and the tests: `test`, drawn as `train` is, and those that differ from it. The validation split, on
    which learning rates are chosen, is drawn as `train` is, too. The samples of a split follow from the task's name, the size,
    the split's name and the sample's index alone.

    Attributes:
        alphabet: All characters of its texts; no white space.
        axis: What the answers' keys are, as a plot's axis shows it.
        scored: What the score counts: right answers, or samples whose answers are all right.
        answers_end: Whether the end token follows the last answer and belongs to it: the model must know where to stop.
        copies: Whether each character of an answer repeats the one `key` characters before it.
        hides_answers: Whether the model reads the end token in place of each answer, so that none helps with the next.
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
        """`train` and the splits that differ from it."""

    @abstractmethod
    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        """Draw a sample."""

    @property
    def tests(self) -> dict[str, Split]:
        """The splits that trained models are tested on."""
        return {name: split for name, split in self.splits.items() if name != TRAIN}

    def split(self, name: str) -> Split:
        """A split by its name, `validation` included."""
        return self.splits[TRAIN if name == VALIDATION else name]

    def samples(self, name: str, count: int) -> Iterator[SyntheticSample]:
        """The first `count` samples of a split."""
        split = self.split(name)
        for index in range(count):
            yield self.sample(split, random.Random(f"{self.name} {self.size} {name} {index}"))

    def tokens(self, name: str) -> int:
        """Tokens of the longest sample of a split, <s> and end token included."""
        return 1 + self.split(name).characters + self.answers_end

    @property
    def vocab_size(self) -> int:
        """Number of tokens: the characters and control tokens."""
        return NUM_CONTROL_TOKENS + len(self.alphabet)

    @property
    def definition(self) -> str:
        """A hash of what decides the results: tokens, how samples are scored, and the first of each split."""

        def drawn(name: str) -> list[str]:  # data folders keep the hash, so samples are written as they always were
            return [repr(self.split(name)), *(repr(sample)[len("Synthetic") :] for sample in self.samples(name, HASHED))]

        splits = {name: drawn(name) for name in (*self.splits, VALIDATION)}
        hidden = [HIDES_ANSWERS] if self.hides_answers else []
        content = [self.alphabet, self.vocab_size, self.scored, self.answers_end, splits, *hidden]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()
