"""The plan of a study: memory, GPU-hours and price of its runs."""

from collections.abc import Mapping
from dataclasses import dataclass

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import Config
from megatape.errors import UserError
from megatape.tools.planner.memory_requirements import memory_requirements
from megatape.tools.planner.planned_cluster import PlannedCluster, check_nodes
from megatape.tools.planner.report.speed_rows import gpu_hours
from megatape.tools.planner.step_time.cases import Range
from megatape.tools.planner.step_time.speed import plan_speed
from megatape.utils.text.tables import columns
from megatape.utils.text.units import format_count, format_range, plural


@dataclass(frozen=True)
class PlannedModel:
    """A model of a study with its needs.

    Attributes:
        label: Variant label.
        parameters: Number of weights.
        memory: Memory needed of a GPU, beside what it has.
        hours: GPU-hours of a run.
    """

    label: str
    parameters: int
    memory: str
    hours: Range


def study_report(configs: Mapping[str, Config], num_seeds: int, price: float | None) -> str:
    """Report what the runs of a study need, each on the cluster of its configuration.

    Args:
        configs: Configuration of each model by its label. They differ only in their model.
        num_seeds: Number of runs of each model.
        price: Price of a GPU-hour, in any currency.

    Raises:
        UserError: The configuration names no cluster, or its ranks do not divide the batch.
    """
    models = [_plan(label, config) for label, config in configs.items()]
    first = next(iter(configs.values()))
    lines = [_describe(first, len(models), num_seeds), ""]
    lines.append(_table(models))
    low = num_seeds * sum(model.hours.low for model in models)
    high = num_seeds * sum(model.hours.high for model in models)
    total = f"all runs: {format_range(low, high)} GPU-hours"
    if price is not None:
        total += f", which cost {format_range(price * low, price * high)} at {price:g} per GPU-hour"
    lines += ["", total, "Evaluation, validation and checkpoints take further time. `megatape plan` lists what is assumed."]
    return "\n".join(lines)


def _plan(label: str, config: Config) -> PlannedModel:
    """Plan a run on its cluster."""
    if config.cluster is None:
        raise UserError(
            "the configuration names no cluster to plan for: add, for example, --set cluster.nodes=1 "
            "--set cluster.gpus_per_node=8 --set cluster.gpu=h100"
        )
    cluster = PlannedCluster.load(config.cluster)
    check_nodes(config.parallel, cluster.machines.gpus_per_node)
    layout = TrainingLayout.from_config(config, cluster.machines.world_size)
    requirements = memory_requirements(plan_memory(layout, on_gpu=True), cluster)
    hours = gpu_hours(config.tokens, layout, plan_speed(layout, cluster).seconds)
    parameters = count_parameters(config.model).total
    return PlannedModel(label, parameters, requirements.gpu.describe(), hours)


def _describe(config: Config, num_models: int, num_seeds: int) -> str:
    """Describe the runs in one line."""
    assert config.cluster is not None
    cluster = f"{plural(config.cluster.nodes, 'node')} x {config.cluster.gpus_per_node} {config.cluster.gpu}"
    runs = f"{plural(num_models * num_seeds, 'run')}: {plural(num_models, 'model')}, {plural(num_seeds, 'seed')}"
    length = f"{format_count(config.tokens)} tokens in {plural(config.training.steps, 'step')}"
    return f"{runs}; {length} each, on {cluster}"


def _table(models: list[PlannedModel]) -> str:
    """Return a table with a row for each model."""
    rows = []
    for model in models:
        rows.append([model.label, f"{model.parameters:,}", model.memory, format_range(*model.hours)])
    header = ["model", "parameters", "memory needed of a GPU", "GPU-hours per run"]
    return columns(rows, header, ["left", "right", "left", "left"])
