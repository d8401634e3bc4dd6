"""Search results as text."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from megatape.accounting.memory import MARGIN
from megatape.config import Config
from megatape.errors import UserError
from megatape.tools.planner.measured import nearest_step
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.report_rows import cost_rows
from megatape.tools.planner.search import SEARCH_SECONDS, Search
from megatape.tools.planner.search_space import SearchSpace
from megatape.tools.planner.speed import TOLERANCE
from megatape.tools.planner.value_grids import SettingIndex, Settings
from megatape.utils.tables import columns
from megatape.utils.units import format_bytes, format_range

MAX_SHOWN = 5  # settings in the table


def search_report(
    config: Config,
    measured: Path | None = None,
    price: float | None = None,
    limit: float | None = SEARCH_SECONDS,
) -> str:
    """Report the fastest settings that fit a run's cluster, and how to change the file's own if they do not fit.

    Args:
        config: Configuration with a cluster.
        measured: results.jsonl of a benchmark, for correcting the step time.
        price: Price of a GPU-hour, in any currency.
        limit: Time limit in seconds, None for no limit.

    Raises:
        UserError: The cluster is missing, or nothing was measured.
    """
    machines = config.cluster
    if machines is None:
        raise UserError("search needs a cluster: add `nodes`, `gpus_per_node` and `gpu`, or a cluster section to the file")
    cluster = PlannedCluster.load(machines)
    if measured is not None:
        cluster = replace(cluster, correction=nearest_step(measured, config).correction)

    space = SearchSpace(config, cluster)
    unchanged = space.unchanged
    fits = unchanged is not None and unchanged.requirements.fits
    share = limit
    if limit is not None and unchanged is not None and not fits:
        share = limit / 2  # The other half is for the smallest change.

    search = Search(space, share)
    fastest, advised = search.preferred()
    lines = []
    if advised is not None:
        lines += [_table(space, fastest[:MAX_SHOWN]), ""]
        lines += _advised_lines(space, advised, len(fastest))
        lines += _cost_lines(space, advised, config.tokens, price)
    if search.timed_out:
        lines.append(f"the search ended at its limit of {share:g} seconds: there may be faster settings")
    if unchanged is None:
        lines.append("the file's own settings do not divide evenly: megatape plan without --search says what to change")
    elif fits:
        seconds = format_range(*unchanged.seconds)
        needed = format_bytes(unchanged.requirements.gpu.bytes)
        lines.append(f"the file's own: {seconds} seconds a step, {needed}: fits")
    else:
        lines.append(f"the file's own need {unchanged.requirements.gpu.describe()}")
        lines += smallest_change_advice(space, share)
    return "\n".join(lines)


def smallest_change_advice(space: SearchSpace, limit: float | None) -> list[str]:
    """Return the smallest change that makes a run fit, as report lines.

    Args:
        space: Settings of the run.
        limit: Time limit in seconds, None for no limit.
    """
    search = Search(space, limit)
    index = search.smallest_change()
    if index is None:
        if search.timed_out:
            return ["the search for a change that makes it fit ran out of time: use more nodes or larger GPUs"]
        return ["nothing that the settings can save makes it fit: use more nodes, or GPUs and nodes with more memory"]
    needed = []
    for device, requirement in space.valid_candidate(index).requirements.by_device.items():
        needed.append(f"{format_bytes(requirement.bytes)} {device}")
    return ["the smallest change that makes it fit:", f"  {_options(space.changes(index))}: {', '.join(needed)}"]


def _options(changes: Settings) -> str:
    """Return changes as command-line options."""
    if not changes:
        return "the settings of the file"
    return " ".join(f"--set {key}={_option_value(value)}" for key, value in changes.items())


def _option_value(value: object) -> str:
    """Return a setting's value as on the command line, such as "true"."""
    return str(value).lower()


def _table(space: SearchSpace, indices: Sequence[SettingIndex]) -> str:
    """Return a table of settings with speed and memory."""
    header = []
    for grid in space.grids.all:
        header += [key.rpartition(".")[2] for key in grid.keys]
    header += ["seconds per step", "memory of a GPU", "of a node's host"]

    rows = []
    for index in indices:
        candidate = space.valid_candidate(index)
        row = [_option_value(value) for value in space.grids.settings(index).values()]
        row.append(format_range(*candidate.seconds))
        row.append(format_bytes(candidate.requirements.gpu.bytes))
        host = candidate.requirements.host
        if host is None:
            row.append("none")
        else:
            row.append(format_bytes(host.bytes))
        rows.append(row)
    return columns(rows, header)


def _advised_lines(space: SearchSpace, index: SettingIndex, num_equal: int) -> list[str]:
    """Return the options for the advised settings, and the reason for the advice."""
    reason = f"the simplest of {num_equal} settings within {TOLERANCE:.0%} of the fastest: the estimate cannot tell them apart"
    if num_equal == 1:
        reason = f"the search found no other setting within {TOLERANCE:.0%} of it"
    return [f"advised: {_options(space.changes(index))}", f"  {reason}; it leaves {MARGIN:.0%} of the memory free"]


def _cost_lines(space: SearchSpace, index: SettingIndex, tokens: int, price: float | None) -> list[str]:
    """Return the GPU-hours of the advised settings and their price."""
    candidate = space.valid_candidate(index)
    rows = cost_rows(tokens, candidate.layout, candidate.seconds, price)
    return [f"  {name.strip()}: {value}" for name, value in rows]
