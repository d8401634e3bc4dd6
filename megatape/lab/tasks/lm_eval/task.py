"""Tasks of lm-eval (EleutherAI's harness), run in this process on an evaluation model."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from megatape.errors import MissingPath, UserError
from megatape.lab.paper import EXTENSION_ANSWERS, EXTENSION_ANSWERS_COLUMNS, EXTENSION_NAMES
from megatape.lab.tasks.engine.lengths import LengthList
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.task import Task
from megatape.lab.tasks.lm_eval.loading import LoadedTasks, Selection, load_tasks, reason_of, seed_prompts
from megatape.lab.tasks.lm_eval.names import check_names
from megatape.lab.tasks.lm_eval.results import LmEvalScores
from megatape.utils.options import Count, Listed, option

if TYPE_CHECKING:
    from megatape.lab.tasks.lm_eval.lengths import Length

# Number of bootstrap samples for standard errors without a formula.
BOOTSTRAPS = 1000
# Kind of tasks with the metrics word_perplexity, byte_perplexity and bits_per_byte.
ROLLING = "loglikelihood_rolling"
# Prefix of these metrics if the text begins as in training.
OWN = "megatape_"


@dataclass(frozen=True)
class Example:
    """A document of a task, as in its data set."""

    task: str
    number: int
    document: Any


@dataclass(frozen=True)
class Prediction:
    """The answer to a document, and the results of its task.

    Attributes:
        task: Name of the task in lm-eval.
        metrics: Filter -> metric -> score of the document.
        prompt: Arguments of lm-eval's requests.
        prediction: Filtered responses.
        reference: Target of the document.
        task_metrics: Results of the whole task from lm-eval.
        groups: Groups with the task, the outermost first, as configurations of lm-eval without their tasks.
        output_type: Kind of the task's requests. It is missing in lines of an earlier version, which had another rule for
            ROLLING scores.
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
    """The lm-eval task of `megatape evaluate`. Without `data_root`, data sets are those of the hub.

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
        """Check folders and names of tasks.

        Raises:
            MissingPath: A folder is missing.
            UserError: lm-eval has no task of a name, or `check_options` fails.
        """
        self.check_options()
        check_names(self.tasks, self.include)

    def check_options(self) -> None:
        """Check folders and the requirements of some tasks.

        Raises:
            MissingPath: A folder is missing.
            UserError: A task needs text lengths, or a part of transformers that was removed.
        """
        for name, folder in (("data_root", self.data_root), ("include", self.include)):
            if folder is not None and not folder.is_dir():
                raise MissingPath(f"{name} {folder}: no such folder")
        for name in self.tasks:
            if name.startswith("scrolls"):
                raise UserError(
                    f"tasks: lm-eval's {name} needs a part of transformers that is gone: use megatape evaluate scrolls"
                )
            if self.lengths is None and name.startswith(("ruler", "niah_")):
                raise UserError(f"tasks: {name} of lm-eval needs text lengths: give `lengths`, such as 4096")

    def batches(self, model: ModelOutline) -> list[list[Example]]:
        """Make a batch of each task, because lm-eval draws the examples of its prompts one after the other.

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
                raise UserError(f"tasks: lm-eval cannot make the prompts of {name}: {reason_of(error)}") from error
            check_requests(name, task.instances, model, whole=self.lengths is not None)
            # Instances are made again in `run`.
            task._instances = None
            documents = task.doc_iterator(limit=self.max_examples)
            batches.append([Example(name, number, _plain(document)) for number, document in documents])
        return batches

    def run(self, model: EvaluationModel, batch: list[Example]) -> list[Prediction]:
        """Let lm-eval evaluate one task: its prompts, answers and scores.

        Whole texts are scored by lm-eval's rule and, under names that begin with OWN, with the beginning of training texts.
        """
        from lm_eval.evaluator import evaluate

        from megatape.lab.tasks.lm_eval.model import LmEvalModel

        name = batch[0].task
        loaded = self.load(model)
        task = loaded.tasks[name]

        def evaluated(answers: LmEvalModel) -> Any:
            seed_prompts(task)
            return evaluate(answers, {"tasks": {name: task}}, limit=self.max_examples, bootstrap_iters=BOOTSTRAPS)

        results = {"": evaluated(LmEvalModel(model))}
        if task.OUTPUT_TYPE == ROLLING:
            results[OWN] = evaluated(LmEvalModel(model, predicts_begin=False))
        task_metrics = {}
        for prefix, result in results.items():
            for key, value in result["results"][name].items():
                task_metrics[f"{prefix}{key}"] = value
        groups = [_configuration(group) for group in loaded.groups.values() if task in group.get_all_tasks()]
        of_task = _plain({"task_metrics": task_metrics, "groups": groups, "output_type": task.OUTPUT_TYPE})

        lines: list[dict[str, Any]] = [{"task": name, "metrics": {}} for _ in batch]
        for prefix, result in results.items():
            # One sample for each document and filter.
            for sample in result["samples"][name]:
                line = lines[sample["doc_id"]]
                scores = {f"{prefix}{metric}": sample[metric] for metric in sample["metrics"]}
                line["metrics"].setdefault(sample["filter"], {}).update(_plain(scores))
                line["prompt"] = _plain(sample["arguments"])
                line["prediction"] = _plain(sample["filtered_resps"])
                line["reference"] = _plain(sample["target"])
                line |= of_task
        return [Prediction(**line) for line in lines]

    def result(self, predictions: list[Prediction]) -> LmEvalScores:
        """Collect the results of tasks, and let lm-eval aggregate them to results of groups."""
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

    def paper(self) -> dict[str, dict[str, float]]:
        rows = {}
        for method, values in EXTENSION_ANSWERS.items():
            rows[EXTENSION_NAMES[method]] = dict(zip(EXTENSION_ANSWERS_COLUMNS, values, strict=True))
        return rows

    def load(self, model: ModelOutline) -> LoadedTasks:
        """Load the tasks, whose texts of a chosen length depend on the model's tokenizer.

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
            lengths=self._lengths_of(model),
        )
        return load_tasks(selection)

    def _lengths_of(self, model: ModelOutline) -> "tuple[Length, ...]":
        """Return the lengths of texts in the model's tokens, none without `lengths`."""
        if self.lengths is None:
            return ()
        from megatape.lab.tasks.lm_eval.lengths import Length

        return tuple(Length(length, model.name, model.tokenizer) for length in self.lengths)


def _configuration(group: Any) -> dict[str, Any]:
    """Return the part of a group's configuration that determines how to aggregate its tasks."""
    metrics = [asdict(metric) for metric in group.aggregate_metric_list or ()]
    for metric in metrics:
        # It may be a function, and is not used.
        del metric["aggregation"]
    return {"group": group.name, "group_alias": group.alias, "aggregate_metric_list": metrics}


def _plain(value: Any) -> Any:
    """Convert a value of lm-eval to JSON values."""
    from lm_eval.utils import handle_non_serializable

    return json.loads(json.dumps(value, default=handle_non_serializable))
