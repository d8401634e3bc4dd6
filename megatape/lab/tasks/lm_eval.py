"""Tasks of lm-eval (EleutherAI's harness), run in this process on an evaluation model."""

import json
import logging
import math
import random
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from megatape.errors import MissingPath, UserError
from megatape.lab.paper import EXTENSION_ANSWERS, EXTENSION_ANSWERS_COLUMNS, EXTENSION_NAMES
from megatape.lab.pictures import bars
from megatape.lab.tasks.engine.lengths import LengthList
from megatape.lab.tasks.engine.task import EvaluationModel, Interval, Measure, ModelOutline, Task, wilson
from megatape.lab.tasks.lm_eval_names import check_names, unknown_task
from megatape.utils.options import Count, Listed, option
from megatape.utils.replacing import replaced

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from megatape.lab.tasks.lm_eval_lengths import Length

SEED = 1234  # lm-eval's own for examples in the prompt
BOOTSTRAPS = 1000  # for standard errors that have no formula
PERCENT = ("acc", "acc_norm", "exact_match")
ROLLING = "loglikelihood_rolling"  # the kind of tasks whose metrics are word_perplexity, byte_perplexity and bits_per_byte
OWN = "megatape_"  # before the name of such a metric if the text begins as in training


@dataclass(frozen=True)
class Example:
    """A document of a task, as its data set has it."""

    task: str
    number: int
    document: Any


@dataclass(frozen=True)
class Prediction:
    """The answer to a document, and the results of its task.

    Attributes:
        task: lm-eval's name of the task.
        metrics: Filter -> metric -> score of the document.
        prompt: Arguments of lm-eval's requests.
        prediction: Filtered responses.
        reference: The target.
        task_metrics: Results of the whole task, as lm-eval has them.
        groups: The groups that the task is in, the outermost first, as configurations of lm-eval without their tasks.
        output_type: Kind of its requests. Lines of an earlier version, whose ROLLING scores had another rule, lack it.
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
        shown: The tasks and groups that a table shows.
    """

    metrics: dict[str, dict[str, Any]]
    shown: list[str]

    @property
    def summary(self) -> str:
        """One line with every measure."""
        return f"lm-eval: {', '.join(f'{measure.name} {measure.value:.4g}' for measure in self.measures)}"

    @property
    def measures(self) -> list[Measure]:
        """Every metric of the tasks and groups that a table shows; errors as lm-eval has them."""
        measures = []
        for task in self.shown:
            values = self.metrics[task]
            for key, value in values.items():
                metric, _, kind = key.partition(",")
                if not kind or metric.endswith("_stderr") or not isinstance(value, int | float):
                    continue
                error = values.get(f"{metric}_stderr,{kind}")
                factor, unit = (100, " (%)") if metric in PERCENT else (1, "")
                label = f"{task} {metric}{'' if kind == 'none' else f' {kind}'}{unit}"
                error = error if isinstance(error, int | float) else None
                interval = _interval(value, error, values["sample_len"]) if unit else None
                error = None if error is None else factor * error
                measures.append(Measure(label, factor * value, error, values["sample_len"], interval))
        return measures

    def draw(self, figure: "Figure") -> None:
        """A bar for each measure that is a share."""
        shares = [measure for measure in self.measures if measure.name.endswith("(%)")]
        bars(figure, {share.name: (share.value, share.error) for share in shares}, "%")

    def describe(self) -> dict[str, Any]:
        """All metrics of all tasks and groups, and the version that they are of."""
        return {"lm_eval": version("lm_eval"), "tasks": self.metrics}


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
        """A batch is a whole task: lm-eval draws the examples of its prompts one after the other.

        Raises:
            MissingPath: A folder is missing.
            UserError: lm-eval does not have a task, cannot load it or make its prompts, or asks for what the model cannot do.
            ModuleNotFoundError: lm-eval is not installed.
        """
        from megatape.lab.tasks.lm_eval_model import check_requests

        batches = []
        for name, task in self._loaded(model)["tasks"].items():
            try:
                _seed(task)
                task.build_all_requests(limit=self.max_examples)
            except Exception as error:  # of templates, or of functions in YAML files
                raise UserError(f"tasks: lm-eval cannot make the prompts of {name}: {_reason(error)}") from error
            check_requests(name, task.instances, model, whole=self.lengths is not None)
            task._instances = None  # they are made again when they are asked
            documents = task.doc_iterator(limit=self.max_examples)
            batches.append([Example(name, number, _plain(document)) for number, document in documents])
        return batches

    def run(self, model: EvaluationModel, batch: list[Example]) -> list[Prediction]:
        """lm-eval's own evaluation of one task: its prompts, answers and scores.

        Whole texts are scored by lm-eval's rule and, under names that begin with OWN, as texts begin in training.
        """
        from lm_eval.evaluator import evaluate

        from megatape.lab.tasks.lm_eval_model import LmEvalModel

        name = batch[0].task
        loaded = self._loaded(model)
        task = loaded["tasks"][name]

        def evaluated(answers: LmEvalModel) -> Any:
            _seed(task)
            return evaluate(answers, {"tasks": {name: task}}, limit=self.max_examples, bootstrap_iters=BOOTSTRAPS)

        results = {"": evaluated(LmEvalModel(model))}
        if task.OUTPUT_TYPE == ROLLING:
            results[OWN] = evaluated(LmEvalModel(model, predicts_begin=False))
        metrics = {f"{prefix}{key}": value for prefix, each in results.items() for key, value in each["results"][name].items()}
        groups = [_configuration(group) for group in loaded["groups"].values() if task in group.get_all_tasks()]
        of_task = _plain({"task_metrics": metrics, "groups": groups, "output_type": task.OUTPUT_TYPE})
        lines: list[dict[str, Any]] = [{"task": name, "metrics": {}} for _ in batch]
        samples = [(prefix, logged) for prefix, each in results.items() for logged in each["samples"][name]]
        for prefix, logged in samples:  # one for each document and filter
            line = lines[logged["doc_id"]]
            scores = {f"{prefix}{metric}": logged[metric] for metric in logged["metrics"]}
            line["metrics"].setdefault(logged["filter"], {}).update(_plain(scores))
            line |= _plain({"prompt": logged["arguments"], "prediction": logged["filtered_resps"]})
            line |= {"reference": _plain(logged["target"])} | of_task
        return [Prediction(**line) for line in lines]

    def result(self, predictions: list[Prediction]) -> LmEvalScores:
        """The results of tasks, and by lm-eval those of their groups."""
        from megatape.lab.tasks.lm_eval_model import NamedTasks

        tasks = {each.task: each for each in predictions}
        groups: dict[str, NamedTasks] = {}
        for name, task in tasks.items():
            for configuration in task.groups:
                groups.setdefault(configuration["group"], NamedTasks.from_config(configuration)).names.append(name)
        metrics = {name: task.task_metrics for name, task in tasks.items()}
        metrics |= {name: _plain(group.aggregate(metrics)) for name, group in groups.items()}
        aggregated = [name for name, group in groups.items() if group.has_aggregation]
        return LmEvalScores(metrics, [*aggregated, *(name for name, task in tasks.items() if not task.groups)])

    def paper(self) -> dict[str, dict[str, float]]:
        return {
            EXTENSION_NAMES[method]: dict(zip(EXTENSION_ANSWERS_COLUMNS, values, strict=True))
            for method, values in EXTENSION_ANSWERS.items()
        }

    def _loaded(self, model: ModelOutline) -> Any:
        if self.lengths is None:
            return _load(self, ())

        from megatape.lab.tasks.lm_eval_lengths import Length

        return _load(self, tuple(Length(length, model.name, model.tokenizer) for length in self.lengths))


@lru_cache(maxsize=1)
def _load(options: LmEval, lengths: tuple["Length", ...]) -> Any:
    """lm-eval's tasks and groups of these options, with their data sets; of RULER and BABILong one for each length."""
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
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of what its own tasks leave to defaults
    random.seed(SEED)
    if lengths:
        from megatape.lab.tasks.lm_eval_lengths import forget_texts

        forget_texts()
    with nullcontext() if options.data_root is None else _offline(options.data_root):
        loaded = [_load_one(manager, name, options, length) for length in lengths or (None,) for name in names]
    merged = {
        "tasks": {task.task_name: task for part in loaded for task in part["tasks"].values()},
        "groups": {group.name: group for part in loaded for group in part["groups"].values()},
    }
    for task in merged["tasks"].values():
        if options.num_fewshot is not None and task.get_config("num_fewshot") != 0:  # 0: the task must not have any
            task.set_config(key="num_fewshot", value=options.num_fewshot)
        elif task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
    return merged


@lru_cache(maxsize=2)
def _manager(include: Path | None, stock: bool) -> Any:
    """The tasks in the folder `include` and, if `stock`, those of lm-eval: reading them takes ten seconds."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=None if include is None else str(include.resolve()), include_defaults=stock)


@contextmanager
def _offline(folder: Path) -> Iterator[None]:
    """`datasets` finds its data sets in this folder only."""
    import datasets
    from huggingface_hub import constants

    with ExitStack() as stack:
        stack.enter_context(chdir(folder))
        stack.enter_context(replaced(datasets.config, "HF_HUB_OFFLINE", True))
        stack.enter_context(replaced(constants, "HF_HUB_OFFLINE", True))
        yield


def _load_one(manager: Any, name: str, options: LmEval, length: "Length | None") -> Any:
    offline = options.data_root is not None
    try:
        return manager.load([name]) if length is None else length.load(manager, name, options.max_examples, offline)
    except UserError:
        raise
    except Exception as error:
        where = f" in --data-root {options.data_root}" if offline else ""
        raise UserError(f"tasks: lm-eval cannot load {name}{where}: {_reason(error)}") from error


def _seed(task: Any) -> None:
    """Let the task's next prompts be those of lm-eval's seed."""
    random.seed(SEED)
    task.set_fewshot_seed(SEED)


def _reason(error: Exception) -> str:
    """The first line with words of an error of lm-eval, or its kind if it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip(" *")), type(error).__name__)


def _interval(share: float, error: float | None, n: int) -> Interval | None:
    """Wilson's interval in percent, if the standard error is that of a share of `n` documents."""
    binomial = math.sqrt(share * (1 - share) / max(1, n - 1))
    alike = error is not None and math.isclose(error, binomial, rel_tol=1e-6, abs_tol=1e-9)
    return wilson(share, n) if alike else None


def _configuration(group: Any) -> dict[str, Any]:
    """The part of a group's configuration by which its tasks are aggregated."""
    metrics = [asdict(metric) for metric in group.aggregate_metric_list or ()]
    for metric in metrics:
        del metric["aggregation"]  # perhaps a function, and not used
    return {"group": group.name, "group_alias": group.alias, "aggregate_metric_list": metrics}


def _plain(value: Any) -> Any:
    """A value of lm-eval in JSON's terms."""
    from lm_eval.utils import handle_non_serializable

    return json.loads(json.dumps(value, default=handle_non_serializable))
