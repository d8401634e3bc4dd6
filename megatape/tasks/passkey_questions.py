"""Questions of the passkey task.

`authors`: the prompts of the paper (arXiv 2501.00712, section 4.3), character for character; they come from landmark attention
(arXiv 2305.16300) by way of LongLoRA. `grid`: prompts of given token lengths, with the number at given depths.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from megatape.errors import UserError
from megatape.tasks.lengths import usual_lengths
from megatape.tasks.model import EvaluationModel

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you about the "
    "important information there."
)
GARBAGE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
FACT = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"

AUTHORS_LENGTHS = tuple(range(1000, 9000, 1000))
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of `grid`: the share of the garbage in front of the number

Lengths = tuple[int, ...] | None  # of --lengths


@dataclass(frozen=True)
class Question:
    """A prompt, and the number that the model must continue it with, after a space.

    within: tokens that the model may write, in which the number may stand anywhere; None: it must write the number alone.
    """

    prompt: str
    key: str
    within: int | None = None


@dataclass(frozen=True)
class Cell:
    """The questions of one length and, in `grid`, one depth."""

    length: int
    depth: float | None
    questions: list[Question]


def authors_question(length: int, seed: int) -> Question:
    """The paper's prompt for about `length` tokens of Llama 2: five lines, the garbage cut by characters."""
    import numpy as np

    num_garbage = int(3.75 * length // 1024 * 1024)
    draw = np.random.RandomState(seed)
    before, key = draw.randint(0, num_garbage), str(draw.randint(1, 50000))
    garbage = " ".join([GARBAGE] * (num_garbage // len(GARBAGE) + 1))
    lines = (TASK, garbage[:before], FACT.format(key=key), garbage[: num_garbage - before], QUESTION)
    return Question("\n".join(lines), key)


def authors(model: EvaluationModel, lengths: Lengths, trials: int | None) -> Iterator[Cell]:
    """The paper's cells: 20 questions of each length, unless `trials` says otherwise."""
    for length in lengths or AUTHORS_LENGTHS:
        if 3.75 * length < 1024:
            raise UserError(f"lengths {length} is too short for `protocol` authors: give at least 274, or `protocol` grid")
        yield Cell(length, None, [authors_question(length, seed) for seed in range(20 if trials is None else trials)])


def grid(model: EvaluationModel, lengths: Lengths, trials: int | None) -> Iterator[Cell]:
    """Questions of exact lengths at five depths: 100 of each, unless `trials` says otherwise."""
    for length in lengths or usual_lengths(model.max_positions):
        num_sentences = most_that_fit(lambda count: grid_tokens(model, count), length, model)
        for depth in DEPTHS:
            yield Cell(
                length,
                depth,
                [_grid_question(num_sentences, depth, seed) for seed in range(100 if trials is None else trials)],
            )


def grid_tokens(model: EvaluationModel, num_sentences: int = 1) -> int:
    """Tokens of a question of `grid` with its answer and so many sentences of garbage, by default the shortest question."""
    question = _grid_question(num_sentences, 0.5, 0)
    return len(model.tokenizer(f"{question.prompt} {question.key}")["input_ids"])


def _grid_question(num_sentences: int, depth: float, seed: int) -> Question:
    import numpy as np

    key = str(np.random.RandomState(seed).randint(10000, 100000))
    before = round(depth * num_sentences)
    parts = ([GARBAGE] * before, [FACT.format(key=key)], [GARBAGE] * (num_sentences - before))
    return Question("\n".join([TASK, *(" ".join(part) for part in parts if part), QUESTION]), key)


def most_that_fit(tokens: Callable[[int], int], length: int, model: EvaluationModel) -> int:
    """How often the garbage can be repeated in at most `length` tokens. tokens: how many a question has with so much of it.

    Raises UserError if it does not fit once.
    """
    shortest = tokens(1)
    if shortest > length:
        raise UserError(f"lengths {length}: the shortest question has {shortest} tokens of {model.name}: give more")
    few, many = 1, length // max(1, tokens(2) - shortest) + 2
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if tokens(middle) <= length else (few, middle)
    return few
