"""Tasks of lm-eval (EleutherAI's harness), run in this process on an evaluation model."""

import json
import logging
import math
import random
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from megatape.errors import MissingPath, UserError
from megatape.lab.paper import EXTENSION_ANSWERS, EXTENSION_ANSWERS_COLUMNS, EXTENSION_NAMES
from megatape.lab.pictures import bars
from megatape.lab.tasks.engine.lengths import LengthList
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.result import Interval, Measure, wilson
from megatape.lab.tasks.engine.task import Task
from megatape.lab.tasks.lm_eval.names import check_names, unknown_task
from megatape.utils.options import Count, Listed, option
from megatape.utils.replaced_attribute import replaced_attribute

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from megatape.lab.tasks.lm_eval.lengths import Length

# lm-eval's own seed for the examples in prompts.
SEED = 1234
# Number of bootstrap samples for standard errors without a formula.
BOOTSTRAPS = 1000
PERCENT = ("acc", "acc_norm", "exact_match")
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
class LmEvalScores:
    """Results of all tasks and groups.

    Attributes:
        metrics: Task or group -> "acc,none", "acc_stderr,none" and so on -> value.
        shown: Tasks and groups that a table shows.
    """

    metrics: dict[str, dict[str, Any]]
    shown: list[str]

    @property
    def summary(self) -> str:
        """One line with every measure."""
        parts = [f"{measure.name} {measure.value:.4g}" for measure in self.measures]
        return f"lm-eval: {', '.join(parts)}"

    @property
    def measures(self) -> list[Measure]:
        """Every metric of the shown tasks and groups, with lm-eval's standard errors."""
        measures = []
        for task in self.shown:
            values = self.metrics[task]
            for key, value in values.items():
                metric, _, kind = key.partition(",")
                is_metric = bool(kind) and not metric.endswith("_stderr")
                if is_metric and isinstance(value, int | float):
                    error = values.get(f"{metric}_stderr,{kind}")
                    if not isinstance(error, int | float):
                        error = None
                    measures.append(_measure(task, metric, kind, value, error, values["sample_len"]))
        return measures

    def draw(self, figure: "Figure") -> None:
        """Draw a bar for each measure that is a share."""
        shares = {}
        for measure in self.measures:
            if measure.name.endswith("(%)"):
                shares[measure.name] = (measure.value, measure.error)
        bars(figure, shares, "%")

    def describe(self) -> dict[str, Any]:
        """Return all metrics of all tasks and groups, and the version of lm-eval."""
        return {"lm_eval": version("lm_eval"), "tasks": self.metrics}


def _measure(task: str, metric: str, kind: str, value: float, error: float | None, n: int) -> Measure:
    """Return a metric as a measure, shares in percent.

    Args:
        task: Name of the task or group.
        metric: Name of the metric.
        kind: Filter of the answers, "none" without one.
        value: Value of the metric.
        error: Its standard error.
        n: Number of documents.
    """
    label = f"{task} {metric}"
    if kind != "none":
        label += f" {kind}"
    if metric not in PERCENT:
        return Measure(label, value, error, n)
    interval = _interval(value, error, n)
    if error is not None:
        error = 100 * error
    return Measure(f"{label} (%)", 100 * value, error, n, interval)


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
        for name, task in self._loaded(model)["tasks"].items():
            try:
                _seed(task)
                task.build_all_requests(limit=self.max_examples)
            except Exception as error:  # Templates and functions in YAML files may raise anything.
                raise UserError(f"tasks: lm-eval cannot make the prompts of {name}: {_reason(error)}") from error
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
        loaded = self._loaded(model)
        task = loaded["tasks"][name]

        def evaluated(answers: LmEvalModel) -> Any:
            _seed(task)
            return evaluate(answers, {"tasks": {name: task}}, limit=self.max_examples, bootstrap_iters=BOOTSTRAPS)

        results = {"": evaluated(LmEvalModel(model))}
        if task.OUTPUT_TYPE == ROLLING:
            results[OWN] = evaluated(LmEvalModel(model, predicts_begin=False))
        task_metrics = {}
        for prefix, result in results.items():
            for key, value in result["results"][name].items():
                task_metrics[f"{prefix}{key}"] = value
        groups = [_configuration(group) for group in loaded["groups"].values() if task in group.get_all_tasks()]
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

    def _loaded(self, model: ModelOutline) -> Any:
        if self.lengths is None:
            return _load(self, ())

        from megatape.lab.tasks.lm_eval.lengths import Length

        lengths = [Length(length, model.name, model.tokenizer) for length in self.lengths]
        return _load(self, tuple(lengths))


@lru_cache(maxsize=1)
def _load(options: LmEval, lengths: tuple["Length", ...]) -> Any:
    """Load lm-eval's tasks and groups with their data sets. Tasks of RULER and BABILong are loaded once for each length."""
    import datasets

    options.check_options()
    names = options.tasks
    manager = _manager(options.include, stock=False)
    if any(name not in manager.all_tasks for name in names):
        manager = _manager(options.include, stock=True)
    for name in names:
        if name not in manager.all_tasks:
            raise unknown_task(name, manager.all_tasks)
    datasets.disable_progress_bars()
    # lm-eval warns about settings that its own tasks leave to defaults.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    random.seed(SEED)
    if lengths:
        from megatape.lab.tasks.lm_eval.lengths import forget_texts

        forget_texts()
    merged: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}}
    with ExitStack() as stack:
        if options.data_root is not None:
            stack.enter_context(_offline(options.data_root))
        for length in lengths or (None,):
            for name in names:
                loaded = _load_one(manager, name, options, length)
                merged["tasks"] |= {task.task_name: task for task in loaded["tasks"].values()}
                merged["groups"] |= {group.name: group for group in loaded["groups"].values()}
    for task in merged["tasks"].values():
        num_fewshot = task.get_config("num_fewshot")
        # With 0, the task must not have examples.
        if options.num_fewshot is not None and num_fewshot != 0:
            task.set_config(key="num_fewshot", value=options.num_fewshot)
        elif num_fewshot is None:
            task.set_config(key="num_fewshot", value=0)
    return merged


@lru_cache(maxsize=2)
def _manager(include: Path | None, stock: bool) -> Any:
    """Return the manager of tasks.

    Args:
        include: Folder with the user's own task files.
        stock: Whether to include lm-eval's tasks. Reading them takes ten seconds.
    """
    from lm_eval.tasks import TaskManager

    include_path = None
    if include is not None:
        include_path = str(include.resolve())
    return TaskManager(include_path=include_path, include_defaults=stock)


@contextmanager
def _offline(folder: Path) -> Iterator[None]:
    """Let `datasets` find data sets in this folder only."""
    import datasets
    from huggingface_hub import constants

    with ExitStack() as stack:
        stack.enter_context(chdir(folder))
        stack.enter_context(replaced_attribute(datasets.config, "HF_HUB_OFFLINE", True))
        stack.enter_context(replaced_attribute(constants, "HF_HUB_OFFLINE", True))
        yield


def _load_one(manager: Any, name: str, options: LmEval, length: "Length | None") -> Any:
    offline = options.data_root is not None
    try:
        if length is None:
            return manager.load([name])
        return length.load(manager, name, options.max_examples, offline)
    except UserError:
        raise
    except Exception as error:
        where = ""
        if offline:
            where = f" in --data-root {options.data_root}"
        raise UserError(f"tasks: lm-eval cannot load {name}{where}: {_reason(error)}") from error


def _seed(task: Any) -> None:
    """Seed the task's next prompts like lm-eval."""
    random.seed(SEED)
    task.set_fewshot_seed(SEED)


def _reason(error: Exception) -> str:
    """Return the first line with words in an error of lm-eval, or the error's kind if it has none."""
    for line in str(error).splitlines():
        if line.strip(" *"):
            return line.strip()
    return type(error).__name__


def _interval(share: float, error: float | None, n: int) -> Interval | None:
    """Return Wilson's interval in percent, or None unless the standard error is that of a share of `n` documents."""
    if error is None:
        return None
    binomial = math.sqrt(share * (1 - share) / max(1, n - 1))
    if not math.isclose(error, binomial, rel_tol=1e-6, abs_tol=1e-9):
        return None
    return wilson(share, n)


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
