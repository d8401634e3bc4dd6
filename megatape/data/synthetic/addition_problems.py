"""Addition problems with reversed digits, some of which are held out for testing.

A problem is a text such as `321+54=861` for 123 + 45 = 168. All three numbers start with their least significant
digit, so each digit of the answer follows from digits and a carry that came before (McLeish et al., arXiv
2405.17399, whose data the TAPE authors use without holding out test problems). One character is one token.
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
from megatape.data.shards.reader import OnTokens
from megatape.data.shards.writer import SplitWriter
from megatape.data.tokenizers.sentencepiece import character_tokenizer
from megatape.errors import UserError, path_errors
from megatape.utils.files import as_type, new_folder

KIND = "addition"
EQUALS = "="
ALPHABET = f"0123456789+{EQUALS}"
HELD_OUT_SHARE = 0.1  # of the pairs of any two lengths: one digit and one digit make 55 different sums, ten and ten 5e19
TEST_PROBLEMS = 100  # at most, for each pair of lengths
BATCH = 100_000  # problems that are tokenized at a time
ENUMERABLE = 10_000  # pairs of lengths with at most so many problems are listed, not drawn, so that none is missed


@dataclass(frozen=True)
class Problem:
    """The problem a + b."""

    a: int
    b: int

    @property
    def prompt(self) -> str:
        """The text up to and including the equals sign."""
        return f"{self.a}"[::-1] + "+" + f"{self.b}"[::-1] + EQUALS

    @property
    def answer(self) -> str:
        """The digits of the sum, least significant first."""
        return f"{self.a + self.b}"[::-1]


@dataclass(frozen=True)
class AdditionTask:
    """The problems of a data set, which follow from these numbers alone.

    digits     D: training operands have 1 to D digits, each pair of lengths equally often
    per_cell   training problems for each pair of lengths
    seed       of all draws, and of what is held out

    `as_type` makes one of options or of an index, and checks the bounds.
    """

    digits: Annotated[int, Field(ge=1, le=1000, strict=True)]
    per_cell: Annotated[int, Field(ge=1, le=10**9, strict=True)]
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)]

    @classmethod
    def of(cls, directory: Path) -> Self:
        """The task that a data directory was prepared for.

        Raises UserError or FileNotFoundError if it is not addition data.
        """
        source = load_index(directory).source
        if source.get("kind") != KIND:
            raise UserError(
                f"{directory} holds data of kind {source.get('kind')!r}, not {KIND!r}: give a folder that "
                "`megatape prepare addition` wrote"
            )
        return as_type({name: value for name, value in source.items() if name != "kind"}, cls)

    def describe(self) -> dict[str, Any]:
        """What the index records."""
        return {"kind": KIND, **asdict(self)}

    def held_out(self, problem: Problem) -> bool:
        """Whether a problem is held out: then neither it nor the one with swapped operands is in the training split."""
        first, second = sorted((problem.a, problem.b))
        digest = hashlib.blake2b(f"{self.seed} {first} {second}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") < HELD_OUT_SHARE * 2**64

    def test_problems(self, a_digits: int, b_digits: int) -> list[Problem]:
        """TEST_PROBLEMS distinct held-out problems with operands of these lengths, or all if there are fewer.

        Raises UserError if there is none.
        """
        generator = random.Random(f"test {self.seed} {a_digits} {b_digits}")
        lengths = a_digits, b_digits
        if 10 ** sum(lengths) <= ENUMERABLE:
            pairs = itertools.product(*(range(*_bounds(digits)) for digits in lengths))
            known = [problem for pair in pairs if self.held_out(problem := Problem(*pair))]
            if not known:
                raise UserError(
                    f"seed {self.seed} holds out no problem of {a_digits} and {b_digits} digits: choose another seed"
                )
            return generator.sample(known, min(TEST_PROBLEMS, len(known)))
        problems: dict[Problem, None] = {}
        while len(problems) < TEST_PROBLEMS:
            problem = draw_problem(generator, lengths)
            if self.held_out(problem):
                problems[problem] = None
        return list(problems)

    def training_problems(self) -> Iterator[Problem]:
        """One problem for each pair of lengths in turn, `per_cell` times; problems may repeat."""
        generator = random.Random(f"train {self.seed}")
        for _ in range(self.per_cell):
            for lengths in self._cells():
                problem = draw_problem(generator, lengths)
                while self.held_out(problem):
                    problem = draw_problem(generator, lengths)
                yield problem

    def validation_problems(self) -> list[Problem]:
        """The test problems of the trained lengths, shuffled."""
        problems = [problem for lengths in self._cells() for problem in self.test_problems(*lengths)]
        random.Random(f"validation {self.seed}").shuffle(problems)
        return problems

    def _cells(self) -> Iterator[tuple[int, int]]:
        """The pairs of trained lengths."""
        lengths = range(1, self.digits + 1)
        return itertools.product(lengths, lengths)


def longest_document(digits: int) -> int:
    """The number of tokens of the longest `<s> a+b=c </s>` with operands of up to `digits` digits."""
    return 3 * digits + 5


@path_errors()
def prepare_addition(task: AdditionTask, output: Path, progress: OnTokens) -> Index:
    """Writes the data directory `output`, all or nothing, and returns its index.

    Raises UserError if the task holds out no problem of some lengths, and FileExistsError if `output` exists.
    """
    tokenizer = character_tokenizer(ALPHABET)
    documents = itertools.chain(
        (("validation", problem) for problem in task.validation_problems()),
        (("train", problem) for problem in task.training_problems()),
    )
    with new_folder(output) as directory:
        writers = {split: SplitWriter(directory, split, tokenizer.vocab_size, tokenizer.eos_id) for split in SPLITS}
        while batch := [(split, problem.prompt + problem.answer) for split, problem in itertools.islice(documents, BATCH)]:
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


def _bounds(digits: int) -> tuple[int, int]:
    """The smallest number with so many digits, and one more than the largest; zero has one digit."""
    return 10 ** (digits - 1) if digits > 1 else 0, 10**digits


def draw_problem(generator: random.Random, lengths: tuple[int, int]) -> Problem:
    """A problem with operands of these lengths, each equally likely."""
    return Problem(generator.randrange(*_bounds(lengths[0])), generator.randrange(*_bounds(lengths[1])))
