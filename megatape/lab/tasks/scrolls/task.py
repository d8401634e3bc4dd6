"""The SCROLLS task."""

import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from megatape.data.finetuning.format import Limits
from megatape.data.finetuning.scrolls import Answering, Summarizing
from megatape.errors import UserError, flag
from megatape.lab.paper import SCROLLS, SCROLLS_SETS
from megatape.lab.tasks.engine.lengths import equal_lengths
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.result import PublishedRows
from megatape.lab.tasks.engine.task import Task
from megatape.lab.tasks.scores import mean_scores, rouge_scorer, score
from megatape.lab.tasks.scrolls.prompt_tokenizer import PromptTokenizer
from megatape.lab.tasks.scrolls.questions import Question, read_set
from megatape.lab.tasks.scrolls.results import ScrollsScores, SetScores
from megatape.lab.tasks.scrolls.sets import SETS, TextSet, parse_set
from megatape.utils.text.tables import markdown
from megatape.utils.values.options import Count, Listed, option


@dataclass(frozen=True)
class Example:
    """A question in a set.

    Attributes:
        set: Set, in the format of `parse_set`.
        question: The question.
        num_tokens: Maximum number of answer tokens.
    """

    set: str
    question: Question
    num_tokens: int


@dataclass(frozen=True)
class Prediction:
    """The answer to a question. `set` has the format of `parse_set`."""

    set: str
    id: str
    prompt: str
    prediction: str
    references: list[str]
    scores: dict[str, float]


def _check_sets(sets: tuple[str, ...]) -> tuple[str, ...]:
    if len({parse_set(text).name for text in sets}) < len(sets):
        raise UserError("a set is named twice")
    return sets


@dataclass(frozen=True)
class Scrolls(Task[Example, Prediction, ScrollsScores]):
    """The SCROLLS task of `megatape evaluate`. Prompts are cut as in fine-tuning, at the same lengths.

    Attributes:
        scrolls: the sets as SCROLLS' zip files unpack
        sets: which of them, or NAME=METRIC for one of your own
        split: split of the sets
        max_examples: ask the first N questions of each set only
        sequence_length: sequence length of the fine-tuning (default: the model's maximum)
        max_answer_tokens: longest answers of the fine-tuning (default: 200, of summaries 1000)
    """

    scrolls: Annotated[Path, option(metavar="FOLDER")]
    sets: Annotated[Listed[str], AfterValidator(_check_sets), option(metavar="NAME,NAME,...")] = tuple(SETS)
    split: Annotated[str, option(metavar="NAME")] = "validation"
    max_examples: Annotated[Count | None, option(metavar="N")] = None
    sequence_length: Annotated[Count | None, option(metavar="N")] = None
    max_answer_tokens: Annotated[Count | None, option(metavar="N")] = None

    prediction = Prediction

    def batches(self, model: ModelOutline) -> list[list[Example]]:
        """Make batches of equally long prompts, so that nothing is padded.

        Raises:
            UserError: Lengths do not fit the model or leave no room for prompts, or `read_set` raised an error.
        """
        length = self.sequence_length
        if length is None:
            length = model.max_positions
        if length > model.max_positions:
            raise UserError(
                f"{flag('sequence_length')} is {length}, but {model.name} has {model.max_positions} positions "
                "(model.max_positions): give less"
            )
        tokenizer = PromptTokenizer(model.tokenizer, model.name)
        limits = Limits(length, max_answer=self.max_answer_tokens)
        if any(parse_set(text).metric == "rouge" for text in self.sets):
            # If the package is missing, fail now, not after the first batch.
            rouge_scorer()
        batches = []
        for text in self.sets:
            name, metric = parse_set(text)
            prompt_format: Summarizing | Answering
            if metric == "rouge":
                prompt_format = Summarizing(tokenizer, limits)
            else:
                prompt_format = Answering(tokenizer, limits)
            questions = read_set(self.scrolls, name, self.split, prompt_format.question, self.max_examples)
            examples = [Example(text, question, prompt_format.answer_tokens) for question in questions]
            batches += equal_lengths(examples, lambda each: len(each.question.prompt) + each.num_tokens)
        return batches

    def run(self, model: EvaluationModel, batch: list[Example]) -> list[Prediction]:
        """Answer the questions greedily, up to the end token."""
        tokenizer = PromptTokenizer(model.tokenizer, model.name)
        metric = parse_set(batch[0].set).metric
        prompts = [list(example.question.prompt) for example in batch]
        continuations = model.continuations(prompts, batch[0].num_tokens)
        predictions = []
        for example, ids in zip(batch, continuations, strict=True):
            question = example.question
            answer = tokenizer.decode(ids).strip()
            prompt = tokenizer.decode(question.prompt)
            scores = score(metric, answer, question.references)
            predictions.append(Prediction(example.set, question.id, prompt, answer, question.references, scores))
        return predictions

    def result(self, predictions: list[Prediction]) -> ScrollsScores:
        sets = []
        for text_set, answers in _by_set(predictions):
            means = mean_scores([answer.scores for answer in answers])
            sets.append(SetScores(text_set, means, len(answers)))
        return ScrollsScores(sets)

    def files(self, predictions: list[Prediction]) -> dict[str, str]:
        """Return predictions in the format of SCROLLS' scorer, and tables comparing answers with references."""
        files = {}
        for text_set, answers in _by_set(predictions):
            by_id = {each.id: each.prediction for each in answers}
            files[f"predictions_{text_set.name}.json"] = json.dumps(by_id, indent=1) + "\n"
            if text_set.metric == "exact_match":
                files[f"answers_{text_set.name}.md"] = _side_by_side(answers) + "\n"
        return files

    def paper(self) -> PublishedRows:
        """Return the paper's results on the published sets."""
        names = [parse_set(name).label for name in SCROLLS_SETS]
        rows = {}
        for row, values in SCROLLS.items():
            rows[f"{row}, 155M"] = dict(zip(names, values, strict=True))
        return rows


def _by_set(predictions: list[Prediction]) -> list[tuple[TextSet, list[Prediction]]]:
    groups = groupby(predictions, lambda prediction: prediction.set)
    return [(parse_set(name), list(answers)) for name, answers in groups]


def _side_by_side(predictions: list[Prediction]) -> str:
    """Format answers beside their references, as in the paper's appendix."""
    rows = []
    for each in predictions:
        # SCROLLS puts the question before the text, separated by an empty line.
        question = each.prompt.partition("\n\n")[0]
        right = "yes" if each.scores["exact_match"] else ""
        rows.append([each.id, question, " / ".join(each.references), each.prediction, right])
    return markdown(["id", "question", "reference", "answer", "right"], rows)
