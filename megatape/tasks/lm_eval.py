"""Tasks of lm-eval (EleutherAI's harness), run in this process on our model."""

import json
import logging
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from megatape.errors import MissingPath, UserError
from megatape.options import Count, Listed, option
from megatape.tasks.model import EvaluationModel
from megatape.tasks.task import Measure, Sample, Task

SEED = 1234  # lm-eval's own for examples in the prompt
BOOTSTRAPS = 1000  # for standard errors that have no formula
PERCENT = ("acc", "acc_norm", "exact_match")

# Of Llama 2 7B taken to 8192 tokens. Humanities, social sciences, STEM, other; ARC challenge and easy.
PAPER_COLUMNS = (
    "mmlu_humanities acc (%)",
    "mmlu_social_sciences acc (%)",
    "mmlu_stem acc (%)",
    "mmlu_other acc (%)",
    "arc_challenge acc_norm (%)",
    "arc_easy acc_norm (%)",
)
PAPER = {
    "LoRA": (39.09, 46.47, 33.65, 45.83, 45.31, 74.28),
    "LongLoRA": (37.53, 43.55, 32.54, 43.84, 45.31, 74.16),
    "Theta": (37.45, 43.16, 33.05, 44.64, 45.65, 74.24),
    "TAPE": (37.96, 45.40, 33.27, 45.06, 46.25, 74.16),
}


@dataclass(frozen=True)
class Asked:
    """A document of a task, as its data set has it."""

    task: str
    number: int
    document: Any


@dataclass(frozen=True)
class LmEvalScores:
    """Results of all tasks and groups.

    metrics: as lm-eval names them, such as "acc,none" and "acc_stderr,none". shown: the tasks and groups that a table shows.
    """

    metrics: dict[str, dict[str, Any]]
    shown: list[str]

    @property
    def summary(self) -> str:
        """One line with every measure."""
        return f"lm-eval: {', '.join(f'{measure.name} {measure.value:.4g}' for measure in self.measures)}"

    @property
    def measures(self) -> list[Measure]:
        """What a table shows; errors as lm-eval has them."""
        found = []
        for task in self.shown:
            values = self.metrics[task]
            for key, value in values.items():
                metric, _, kind = key.partition(",")
                if not kind or metric.endswith("_stderr") or not isinstance(value, int | float):
                    continue
                error = values.get(f"{metric}_stderr,{kind}")
                factor, unit = (100, " (%)") if metric in PERCENT else (1, "")
                label = f"{task} {metric}{'' if kind == 'none' else f' {kind}'}{unit}"
                error = factor * error if isinstance(error, int | float) else None
                found.append(Measure(label, factor * value, error, values["sample_len"]))
        return found

    def draw(self, title: str, path: Path) -> None:
        """Write a PNG with a bar for each measure that is a share."""
        from matplotlib.figure import Figure

        measures = [measure for measure in self.measures if measure.name.endswith("(%)")]
        figure = Figure(figsize=(7, 1.5 + 0.4 * len(measures)), layout="constrained")
        axes = figure.add_subplot()
        errors = [measure.error or 0.0 for measure in measures]
        axes.barh([measure.name for measure in measures], [measure.value for measure in measures], xerr=errors)
        axes.invert_yaxis()
        axes.set(xlabel="%", xlim=(0, 100))
        axes.set_title(title, fontsize="small")
        figure.savefig(path, dpi=150)

    def describe(self) -> dict[str, Any]:
        """All metrics of all tasks and groups, and the version that they are of."""
        return {"lm_eval": version("lm_eval"), "tasks": self.metrics}


@dataclass(frozen=True)
class LmEval(Task[Asked, LmEvalScores]):
    """The lm-eval task of `megatape evaluate`.

    tasks: names of tasks, groups or tags. num_fewshot: examples in a prompt; None: as each task has it. max_examples: the first
    so many of each task; None: all. data_root: folder with data sets as the hub has them; None: the hub. include: folder with
    own tasks.
    """

    tasks: Annotated[
        Listed[str],
        option("tasks, groups or tags of lm-eval, such as mmlu,arc_easy,arc_challenge", metavar="NAME,NAME,..."),
    ]
    num_fewshot: Annotated[
        int | None, option("examples before each question (default: those of each task)", ge=0, metavar="K")
    ] = None
    max_examples: Annotated[Count | None, option("ask the first N questions of each set only", metavar="N")] = None
    data_root: Annotated[
        Path | None,
        option(
            "folder with copies of data sets in the hub's layout, such as DIR/allenai/ai2_arc; nothing is downloaded",
            metavar="DIR",
        ),
    ] = None
    include: Annotated[Path | None, option("folder with YAML files of own tasks", metavar="DIR")] = None

    def batches(self, model: EvaluationModel) -> list[list[Asked]]:
        """A batch is a whole task: lm-eval draws the examples of its prompts one after the other.

        Raises UserError, or MissingPath, for a task that lm-eval does not have or cannot load, and ModuleNotFoundError
        without lm-eval.
        """
        found = []
        for name, task in self._loaded()["tasks"].items():
            documents = task.doc_iterator(limit=self.max_examples)
            found.append([Asked(name, number, _plain(document)) for number, document in documents])
        return found

    def run(self, model: EvaluationModel, batch: list[Asked]) -> list[Sample]:
        """lm-eval's own evaluation of one task: its prompts, answers and scores."""
        from lm_eval.evaluator import evaluate

        from megatape.tasks.lm_eval_model import LmEvalModel

        name, task = batch[0].task, self._loaded()["tasks"][batch[0].task]
        random.seed(SEED)
        task.set_fewshot_seed(SEED)
        found = evaluate(LmEvalModel(model), {"tasks": {name: task}}, limit=self.max_examples, bootstrap_iters=0)
        samples: list[Sample] = [{"task": name, "metrics": {}} for _ in batch]
        for logged in found["samples"][name]:  # one for each document and filter
            sample, scores = samples[logged["doc_id"]], {metric: logged.pop(metric) for metric in logged["metrics"]}
            sample["metrics"][logged["filter"]] = _plain(scores)
            sample |= _plain(
                {"prompt": logged["arguments"], "prediction": logged["filtered_resps"], "reference": logged["target"]}
            )
        return samples

    def result(self, model: EvaluationModel, samples: list[Sample]) -> LmEvalScores:
        """Means and standard errors by lm-eval, of tasks and of their groups."""
        from lm_eval.evaluator_utils import _process_results

        loaded = self._loaded()
        values: dict[str, dict[tuple[str, str], list[Any]]] = {name: defaultdict(list) for name in loaded["tasks"]}
        for sample in samples:
            for kind, scores in sample["metrics"].items():
                for metric, value in scores.items():
                    values[sample["task"]][metric, kind].append(value)
        gathered = {
            name: {"task": task, "raw_metrics": values[name], "logged_samples": []} for name, task in loaded["tasks"].items()
        }
        groups = loaded["groups"]
        results = _process_results(gathered, groups, BOOTSTRAPS)
        in_groups = {name for group in groups.values() for name in group.child_names}
        aggregated = [name for name, group in groups.items() if group.has_aggregation]
        shown = [*aggregated, *(name for name in loaded["tasks"] if name not in in_groups)]
        return LmEvalScores(_plain(results.metrics), shown)

    def paper(self) -> dict[str, dict[str, float]]:
        return {label: dict(zip(PAPER_COLUMNS, values, strict=True)) for label, values in PAPER.items()}

    def _loaded(self) -> Any:
        return _load(self.tasks, self.num_fewshot, self.data_root, self.include)


@lru_cache(maxsize=1)
def _load(names: tuple[str, ...], num_fewshot: int | None, data_root: Path | None, include: Path | None) -> Any:
    """lm-eval's tasks and groups of these names, with their data sets."""
    import datasets

    for name, folder in (("data_root", data_root), ("include", include)):
        if folder is not None and not folder.is_dir():
            raise MissingPath(f"{name} {folder}: no such folder")
    if gone := [name for name in names if name.startswith("scrolls")]:
        raise UserError(f"tasks: lm-eval's {gone[0]} needs a part of transformers that is gone: use megatape evaluate scrolls")
    manager = _manager(include, stock=False)
    if any(name not in manager.all_tasks for name in names):
        manager = _manager(include, stock=True)
    for name in names:
        if name not in manager.all_tasks:
            near = get_close_matches(name, manager.all_tasks)
            raise UserError(f"tasks: lm-eval has no {name!r}" + (f", but {', '.join(near)}" if near else ""))
    datasets.disable_progress_bars()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of what its own tasks leave to defaults
    random.seed(SEED)
    with nullcontext() if data_root is None else _offline(data_root):
        loaded = [_load_one(manager, name, data_root) for name in names]
    found = {kind: {name: one for part in loaded for name, one in part[kind].items()} for kind in ("tasks", "groups")}
    for task in found["tasks"].values():
        if num_fewshot is not None and task.get_config("num_fewshot") != 0:  # 0: the task must not have any
            task.set_config(key="num_fewshot", value=num_fewshot)
        elif task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
    return found


@lru_cache(maxsize=2)
def _manager(include: Path | None, stock: bool) -> Any:
    """What knows the tasks in the folder `include` and, if `stock`, those of lm-eval: reading them takes ten seconds."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=None if include is None else str(include.resolve()), include_defaults=stock)


@contextmanager
def _offline(folder: Path) -> Iterator[None]:
    """`datasets` finds its data sets in this folder only."""
    import datasets
    from huggingface_hub import constants

    known = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        with chdir(folder):
            yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = known


def _load_one(manager: Any, name: str, data_root: Path | None) -> Any:
    try:
        return manager.load([name])
    except Exception as error:
        where = "" if data_root is None else f" in --data-root {data_root}"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"tasks: lm-eval cannot load {name}{where}: {reason}") from error


def _plain(value: Any) -> Any:
    """A value of lm-eval in JSON's terms."""
    from lm_eval.utils import handle_non_serializable

    return json.loads(json.dumps(value, default=handle_non_serializable))
