"""Estimates memory, traffic and step time on a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from megatape.accounting.gpus import GPUS
from megatape.commands.options.shared_options import ConfigOptions
from megatape.config import load_config
from megatape.errors import UserError, flag
from megatape.utils.values.options import option

if TYPE_CHECKING:
    from megatape.tools.planner.report.failure_rows import FailureOptions

Positive = Annotated[float, Field(gt=0)]

EXAMPLE = "megatape plan --config configs/tape_7b.json --nodes 2 --gpus-per-node 8 --gpu h200"


class Options(ConfigOptions):
    """A run, and the cluster to plan it for.

    Attributes:
        nodes: number of nodes (default: cluster.nodes)
        gpus_per_node: GPUs per node (default: cluster.gpus_per_node)
        host_gib: host memory per node in GiB (default: cluster.host_gib)
        search: print the fastest settings that fit the cluster (ranks, ZeRO, activation
            checkpointing, offloading and micro-batch), and recommend the simplest of the equally
            fast ones; takes at most 10 seconds (docs/choose_ranks.md)
        measured: results.jsonl of `megatape benchmark gpu`, to correct the estimated step time
        price: price of a GPU-hour in any currency, to print the cost of the run
        failures_per_day: expected failures a day of all ranks together, to print the best interval
            between checkpoints and the goodput to expect (docs/choose_ranks.md)
        restart_seconds: seconds from a failure to the next step (default: the ledger's, or 120)
        save_seconds: seconds that training waits for a save (default: the ledger's, or estimated
            from the checkpoint's size)
        ledger: run directory to read the seconds of a step, a save and a restart from
    """

    at_most_one: ClassVar = (("search", "failures_per_day"),)
    nodes: int | None = option(None, metavar="N")
    gpus_per_node: int | None = option(None, metavar="G")
    gpu: str | None = option(
        None,
        description=f"GPU type: {', '.join(GPUS)}, or a JSON file (default: cluster.gpu)",
        metavar="NAME|FILE",
        completions=tuple(GPUS),
    )
    host_gib: float | None = option(None, metavar="GIB")
    search: bool = False
    measured: Path | None = option(None, metavar="FILE")
    price: float | None = option(None, ge=0, metavar="PRICE")
    failures_per_day: Positive | None = option(None, metavar="X")
    restart_seconds: float | None = option(None, ge=0, metavar="S")
    save_seconds: Positive | None = option(None, metavar="S")
    ledger: Path | None = option(None, metavar="RUN")


def run(options: Options) -> None:
    """Print the plan."""
    cluster = {
        "nodes": options.nodes,
        "gpus_per_node": options.gpus_per_node,
        "gpu": options.gpu,
        "host_gib": options.host_gib,
    }
    overrides = list(options.set)
    for key, value in cluster.items():
        if value is not None:
            overrides.append(f"cluster.{key}={value}")
    config = load_config(options.config, overrides)
    failures = _failure_options(options)
    from megatape.tools.planner.report.report import report
    from megatape.tools.planner.report.search_report import search_report

    if options.search:
        print(search_report(config, options.measured, options.price))
    else:
        print(report(config, options.measured, options.price, failures))


def _failure_options(options: Options) -> "FailureOptions | None":
    """Return the options about failures, None if no rate is given.

    Raises:
        UserError: There are options that need a rate.
    """
    from megatape.tools.planner.report.failure_rows import FailureOptions

    costs = {name: getattr(options, name) for name in ("restart_seconds", "save_seconds", "ledger")}
    if options.failures_per_day is None:
        for name, value in costs.items():
            if value is not None:
                raise UserError(f"{flag(name)} needs {flag('failures_per_day')}: it is a cost of failures")
        return None
    return FailureOptions(options.failures_per_day, **costs)
