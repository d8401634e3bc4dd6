"""Prepares addition problems with reversed digits, holding out some for testing.

A problem is a text such as `321+54=861` for 123 + 45 = 168. All three numbers start with their least significant digit, so each
digit of the answer follows from earlier digits and a carry (McLeish et al., arXiv 2405.17399; the TAPE authors use their data
without holding out test problems). Each character is one token.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field

from megatape.data.shards.entries import SPLITS, Index
from megatape.data.shards.index import build_index, load_index
from megatape.data.shards.reading.reader import OnTokens
from megatape.data.shards.writer import SplitWriter
from megatape.data.tokenizers.sentencepiece import character_tokenizer
from megatape.errors import UserError, path_errors
from megatape.utils.files.atomic import new_folder
from megatape.utils.values.validation import as_type

KIND = "addition"
EQUALS = "="
ALPHABET = f"0123456789+{EQUALS}"
# Share of problems to hold out, for operands of any two lengths. Two one-digit operands make 55 different sums, two ten-digit
# operands 5e19.
HELD_OUT_SHARE = 0.1
# Maximum number of test problems per pair of lengths.
TEST_PROBLEMS = 100
# Number of problems to tokenize at a time.
BATCH_PROBLEMS = 100_000
# Up to this many problems per pair of lengths are enumerated instead of drawn, so that none is missed.
ENUMERABLE = 10_000


@dataclass(frozen=True)
class Problem:
    """The problem a + b."""

    a: int
    b: int

    @property
    def prompt(self) -> str:
        """Text up to and including the equals sign."""
        return f"{_reversed(self.a)}+{_reversed(self.b)}{EQUALS}"

    @property
    def answer(self) -> str:
        """Digits of the sum, least significant first."""
        return _reversed(self.a + self.b)


@dataclass(frozen=True)
class AdditionTask:
    """Settings that decide all problems of a data set.

    `settings_from` makes a task of options and `as_type` of an index, checking the bounds.

    Attributes:
        digits: D. Training operands have 1 to D digits, each pair of lengths equally often.
        per_cell: Number of training problems per pair of lengths.
        seed: Seed for drawing problems and for holding them out.
    """

    digits: Annotated[int, Field(ge=1, le=1000, strict=True)]
    per_cell: Annotated[int, Field(ge=1, le=10**9, strict=True)]
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)]

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Return the task of a data directory.

        Raises:
            UserError: The directory has other data.
            FileNotFoundError: There is no data directory.
        """
        source = load_index(directory).source
        if source.get("kind") != KIND:
            raise UserError(
                f"{directory} holds data of kind {source.get('kind')!r}, not {KIND!r}: give a folder that "
                "`megatape prepare addition` wrote"
            )
        return as_type({name: value for name, value in source.items() if name != "kind"}, cls)

    def describe(self) -> dict[str, Any]:
        """Return the record of the source in the index."""
        return {"kind": KIND, **asdict(self)}

    def held_out(self, problem: Problem) -> bool:
        """Whether a problem, also with its operands swapped, is excluded from the training split."""
        first, second = sorted((problem.a, problem.b))
        digest = hashlib.blake2b(f"{self.seed} {first} {second}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") < HELD_OUT_SHARE * 2**64

    def test_problems(self, a_digits: int, b_digits: int) -> list[Problem]:
        """Return TEST_PROBLEMS distinct held-out problems with operands of these lengths, or all of them if there are fewer.

        Raises:
            UserError: There is no held-out problem.
        """
        generator = random.Random(f"test {self.seed} {a_digits} {b_digits}")
        if 10 ** (a_digits + b_digits) <= ENUMERABLE:
            known = []
            for a, b in itertools.product(_numbers(a_digits), _numbers(b_digits)):
                problem = Problem(a, b)
                if self.held_out(problem):
                    known.append(problem)
            if not known:
                raise UserError(
                    f"seed {self.seed} holds out no problem of {a_digits} and {b_digits} digits: choose another seed"
                )
            return generator.sample(known, min(TEST_PROBLEMS, len(known)))
        problems: dict[Problem, None] = {}
        while len(problems) < TEST_PROBLEMS:
            problem = draw_problem(generator, (a_digits, b_digits))
            if self.held_out(problem):
                problems[problem] = None
        return list(problems)

    def training_problems(self) -> Iterator[Problem]:
        """Yield one problem per pair of lengths, `per_cell` times. Problems may repeat."""
        generator = random.Random(f"train {self.seed}")
        for _ in range(self.per_cell):
            for lengths in self._cells():
                problem = draw_problem(generator, lengths)
                while self.held_out(problem):
                    problem = draw_problem(generator, lengths)
                yield problem

    def validation_problems(self) -> list[Problem]:
        """Return the test problems for the trained lengths, shuffled."""
        problems = []
        for a_digits, b_digits in self._cells():
            problems += self.test_problems(a_digits, b_digits)
        random.Random(f"validation {self.seed}").shuffle(problems)
        return problems

    def _cells(self) -> Iterator[tuple[int, int]]:
        """Return the pairs of trained lengths."""
        lengths = range(1, self.digits + 1)
        return itertools.product(lengths, lengths)


def longest_document(digits: int) -> int:
    """Return the number of tokens in the longest `<s> a+b=c </s>` with operands of up to `digits` digits."""
    return 3 * digits + 5


@path_errors()
def prepare_addition(task: AdditionTask, output: Path, progress: OnTokens) -> Index:
    """Write the data directory `output`, all or nothing.

    Args:
        task: Problems to write.
        output: New folder.
        progress: Called with the number of tokens in each problem.

    Returns:
        The index.

    Raises:
        UserError: The task holds out no problem of some lengths.
        FileExistsError: `output` exists.
    """
    tokenizer = character_tokenizer(ALPHABET)
    documents = _documents(task)
    with new_folder(output) as directory:
        writers = {split: SplitWriter(directory, split, tokenizer.vocab_size, tokenizer.eos_id) for split in SPLITS}
        while True:
            batch = list(itertools.islice(documents, BATCH_PROBLEMS))
            if not batch:
                break
            encoded = tokenizer.encode_documents([text for _, text in batch])
            for (split, text), ids in zip(batch, encoded, strict=True):
                writers[split].add(ids, len(text))
                progress(ids.size)
        return build_index(
            directory,
            tokenizer,
            source=task.describe(),
            validation_share=HELD_OUT_SHARE,
            splits={split: writer.close() for split, writer in writers.items()},
        )


def _documents(task: AdditionTask) -> Iterator[tuple[str, str]]:
    """Yield (split, text) for every problem."""
    for problem in task.validation_problems():
        yield "validation", problem.prompt + problem.answer
    for problem in task.training_problems():
        yield "train", problem.prompt + problem.answer


def _reversed(number: int) -> str:
    """Return the digits of a number, least significant first."""
    return f"{number}"[::-1]


def _numbers(digits: int) -> range:
    """Return all numbers with this many digits. Zero has one digit."""
    if digits == 1:
        return range(10)
    return range(10 ** (digits - 1), 10**digits)


def draw_problem(generator: random.Random, lengths: tuple[int, int]) -> Problem:
    """Draw a problem uniformly from those with operands of these lengths."""
    a_digits, b_digits = lengths
    a_range = _numbers(a_digits)
    b_range = _numbers(b_digits)
    a = generator.randrange(a_range.start, a_range.stop)
    b = generator.randrange(b_range.start, b_range.stop)
    return Problem(a, b)
