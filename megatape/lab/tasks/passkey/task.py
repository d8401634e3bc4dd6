"""The passkey task."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from megatape.errors import UserError, flag
from megatape.lab.paper import EXTENSION_NAMES, EXTENSION_PASSKEY
from megatape.lab.tasks.engine.lengths import LengthList, equal_lengths
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.result import PublishedRows
from megatape.lab.tasks.engine.task import Task
from megatape.lab.tasks.passkey.questions import DEFAULT_TRIALS, PROTOCOLS, Protocol, Question, count_tokens
from megatape.lab.tasks.passkey.results import PasskeyScores, Score, measure_name, pool_scores
from megatape.utils.values.options import Count, option


@dataclass(frozen=True)
class Prompt:
    """A question in the model's tokens.

    Attributes:
        length: Text length chosen by the protocol.
        depth: The number's depth, None without depths.
        text: Prompt as text.
        key: The number.
        tokens: Prompt ids, int32.
        answer_size: Maximum number of answer tokens.
    """

    length: int
    depth: float | None
    text: str
    key: str
    tokens: np.ndarray
    answer_size: int


@dataclass(frozen=True)
class Prediction:
    """The answer to a question. `tokens` is the number of prompt tokens."""

    length: int
    depth: float | None
    tokens: int
    prompt: str
    prediction: str
    reference: str
    correct: bool


@dataclass(frozen=True)
class Passkey(Task[Prompt, Prediction, PasskeyScores]):
    """The passkey task of `megatape evaluate`. Lengths and trials default to those of the protocol.

    Attributes:
        protocol: the paper's prompts, or prompts of exact lengths with the number at five depths
        lengths: text lengths in tokens, for passkeys of `authors` those of Llama 2 (default for
            those: 1000,2000,...,8000; else powers of two from 256 to the model's maximum)
        trials: questions of each length and depth (default for authors: 20; else 100)
    """

    protocol: Protocol = "authors"
    lengths: Annotated[LengthList | None, option(metavar="L,L,...")] = None
    trials: Annotated[Count | None, option(metavar="N")] = None

    prediction = Prediction

    def batches(self, model: ModelOutline) -> list[list[Prompt]]:
        """Make batches of equally long prompts, so that nothing is padded.

        Raises:
            UserError: A length leaves no room for the question, or prompts exceed the model's maximum positions.
        """
        trials = self.trials
        if trials is None:
            trials = DEFAULT_TRIALS[self.protocol]
        batches = []
        for group in PROTOCOLS[self.protocol](model, self.lengths, trials):
            prompts = [_encode(model, group.length, group.depth, question) for question in group.questions]
            batches += equal_lengths(prompts, lambda prompt: len(prompt.tokens))
        return batches

    def run(self, model: EvaluationModel, batch: list[Prompt]) -> list[Prediction]:
        """Answer the questions greedily. A right answer is the number, in as many tokens as the number has."""
        prompts = [prompt.tokens.tolist() for prompt in batch]
        num_tokens = max(prompt.answer_size for prompt in batch)
        continuations = model.continuations(prompts, num_tokens)
        predictions = []
        for prompt, ids in zip(batch, continuations, strict=True):
            answer = model.tokenizer.decode(ids[: prompt.answer_size], skip_special_tokens=False).strip()
            prediction = Prediction(
                length=prompt.length,
                depth=prompt.depth,
                tokens=len(prompt.tokens),
                prompt=prompt.text,
                prediction=answer,
                reference=prompt.key,
                correct=answer == prompt.key,
            )
            predictions.append(prediction)
        return predictions

    def result(self, predictions: list[Prediction]) -> PasskeyScores:
        scores = [Score(each.length, each.depth, each.tokens, each.correct, trials=1) for each in predictions]
        return PasskeyScores(self.protocol, pool_scores(scores))

    def paper(self) -> PublishedRows:
        """Return the values in the paper's Figure 5, which apply to its own prompts only."""
        if self.protocol != "authors":
            return {}
        names = [measure_name(length) for length in EXTENSION_PASSKEY.lengths]
        rows = {}
        for method, shares in EXTENSION_PASSKEY.rows.items():
            rows[f"{EXTENSION_NAMES[method]}, Llama 2 7B"] = dict(zip(names, shares, strict=True))
        return rows


def _encode(model: ModelOutline, length: int, depth: float | None, question: Question) -> Prompt:
    """Encode a question. Raise UserError if the model has too few positions for it."""
    tokens = np.array(model.tokenizer(question.prompt)["input_ids"], np.int32)
    # A tokenizer may join the last letters of the prompt with the answer. Only the number of tokens matters.
    num_tokens = count_tokens(model, question)
    if num_tokens > model.max_positions:
        raise UserError(
            f"{flag('lengths')} {length}: a question has {num_tokens} tokens with its answer, but {model.name} has "
            f"{model.max_positions} positions (model.max_positions): give shorter {flag('lengths')}"
        )
    return Prompt(length, depth, question.prompt, question.key, tokens, answer_size=num_tokens - len(tokens))
