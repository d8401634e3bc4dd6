"""SCROLLS (arXiv 2201.03533): questions about long texts, and summaries, prompted as in fine-tuning.

A set NAME is NAME/SPLIT.jsonl in a folder, as SCROLLS' zip files unpack and as sets of one's own may be.
A line has `id`, `input` and `output`; a question with several references has a line for each.
"""

import json
import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import orjson
from pydantic import AfterValidator

from megatape.data.finetuning.fields import text_of
from megatape.data.finetuning.format import Limits
from megatape.data.finetuning.scrolls import Answering, Summarizing
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import MissingPath, UserError, content_errors, path_errors
from megatape.errors.suggestions import choose_one
from megatape.lab.paper import SCROLLS, SCROLLS_SETS
from megatape.lab.pictures import bars
from megatape.lab.tasks.engine.lengths import equal_lengths
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.result import Measure, wilson
from megatape.lab.tasks.engine.task import Task
from megatape.lab.tasks.scores import METRICS, Metric, mean_scores, rouge_scorer, score
from megatape.utils.json_files import read_json
from megatape.utils.options import Count, Listed, option
from megatape.utils.tables import markdown
from megatape.utils.units import plural
from megatape.utils.validation import as_type

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Number of ids shown in an error.
NUM_SHOWN = 3
# Sets of SCROLLS -> their metrics.
SETS: dict[str, Metric] = {
    "qasper": "f1",
    "contract_nli": "exact_match",
    "narrative_qa": "f1",
    "quality": "exact_match",
    "qmsum": "rouge",
    "summ_screen_fd": "rouge",
    "gov_report": "rouge",
}


class TextSet(NamedTuple):
    """A set of texts with the metric of its answers: `rouge` for summaries, another one for answers to questions."""

    name: str
    metric: Metric


def parse_set(text: str) -> TextSet:
    """Parse the name of a set of SCROLLS, or NAME=METRIC for another set.

    Raises:
        UserError: The text is neither.
    """
    name, _, metric = text.partition("=")
    if text in SETS:
        return TextSet(text, SETS[text])
    is_new_name = name not in SETS and re.fullmatch(r"\w[\w.-]*", name)
    if metric in METRICS and is_new_name:
        return TextSet(name, metric)
    raise UserError(
        f"{text!r} is no set: {choose_one(text, SETS)}, or give a set of your own with its metric, such as "
        f"my_set=exact_match (of {', '.join(METRICS)})"
    )


def _check_sets(sets: tuple[str, ...]) -> tuple[str, ...]:
    if len({parse_set(text).name for text in sets}) < len(sets):
        raise UserError("a set is named twice")
    return sets


@dataclass(frozen=True)
class Question:
    """A question, or a text to summarize.

    Attributes:
        id: Id of the question in its set.
        prompt: Tokens of the prompt, in an array because a set has millions of them.
        references: Right answers.
    """

    id: str
    prompt: "array[int]"
    references: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Example:
    """A question of a set.

    Attributes:
        set: Set in the form that `parse_set` reads.
        question: The question.
        num_tokens: Maximum number of tokens in the answer.
    """

    set: str
    question: Question
    num_tokens: int


@dataclass(frozen=True)
class Prediction:
    """The answer to a question. `set` has the form that `parse_set` reads."""

    set: str
    id: str
    prompt: str
    prediction: str
    references: list[str]
    scores: dict[str, float]


@dataclass(frozen=True)
class SetScores:
    """Results of one set.

    Attributes:
        text_set: The set.
        scores: Mean and standard error of each score, in points.
        num_questions: Number of questions.
    """

    text_set: TextSet
    scores: dict[str, tuple[float, float | None]]
    num_questions: int

    @property
    def measure(self) -> Measure:
        """The score of the set's metric, with an interval if it is a proportion."""
        metric = self.text_set.metric
        mean, error = self.scores[metric]
        interval = None
        if metric == "exact_match":
            interval = wilson(mean / 100, self.num_questions)
        return Measure(_name(self.text_set), mean, error, self.num_questions, interval)


@dataclass(frozen=True)
class ScrollsScores:
    """Results of all sets."""

    sets: list[SetScores]

    @property
    def summary(self) -> str:
        """One line with the score of each set."""
        parts = [f"{measure.name} {measure.value:.2f}" for measure in self.measures]
        return f"scrolls: {', '.join(parts)}"

    @property
    def measures(self) -> list[Measure]:
        """The score of each set."""
        return [each.measure for each in self.sets]

    def draw(self, figure: "Figure") -> None:
        """Draw a bar for each set."""
        bars(figure, {measure.name: (measure.value, measure.error) for measure in self.measures}, "points")

    def describe(self) -> dict[str, Any]:
        """Return all scores of each set."""
        sets = {}
        for each in self.sets:
            scores = {name: {"mean": mean, "error": error} for name, (mean, error) in each.scores.items()}
            sets[each.text_set.name] = {"questions": each.num_questions, "scores": scores}
        return sets


@dataclass(frozen=True)
class Scrolls(Task[Example, Prediction, ScrollsScores]):
    """The SCROLLS task of `megatape evaluate`. The lengths of the fine-tuning decide where prompts are cut.

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
        """Make batches of prompts of equal length, so that nothing is padded.

        Raises:
            UserError: Lengths do not fit the model or leave no room for prompts, or an error of `read_set`.
        """
        length = self.sequence_length
        if length is None:
            length = model.max_positions
        if length > model.max_positions:
            raise UserError(
                f"sequence_length is {length}, but {model.name} has {model.max_positions} positions (model.max_positions): "
                "give less"
            )
        tokenizer = PromptTokenizer(model.tokenizer, model.name)
        limits = Limits(length, max_answer=self.max_answer_tokens)
        if any(parse_set(text).metric == "rouge" for text in self.sets):
            # If the scorer is missing, fail now, not after the first batch.
            rouge_scorer()
        batches = []
        for text in self.sets:
            name, metric = parse_set(text)
            form: Summarizing | Answering
            if metric == "rouge":
                form = Summarizing(tokenizer, limits)
            else:
                form = Answering(tokenizer, limits)
            questions = read_set(self.scrolls, name, self.split, form.question, self.max_examples)
            examples = [Example(text, question, form.answer_tokens) for question in questions]
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
        """Return the predictions of each set in the format of SCROLLS' scorer, and tables of answers and references."""
        files = {}
        for text_set, answers in _by_set(predictions):
            by_id = {each.id: each.prediction for each in answers}
            files[f"predictions_{text_set.name}.json"] = json.dumps(by_id, indent=1) + "\n"
            if text_set.metric == "exact_match":
                files[f"answers_{text_set.name}.md"] = _side_by_side(answers) + "\n"
        return files

    def paper(self) -> dict[str, dict[str, float]]:
        """Return the paper's results on the published sets."""
        names = [_name(parse_set(name)) for name in SCROLLS_SETS]
        rows = {}
        for row, values in SCROLLS.items():
            rows[f"{row}, 155M"] = dict(zip(names, values, strict=True))
        return rows


def _name(text_set: TextSet) -> str:
    return f"{text_set.name} {METRICS[text_set.metric]}"


def _by_set(predictions: list[Prediction]) -> list[tuple[TextSet, list[Prediction]]]:
    groups = groupby(predictions, lambda prediction: prediction.set)
    return [(parse_set(name), list(answers)) for name, answers in groups]


def _side_by_side(predictions: list[Prediction]) -> str:
    """Format answers beside their references, as in the paper's appendix.

    The question is the prompt up to the first empty line.
    """
    rows = []
    for each in predictions:
        question = each.prompt.partition("\n\n")[0]
        right = ""
        if each.scores["exact_match"]:
            right = "yes"
        rows.append([each.id, question, " / ".join(each.references), each.prediction, right])
    return markdown(["id", "question", "reference", "answer", "right"], rows)


class PromptTokenizer(Tokenizer):
    """A tokenizer of transformers with the interface of data/. It has no files.

    Args:
        tokenizer: Tokenizer of transformers.
        name: Name of the model.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        super().__init__({}, name)
        self._tokenizer = tokenizer
        self.vocab_size = len(tokenizer)
        self.eos_id = tokenizer.eos_token_id
        special_ids = tokenizer("")["input_ids"]
        self.bos_id = None
        if special_ids:
            self.bos_id = int(special_ids[0])

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def piece(self, token: int) -> str | None:
        return self._tokenizer.convert_ids_to_tokens(token)


@path_errors()
def read_set(
    data: Path, name: str, split: str, encode: Callable[[str], list[int]], max_questions: int | None = None
) -> list[Question]:
    """Read the questions of a split, in the order of their first lines.

    Args:
        data: Folder of the sets.
        name: Name of the set.
        split: Split of the set.
        encode: Converts an input to a prompt.
        max_questions: Maximum number of questions to read, None for all.

    Raises:
        MissingPath: `data` does not have the layout.
        UserError: A line is malformed, an id has two inputs, a question has no reference, or the set is empty.
    """
    questions: dict[str, Question] = {}
    # Id -> line and hash of its first input.
    inputs: dict[str, tuple[str, bytes]] = {}
    without: list[str] = []
    path = data / name / f"{split}.jsonl"
    if not path.is_file():
        raise MissingPath(f"scrolls {data}: expected {name}/{split}.jsonl in it: unpack SCROLLS' {name}.zip there")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            place = f"{path}:{number}"
            record = _record(place, line)
            key = record["id"]
            text = record["input"]
            digest = sha256(text.encode()).digest()
            first, expected = inputs.setdefault(key, (place, digest))
            if digest != expected:
                raise UserError(f"{place}: id {key!r} was given another input in {first}: give each question an id of its own")
            if key not in questions:
                if max_questions is not None and len(questions) == max_questions:
                    continue
                questions[key] = Question(key, array("i", encode(text)))
            output = record.get("output")
            if isinstance(output, str) and output.strip():
                questions[key].references.append(output)
            else:
                without.append(key)
    if not inputs:
        raise UserError(f"{path} is empty: it must have a line for each question")
    if without:
        hint = ""
        if split == "test":
            hint = "; the published test split has none, use the validation split"
        ids = some_ids(list(dict.fromkeys(without)))
        raise UserError(f"{path}: {ids} without a reference: `output` must have its text{hint}")
    return list(questions.values())


def _record(place: str, line: bytes) -> dict[str, Any]:
    try:
        record = orjson.loads(line)
        if not isinstance(record, dict):
            raise UserError(f"{record!r:.40} is not an object")
        for name in ("id", "input"):
            if not text_of(record, name).strip():
                raise UserError(f"`{name}` is empty")
    except orjson.JSONDecodeError as error:
        raise UserError(f"{place}: malformed JSON ({error}): copy the file again") from None
    except ValueError as error:
        raise UserError(f"{place}: {error}") from None
    return record


def some_ids(ids: list[str]) -> str:
    """Describe how many ids there are, with the first of them."""
    shown = ids[:NUM_SHOWN]
    if len(ids) > NUM_SHOWN:
        shown.append("...")
    count = plural(len(ids), "id")
    return f"{count} ({', '.join(shown)})"


@path_errors()
def read_predictions(path: Path) -> dict[str, str]:
    """Read answers by id, from a file {id: answer} in the format of SCROLLS' scorer.

    Raises:
        MissingPath: The file is missing.
        UserError: The file has another format, or an id twice.
    """
    if not path.is_file():
        raise MissingPath(f"{path}: no such file of predictions")
    with content_errors(f"{path}: no object {{id: answer}} of one text for each id", "correct it"):
        return as_type(read_json(path, unique_keys=True), dict[str, str])


def check_coverage(predictions: dict[str, str], questions: list[Question], path: Path) -> None:
    """Check that there is a prediction for each question, and no other prediction.

    Args:
        predictions: Answers by id.
        questions: Questions of the set.
        path: File of the predictions, for messages.

    Raises:
        UserError: Predictions are missing, or belong to no question.
    """
    ids = {question.id for question in questions}
    missing = [key for key in ids if key not in predictions]
    unknown = [key for key in predictions if key not in ids]
    problems = []
    if missing:
        problems.append(f"{some_ids(sorted(missing))} missing")
    if unknown:
        problems.append(f"{some_ids(unknown)} not in the set")
    if problems:
        raise UserError(f"{path}: of {len(ids):,} questions, {' and '.join(problems)}: predict this set, and all of it")
