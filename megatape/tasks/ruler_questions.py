"""RULER's single needle in a haystack (arXiv 2404.06654, niah_single_1): a number for a word, among lines of noise.

Texts, counts and scoring are those of github.com/NVIDIA/RULER. Its words come from the package wonderwords, ours from the lists
below; which word, number and line a question has differs too.
"""

from collections.abc import Iterator

from megatape.tasks.lengths import usual_lengths
from megatape.tasks.model import EvaluationModel
from megatape.tasks.passkey_questions import GARBAGE, Cell, Lengths, Question, most_that_fit

NEEDLE = "One of the special magic numbers for {word} is: {key}."
PROMPT = (
    "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the number "
    "afterwards.\n{text}\nWhat is the special magic number for {word} mentioned in the provided text? The special magic number "
    "for {word} mentioned in the provided text is"
)
ANSWER_TOKENS = 128  # which count in the length; the number may stand anywhere in them
SHORTEST = 4096  # of RULER's lengths

ADJECTIVES = (
    "able brave calm dark early fancy gentle happy icy jolly kind lazy mellow noisy odd proud quiet rapid shiny tall upset "
    "vast warm young zany bitter clever dusty eager faint golden hollow"
)
NOUNS = (
    "anchor basket candle desert engine forest garden hammer island jacket kettle ladder market needle orange pencil quarry "
    "river saddle tunnel umbrella valley window yard zebra bridge castle dinner earth feather glacier harbor"
)


def ruler(model: EvaluationModel, lengths: Lengths, trials: int | None) -> Iterator[Cell]:
    """Questions with as many lines of noise as fit: 100 of each length, unless `trials` says otherwise."""
    for length in lengths or usual_lengths(model.max_positions, SHORTEST):
        num_lines = most_that_fit(lambda lines: _tokens(model, ruler_question(lines, 0)), length, model)
        questions = []
        for seed in range(100 if trials is None else trials):
            lines = num_lines
            while _tokens(model, question := ruler_question(lines, seed)) > length and lines > 1:
                lines -= 1  # its word has more tokens than that of the first question
            questions.append(question)
        yield Cell(length, None, questions)


def ruler_question(num_lines: int, seed: int) -> Question:
    """A question with so many lines of noise; the needle stands before one of them."""
    import numpy as np

    draw = np.random.RandomState(seed)
    word = f"{draw.choice(ADJECTIVES.split())}-{draw.choice(NOUNS.split())}"
    key = str(draw.randint(10**6, 10**7))
    lines = [GARBAGE] * num_lines
    lines.insert(draw.randint(num_lines), NEEDLE.format(word=word, key=key))
    return Question(PROMPT.format(text="\n".join(lines), word=word), key, ANSWER_TOKENS)


def _tokens(model: EvaluationModel, question: Question) -> int:
    return len(model.tokenizer(question.prompt)["input_ids"]) + ANSWER_TOKENS
