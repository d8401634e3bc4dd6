"""The plan of a study: memory, GPU-hours and price of its runs."""

from collections.abc import Mapping

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import Config
from megatape.errors import UserError
from megatape.tools.planner.candidate import Candidate
from megatape.tools.planner.planned_cluster import PlannedCluster, check_nodes
from megatape.tools.planner.report.speed_rows import gpu_hours
from megatape.utils.text.tables import columns
from megatape.utils.text.units import format_count, format_range, plural


def study_report(configs: Mapping[str, Config], num_seeds: int, price: float | None) -> str:
    """Report what the runs of a study need, each on the cluster of its configuration.

    Args:
        configs: Configuration of each model by its label. They differ only in their model.
        num_seeds: Number of runs of each model.
        price: Price of a GPU-hour, in any currency.

    Raises:
        UserError: The configuration names no cluster, or its ranks do not divide the batch.
    """
    rows = []
    low = 0.0
    high = 0.0
    for label, config in configs.items():
        planned = _plan(config)
        hours = gpu_hours(config.tokens, planned.layout, planned.seconds)
        low += num_seeds * hours.low
        high += num_seeds * hours.high
        parameters = count_parameters(config.model).total
        rows.append([label, f"{parameters:,}", planned.requirements.gpu.describe(), format_range(*hours)])
    header = ["model", "parameters", "memory needed of a GPU", "GPU-hours per run"]
    table = columns(rows, header, ["left", "right", "left", "left"])

    first = next(iter(configs.values()))
    total = f"all runs: {format_range(low, high)} GPU-hours"
    if price is not None:
        total += f", which cost {format_range(price * low, price * high)} at {price:g} per GPU-hour"
    note = "Evaluation, validation and checkpoints take further time. `megatape plan` lists what is assumed."
    return "\n".join([_describe(first, len(configs), num_seeds), "", table, "", total, note])


def _plan(config: Config) -> Candidate:
    """Plan a run on the cluster of its configuration."""
    if config.cluster is None:
        raise UserError(
            "the configuration names no cluster to plan for: add, for example, --set cluster.nodes=1 "
            "--set cluster.gpus_per_node=8 --set cluster.gpu=h100"
        )
    cluster = PlannedCluster.load(config.cluster)
    check_nodes(config.parallel, cluster.machines.gpus_per_node)
    layout = TrainingLayout.from_config(config, cluster.machines.world_size)
    return Candidate(layout, cluster)


def _describe(config: Config, num_models: int, num_seeds: int) -> str:
    """Describe the runs in one line."""
    assert config.cluster is not None
    cluster = f"{plural(config.cluster.nodes, 'node')} x {config.cluster.gpus_per_node} {config.cluster.gpu}"
    runs = f"{plural(num_models * num_seeds, 'run')}: {plural(num_models, 'model')}, {plural(num_seeds, 'seed')}"
    length = f"{format_count(config.tokens)} tokens in {plural(config.training.steps, 'step')}"
    return f"{runs}; {length} each, on {cluster}"
