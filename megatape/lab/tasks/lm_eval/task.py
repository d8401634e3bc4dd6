"""The lm-eval task: EleutherAI's harness, run in this process on an evaluation model."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from megatape.errors import MissingPath, UserError, flag
from megatape.lab.paper import EXTENSION_ANSWERS, EXTENSION_ANSWERS_COLUMNS, EXTENSION_NAMES
from megatape.lab.tasks.engine.lengths import LengthList
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.result import PublishedRows
from megatape.lab.tasks.engine.task import Task
from megatape.lab.tasks.lm_eval.loading import LoadedTasks, Selection, load_tasks, reason_of, seed_prompts
from megatape.lab.tasks.lm_eval.names import check_names
from megatape.lab.tasks.lm_eval.results import LmEvalScores
from megatape.utils.values.options import Count, Listed, option

if TYPE_CHECKING:
    from megatape.lab.tasks.lm_eval.lengths import Length
    from megatape.lab.tasks.lm_eval.model import LmEvalModel

# Number of bootstrap samples, for standard errors without a formula.
BOOTSTRAPS = 1000
# Output type of tasks with the metrics word_perplexity, byte_perplexity and bits_per_byte.
ROLLING = "loglikelihood_rolling"
# Prefix of these metrics for texts beginning as in training.
AS_IN_TRAINING = "megatape_"


@dataclass(frozen=True)
class Example:
    """A document in a task's data set."""

    task: str
    number: int
    document: Any


@dataclass(frozen=True)
class Prediction:
    """The answer to a document, and the results of its task.

    Attributes:
        task: Task name in lm-eval.
        metrics: Filter -> metric -> score of the document.
        prompt: Arguments of lm-eval's requests.
        prediction: Filtered responses.
        reference: The document's target.
        task_metrics: lm-eval's results for the whole task.
        groups: Groups containing the task, outermost first, as lm-eval configurations without tasks.
        output_type: The task's request type. Earlier versions scored ROLLING tasks by another rule. Their lines lack this
            field, so they are computed again.
    """

    task: str
    metrics: dict[str, dict[str, Any]]
    prompt: Any
    prediction: Any
    reference: Any
    task_metrics: dict[str, Any]
    groups: list[dict[str, Any]]
    output_type: str


@dataclass(frozen=True)
class LmEval(Task[Example, Prediction, LmEvalScores]):
    """The lm-eval task of `megatape evaluate`. Without `data_root`, data sets come from the hub.

    Attributes:
        tasks: tasks, groups or tags of lm-eval, such as mmlu,arc_easy,arc_challenge
        num_fewshot: examples before each question (default: those of each task)
        max_examples: ask the first N questions of each set only
        lengths: text lengths in tokens of RULER's and BABILong's tasks (these need it: ruler, niah_...)
        data_root: folder with copies of data sets in the hub's layout, such as DIR/allenai/ai2_arc;
            nothing is downloaded
        include: folder with YAML files of own tasks
    """

    tasks: Annotated[Listed[str], option(metavar="NAME,NAME,...")]
    num_fewshot: Annotated[int | None, option(ge=0, metavar="K")] = None
    max_examples: Annotated[Count | None, option(metavar="N")] = None
    lengths: Annotated[LengthList | None, option(metavar="L,L,...")] = None
    data_root: Annotated[Path | None, option(metavar="DIR")] = None
    include: Annotated[Path | None, option(metavar="DIR")] = None

    prediction = Prediction

    def check(self) -> None:
        """Check folders and task names.

        Raises:
            MissingPath: A folder is missing.
            UserError: lm-eval does not have a task, or `check_options` failed.
        """
        self.check_options()
        check_names(self.tasks, self.include)

    def check_options(self) -> None:
        """Check folders, and some tasks' requirements.

        Raises:
            MissingPath: A folder is missing.
            UserError: A task needs text lengths, or a part of transformers that was removed.
        """
        for name, folder in (("data_root", self.data_root), ("include", self.include)):
            if folder is not None and not folder.is_dir():
                raise MissingPath(f"{flag(name)} {folder}: no such folder")
        for name in self.tasks:
            if name.startswith("scrolls"):
                raise UserError(
                    f"{flag('tasks')}: lm-eval's {name} needs a part of transformers that is gone: use megatape evaluate "
                    "scrolls"
                )
            if self.lengths is None and name.startswith(("ruler", "niah_")):
                raise UserError(f"{flag('tasks')}: {name} of lm-eval needs text lengths: give {flag('lengths')}, such as 4096")

    def batches(self, model: ModelOutline) -> list[list[Example]]:
        """Make a batch per task, because lm-eval draws a task's few-shot examples in sequence.

        Raises:
            MissingPath: A folder is missing.
            UserError: lm-eval does not have a task, cannot load it or make its prompts, or asks for what the model cannot do.
            ModuleNotFoundError: lm-eval is not installed.
        """
        from megatape.lab.tasks.lm_eval.model import check_requests

        batches = []
        for name, task in self.load(model).tasks.items():
            try:
                seed_prompts(task)
                task.build_all_requests(limit=self.max_examples)
            except Exception as error:  # Templates and functions in YAML files may raise anything.
                raise UserError(f"{flag('tasks')}: lm-eval cannot make the prompts of {name}: {reason_of(error)}") from error
            check_requests(name, task.instances, model, whole=self.lengths is not None)
            # Free the requests. `run` builds them again.
            task._instances = None
            documents = task.doc_iterator(limit=self.max_examples)
            batches.append([Example(name, number, _plain(document)) for number, document in documents])
        return batches

    def run(self, model: EvaluationModel, batch: list[Example]) -> list[Prediction]:
        """Let lm-eval evaluate one task: its prompts, answers and scores.

        Whole texts are scored twice: by lm-eval's rule and, with the prefix AS_IN_TRAINING, beginning as in training.
        """
        from megatape.lab.tasks.lm_eval.model import LmEvalModel

        name = batch[0].task
        loaded = self.load(model)
        task = loaded.tasks[name]

        # Metric name prefix -> lm-eval's results.
        results = {"": self._evaluate(name, task, LmEvalModel(model))}
        if task.OUTPUT_TYPE == ROLLING:
            results[AS_IN_TRAINING] = self._evaluate(name, task, LmEvalModel(model, predicts_begin=False))

        task_metrics = {}
        # Number of the document -> prefix and sample for each filter.
        samples: dict[int, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        for prefix, result in results.items():
            for key, value in result["results"][name].items():
                task_metrics[f"{prefix}{key}"] = value
            for sample in result["samples"][name]:
                samples[sample["doc_id"]].append((prefix, sample))
        plain_metrics = _plain(task_metrics)
        groups = [_plain(_configuration(group)) for group in loaded.groups.values() if task in group.get_all_tasks()]

        predictions = []
        for document in range(len(batch)):
            _, last_sample = samples[document][-1]
            prediction = Prediction(
                task=name,
                metrics=_metrics_by_filter(samples[document]),
                prompt=_plain(last_sample["arguments"]),
                prediction=_plain(last_sample["filtered_resps"]),
                reference=_plain(last_sample["target"]),
                task_metrics=plain_metrics,
                groups=groups,
                output_type=task.OUTPUT_TYPE,
            )
            predictions.append(prediction)
        return predictions

    def _evaluate(self, name: str, task: Any, model: "LmEvalModel") -> Any:
        from lm_eval.evaluator import evaluate

        seed_prompts(task)
        return evaluate(model, {"tasks": {name: task}}, limit=self.max_examples, bootstrap_iters=BOOTSTRAPS)

    def result(self, predictions: list[Prediction]) -> LmEvalScores:
        """Collect task results, and let lm-eval aggregate them by group."""
        from megatape.lab.tasks.lm_eval.model import NamedTasks

        tasks = {each.task: each for each in predictions}
        groups: dict[str, NamedTasks] = {}
        for name, task in tasks.items():
            for configuration in task.groups:
                groups.setdefault(configuration["group"], NamedTasks.from_config(configuration)).names.append(name)
        metrics = {name: task.task_metrics for name, task in tasks.items()}
        metrics |= {name: _plain(group.aggregate(metrics)) for name, group in groups.items()}
        shown = [name for name, group in groups.items() if group.has_aggregation]
        shown += [name for name, task in tasks.items() if not task.groups]
        return LmEvalScores(metrics, shown)

    def paper(self) -> PublishedRows:
        rows = {}
        for method, values in EXTENSION_ANSWERS.items():
            rows[EXTENSION_NAMES[method]] = dict(zip(EXTENSION_ANSWERS_COLUMNS, values, strict=True))
        return rows

    def load(self, model: ModelOutline) -> LoadedTasks:
        """Load the tasks. Texts of a chosen length depend on the model's tokenizer.

        Raises:
            UserError: lm-eval does not have a task, or cannot load it.
        """
        self.check_options()
        selection = Selection(
            names=self.tasks,
            num_fewshot=self.num_fewshot,
            max_examples=self.max_examples,
            data_root=self.data_root,
            include=self.include,
            lengths=self._text_lengths(model),
        )
        return load_tasks(selection)

    def _text_lengths(self, model: ModelOutline) -> "tuple[Length, ...]":
        """Return text lengths in the model's tokens, none without `lengths`."""
        if self.lengths is None:
            return ()
        from megatape.lab.tasks.lm_eval.lengths import Length

        return tuple(Length(length, model.name, model.tokenizer) for length in self.lengths)


def _metrics_by_filter(samples: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Merge a document's scores (filter -> metric -> score) from lm-eval's samples and their prefixes."""
    metrics: dict[str, dict[str, Any]] = {}
    for prefix, sample in samples:
        scores = {f"{prefix}{metric}": sample[metric] for metric in sample["metrics"]}
        metrics.setdefault(sample["filter"], {}).update(_plain(scores))
    return metrics


def _configuration(group: Any) -> dict[str, Any]:
    """Return the configuration needed for aggregating a group's tasks."""
    metrics = [asdict(metric) for metric in group.aggregate_metric_list or ()]
    for metric in metrics:
        # Drop an unused setting, which may be a function.
        del metric["aggregation"]
    return {"group": group.name, "group_alias": group.alias, "aggregate_metric_list": metrics}


def _plain(value: Any) -> Any:
    from lm_eval.utils import handle_non_serializable

    return json.loads(json.dumps(value, default=handle_non_serializable))
