"""SCROLLS (arXiv 2201.03533): answers to questions about long texts, and summaries, asked as in fine-tuning."""

import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from megatape.data.finetuning.format import Limits
from megatape.data.finetuning.scrolls import Answering, Summarizing
from megatape.errors import UserError
from megatape.options import Count, option
from megatape.tables import markdown
from megatape.tasks.batching import equal_lengths
from megatape.tasks.model import EvaluationModel
from megatape.tasks.prompt_tokenizer import PromptTokenizer
from megatape.tasks.scrolls_sets import SETS, Question, TextSet, parse_set, read_set
from megatape.tasks.task import Measure, Sample, Task
from megatape.tasks.text_scores import Metric, mean_scores, rouge_scorer, score

LABELS: dict[Metric, str] = {"f1": "F1", "exact_match": "EM", "rouge": "ROUGE"}

# The paper's results on SCROLLS: models of 155M parameters, in the order of SETS.
PAPER = {
    "RoPE": (8.39, 65.00, 1.77, 0.04, 6.34, 5.63, 9.71),
    "ALiBi": (8.25, 69.62, 4.11, 0.00, 9.92, 9.78, 18.81),
    "RandPE": (13.44, 62.01, 4.63, 0.38, 8.43, 8.31, 8.93),
    "FIRE": (3.41, 71.26, 0.48, 1.25, 8.78, 7.42, 11.03),
    "xPos": (9.02, 71.75, 4.83, 0.24, 10.73, 9.38, 16.38),
    "TAPE": (11.52, 72.80, 6.79, 11.60, 12.42, 10.34, 15.18),
}


@dataclass(frozen=True)
class Asked:
    """A question of a set; num_tokens: how many the answer may have."""

    text_set: TextSet
    question: Question
    num_tokens: int


@dataclass(frozen=True)
class SetScores:
    """Results of one set: mean and standard error of each score in points, and the number of questions."""

    text_set: TextSet
    scores: dict[str, tuple[float, float | None]]
    num_questions: int


@dataclass(frozen=True)
class ScrollsScores:
    """Results of all sets."""

    sets: list[SetScores]

    @property
    def summary(self) -> str:
        """One line with the score of each set."""
        return f"scrolls: {', '.join(f'{measure.name} {measure.value:.2f}' for measure in self.measures)}"

    @property
    def measures(self) -> list[Measure]:
        """The score of each set."""
        return [
            Measure(_name(found.text_set), *found.scores[found.text_set.metric], found.num_questions) for found in self.sets
        ]

    def draw(self, title: str, path: Path) -> None:
        """Write a PNG with a bar for each set."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 1.5 + 0.4 * len(self.sets)), layout="constrained")
        axes = figure.add_subplot()
        measures = self.measures
        errors = [measure.error or 0.0 for measure in measures]
        axes.barh([measure.name for measure in measures], [measure.value for measure in measures], xerr=errors)
        axes.invert_yaxis()
        axes.set(xlabel="points", xlim=(0, 100))
        axes.set_title(title, fontsize="small")
        figure.savefig(path, dpi=150)

    def describe(self) -> dict[str, Any]:
        """All scores of each set."""
        return {
            found.text_set.name: {
                "questions": found.num_questions,
                "scores": {name: {"mean": mean, "error": error} for name, (mean, error) in found.scores.items()},
            }
            for found in self.sets
        }


def _parse_sets(text: Any) -> Any:
    names = text.split(",") if isinstance(text, str) else text
    sets = tuple(parse_set(name) for name in names)
    if len({each.name for each in sets}) < len(sets):
        raise UserError(f"a set is named twice, got {text}")
    return sets


@dataclass(frozen=True)
class Scrolls(Task[Asked, ScrollsScores]):
    """The SCROLLS task of `megatape evaluate`.

    scrolls: the folder of the sets. max_examples: of each set; None: all. sequence_length: the N of the fine-tuning, None: the
    model's maximum; max_answer_tokens: that of the fine-tuning, None: the recipe's. They decide where prompts are cut.
    """

    scrolls: Annotated[Path, option("the sets as SCROLLS publishes them, folders or zip files", metavar="FOLDER")]
    sets: Annotated[
        tuple[TextSet, ...],
        BeforeValidator(_parse_sets),
        option("which of them, or NAME=METRIC for one of your own", metavar="NAME,NAME,..."),
    ] = tuple(SETS.values())
    split: Annotated[str, option("split of the sets", metavar="NAME")] = "validation"
    max_examples: Annotated[Count | None, option("ask the first N questions of each set only", metavar="N")] = None
    sequence_length: Annotated[
        int | None, option("sequence length of the fine-tuning (default: the model's maximum)", metavar="N")
    ] = None
    max_answer_tokens: Annotated[
        int | None, option("longest answers of the fine-tuning (default: 200, of summaries 1000)", metavar="N")
    ] = None

    def batches(self, model: EvaluationModel) -> list[list[Asked]]:
        """Prompts of equal length, so that nothing is padded.

        Raises UserError for lengths that do not fit the model or leave no room for prompts, and what read_set raises.
        """
        length = model.max_positions if self.sequence_length is None else self.sequence_length
        if length > model.max_positions:
            raise UserError(
                f"sequence_length is {length}, but {model.name} has {model.max_positions} positions (model.max_positions): "
                "give less"
            )
        tokenizer, limits = PromptTokenizer(model.tokenizer, model.name), Limits(length, max_answer=self.max_answer_tokens)
        if any(text_set.metric == "rouge" for text_set in self.sets):
            rouge_scorer()  # say now that it is missing, not after the first batch
        batches = []
        for text_set in self.sets:
            form = (Summarizing if text_set.metric == "rouge" else Answering)(tokenizer, limits)
            questions = read_set(self.scrolls, text_set.name, self.split, form.question, self.max_examples)
            asked = [Asked(text_set, question, form.answer_tokens) for question in questions]
            batches += equal_lengths(asked, lambda each: len(each.question.prompt) + each.num_tokens)
        return batches

    def run(self, model: EvaluationModel, batch: list[Asked]) -> list[Sample]:
        """Greedy answers, up to their end token."""
        tokenizer = PromptTokenizer(model.tokenizer, model.name)
        found = model.continuations([list(asked.question.prompt) for asked in batch], batch[0].num_tokens)
        samples = []
        for asked, ids in zip(batch, found, strict=True):
            question, answer = asked.question, tokenizer.decode(ids).strip()
            samples.append(
                {
                    "set": str(asked.text_set),
                    "id": question.id,
                    "prompt": tokenizer.decode(question.prompt),
                    "prediction": answer,
                    "references": question.references,
                    "scores": score(asked.text_set.metric, answer, question.references),
                }
            )
        return samples

    def result(self, model: EvaluationModel, samples: list[Sample]) -> ScrollsScores:
        return ScrollsScores(
            [
                SetScores(text_set, mean_scores([sample["scores"] for sample in found]), len(found))
                for text_set, found in _by_set(samples)
            ]
        )

    def files(self, samples: list[Sample]) -> dict[str, str]:
        """Predictions of each set as SCROLLS' scorer takes them, and tables of answers beside their references."""
        files = {}
        for text_set, found in _by_set(samples):
            predictions = {sample["id"]: sample["prediction"] for sample in found}
            files[f"predictions_{text_set.name}.json"] = json.dumps(predictions, indent=1) + "\n"
            if text_set.metric == "exact_match":
                files[f"answers_{text_set.name}.md"] = _side_by_side(found) + "\n"
        return files

    def paper(self) -> dict[str, dict[str, float]]:
        """The paper's results on the published sets."""
        names = [_name(text_set) for text_set in SETS.values()]
        return {f"{row}, 155M": dict(zip(names, values, strict=True)) for row, values in PAPER.items()}


def _name(text_set: TextSet) -> str:
    return f"{text_set.name} {LABELS[text_set.metric]}"


def _by_set(samples: list[Sample]) -> list[tuple[TextSet, list[Sample]]]:
    return [(parse_set(name), list(found)) for name, found in groupby(samples, lambda sample: sample["set"])]


def _side_by_side(samples: list[Sample]) -> str:
    """Answers beside their references, as in the paper's appendix. A question is what stands before the first empty line."""
    rows = []
    for sample in samples:
        question, right = sample["prompt"].partition("\n\n")[0], "yes" if sample["scores"]["exact_match"] else ""
        rows.append([sample["id"], question, " / ".join(sample["references"]), sample["prediction"], right])
    return markdown(["id", "question", "reference", "answer", "right"], rows)
